"""The page of storages: the list of members, the forms of node managers, and the submit form."""

import pytest
from django.test import Client

from portal.web.submit_fields import changes, values_of
from scheduling.clusters.models import Node, Storage
from tests.support.cluster_pages import Stage, make_stage, read, sign_in

pytestmark = pytest.mark.django_db

NEW = {"name": "sets", "source": "/srv/sets", "mount": "/data", "tenants": "", "note": "Images"}


@pytest.fixture
def stage() -> Stage:
    return make_stage()


@pytest.fixture
def root(client: Client, stage: Stage) -> Client:
    return sign_in(client, "root")


def test_an_admin_adds_a_storage_and_sees_it_on_each_node(root: Client) -> None:
    answer = root.post("/storages/", NEW, follow=True)
    row = Storage.objects.get()
    probe = {"cause": "", "path": "/srv/sets", "total_bytes": 10**12, "free_bytes": 4 * 10**11}
    first = Node.objects.order_by("name").first()
    assert first is not None
    Node.objects.filter(pk=first.pk).update(storages={row.source: probe})
    page = read(root, f"/storages/{row.pk}/")

    assert "Storage added." in answer.content.decode()
    assert "60 % of 1.0\u00a0TB" in page
    assert "not yet probed" in page
    assert "400\u00a0GB of 1.0\u00a0TB" in read(root, "/storages/")


def test_faults_stand_at_their_fields_and_lost_edits_are_shown(root: Client) -> None:
    refused = root.post("/storages/", {**NEW, "source": "/etc", "tenants": "nobody"})
    root.post("/storages/", NEW)
    row = Storage.objects.get()
    address = f"/storages/{row.pk}/"
    root.post(address, {**NEW, "writable": "on", "version": "1"})
    late = root.post(address, {**NEW, "note": "late", "version": "1"}).content.decode()

    assert refused.status_code == 422
    assert "must not be a directory of the system" in refused.content.decode()
    assert "Another person changed this storage" in late
    row.refresh_from_db()
    assert (row.writable, row.note) == (True, "Images")
    root.post(f"{address}delete/", {"version": str(row.version)})
    assert not Storage.objects.exists()


def test_members_see_their_storages_and_no_forms(root: Client) -> None:
    root.post("/storages/", NEW)
    root.post("/storages/", {**NEW, "name": "theirs", "source": "/srv/t", "tenants": "language"})
    alice = sign_in(Client(), "alice")

    page = read(alice, "/storages/")

    assert "/data" in page
    assert "/srv/sets" not in page
    assert "theirs" not in page
    assert "Add storage" not in page
    assert alice.get(f"/storages/{Storage.objects.get(name='sets').pk}/").status_code == 403
    assert alice.post("/storages/", NEW).status_code == 403


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sets", ["sets"]),
        (
            "sets, out:/results:rw",
            ["sets", {"name": "out", "mount": "/results", "read_only": False}],
        ),
        ("sets:ro", [{"name": "sets", "read_only": True}]),
        ("none", []),
        ("", None),
    ],
)
def test_the_submit_form_writes_and_shows_storages(text: str, value: object) -> None:
    document = {"storage": ["before"]}

    ((keys, written),) = changes({"storage": text}, document, ["worker"])

    assert (keys, written) == (("storage",), value)
    if written is not None:
        assert values_of({"storage": written}, ["worker"])["storage"] == text
