"""The page of device types: everybody reads, admins add and delete aliases."""

import pytest
from django.test import Client

from scheduling.clusters.models import Device, DeviceAlias
from tests.support.cluster_pages import make_stage, sign_in

pytestmark = pytest.mark.django_db
URL = "/device-types/"


def test_an_admin_adds_and_deletes_an_alias(client: Client) -> None:
    make_stage()
    kind = Device.objects.values_list("device_type", flat=True)[0]
    sign_in(client, "root")

    made = client.post(URL, {"device_type": kind, "alias": "quick"}, follow=True)
    again = client.post(URL, {"device_type": kind, "alias": "quick"})
    row = DeviceAlias.objects.get()
    deleted = client.post(f"{URL}{row.pk}/delete/", follow=True)

    assert (made.status_code, again.status_code) == (200, 422)
    assert b"Alias quick created." in made.content
    assert b"quick is already an alias" in again.content
    assert b"Alias deleted." in deleted.content
    assert not DeviceAlias.objects.exists()


def test_others_read_the_names_and_change_none(client: Client) -> None:
    make_stage()
    kind = Device.objects.values_list("device_type", flat=True)[0]
    DeviceAlias.objects.create(alias="quick", device_type=kind)
    sign_in(client, "alice")

    page = client.get(URL).content
    refused = client.post(URL, {"device_type": kind, "alias": "slow"})

    assert b"quick" in page
    assert b"Add alias" not in page
    assert refused.status_code == 403
    assert DeviceAlias.objects.count() == 1
