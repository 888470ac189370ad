"""The page of import rules: everybody reads, admins make and delete."""

import pytest
from django.test import Client

from scheduling.clusters.models import ImportRule
from tests.support.cluster_pages import make_stage, sign_in

pytestmark = pytest.mark.django_db
URL = "/import-rules/"
RULE = {"kind": "partition", "name": "gpu", "virtual_cluster": "vision-a"}


def test_an_admin_makes_and_deletes_a_rule(client: Client) -> None:
    make_stage()
    sign_in(client, "root")

    made = client.post(URL, RULE, follow=True)
    again = client.post(URL, RULE)
    nothing = client.post(URL, {"kind": "qos", "name": "high"})
    rule = ImportRule.objects.unscoped().get()
    deleted = client.post(f"{URL}{rule.pk}/delete/", follow=True)

    assert (made.status_code, again.status_code, nothing.status_code) == (200, 422, 422)
    assert b"Slurm partition" in made.content
    assert b"A rule for partition gpu already exists." in again.content
    assert b"The rule does not map the name to anything." in nothing.content
    assert b"Rule deleted" in deleted.content
    assert not ImportRule.objects.unscoped().exists()


def test_others_read_the_rules_and_change_none(client: Client) -> None:
    make_stage()
    sign_in(client, "root")
    client.post(URL, RULE)
    sign_in(client, "alice")

    page = client.get(URL).content

    assert b"Slurm partition" in page
    assert b"New rule" not in page
    assert client.post(URL, {**RULE, "name": "cpu"}).status_code == 403
    (rule,) = ImportRule.objects.unscoped()
    assert client.post(f"{URL}{rule.pk}/delete/").status_code in (302, 403)
    assert ImportRule.objects.unscoped().count() == 1


def test_admins_get_an_action_where_there_are_no_rules(client: Client) -> None:
    make_stage()
    said = {name: sign_in(client, name).get(URL).content for name in ("root", "alice")}

    assert b"A cluster admin manages the rules." in said["alice"]
    assert b"A cluster admin manages the rules." not in said["root"]
    assert b"New rule" in said["root"]
