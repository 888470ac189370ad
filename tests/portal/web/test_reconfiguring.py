"""The page of a reconfiguration, and what a virtual cluster's page shows of its cells."""

import re
from typing import Any

import pytest
from django.test import Client

from portal.web.reconfiguring import field_name, read_form
from scheduling.clusters.models import Node, PinnedCell, Topology, VcQuota
from scheduling.jobs.models import Job
from scheduling.runs.models import Lease
from scheduling.topology.current import current_topology
from tenants.models import AuditEntry
from tests.factories.cluster import make_job, make_virtual_cluster
from tests.support.cluster_pages import HTMX, Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db

PAGE = "/virtual-clusters/reconfigure/"
VISION = field_name("vision-a", "a-node", "a-node")
LANGUAGE = field_name("language-a", "a-node", "a-node")


@pytest.fixture
def stage() -> Stage:
    found = make_stage()
    # What runs holds its virtual cluster's cells, as a round would have left it.
    for job, vc in ((found.running, "vision-a"), (found.foreign, "language-a")):
        for number, lease in enumerate(Lease.objects.filter(job=job).order_by("id")):
            lease.virtual_cell = f"{vc}/0/0/{number // 2}/{number}"
            lease.save(update_fields=["virtual_cell"])
    return found


@pytest.fixture
def root(client: Client, stage: Stage) -> Client:
    return sign_in(client, "root")


def quotas() -> dict[str, int]:
    return dict(VcQuota.objects.values_list("virtual_cluster__name", "count"))


def seen(html: str) -> str:
    return html.partition('name="seen" value="')[2].partition('"')[0]


def moved(**changes: str) -> dict[str, str]:
    return {"version": "1", VISION: "0", LANGUAGE: "2", **changes}


def test_a_preview_names_who_would_borrow_and_writes_nothing(root: Client, stage: Stage) -> None:
    html = root.post(PAGE, moved(preview="yes")).content.decode()

    said = words_of(html)
    assert "1 running job becomes opportunistic in the next round." in said
    assert f"{stage.running.pk} train-a" in said
    assert "vision-a a-node 1 → 0" in said
    assert "currently 1" in said
    assert "1 waiting job would not fit even in an empty cluster" in said
    assert seen(html)
    assert quotas() == {"vision-a": 1, "language-a": 1}


def test_what_was_previewed_is_applied_and_recorded(root: Client, stage: Stage) -> None:
    token = seen(root.post(PAGE, moved(preview="yes")).content.decode())

    answer = root.post(PAGE, moved(apply="yes", seen=token, reason="away"), follow=True)

    assert quotas() == {"language-a": 2}
    assert "1 running job becomes opportunistic in the next round." in words_of(
        answer.content.decode()
    )
    assert AuditEntry.objects.unscoped().get(action="cluster.reconfigure").message == "away"
    stage.running.refresh_from_db()
    assert stage.running.state == "running"


@pytest.mark.parametrize("token", ["", "0" * 16])
def test_nothing_is_applied_that_was_not_previewed(root: Client, token: str) -> None:
    said = words_of(root.post(PAGE, moved(apply="yes", seen=token)).content.decode())

    assert "The form changed after the preview." in said
    assert quotas() == {"vision-a": 1, "language-a": 1}


def test_the_second_of_two_admins_is_told(root: Client) -> None:
    token = seen(root.post(PAGE, moved(preview="yes")).content.decode())
    Topology.objects.create(
        version=2,
        spec=Topology.objects.get(version=1).spec,
        created_at=Topology.objects.get().created_at,
    )

    answer = root.post(PAGE, moved(apply="yes", seen=token))

    assert answer.status_code == 409
    assert "Another person changed the cluster meanwhile." in words_of(answer.content.decode())
    assert quotas() == {"vision-a": 1, "language-a": 1}


def test_what_does_not_fit_has_a_witness_and_no_button(root: Client) -> None:
    html = root.post(PAGE, moved(**{VISION: "3", "preview": "yes"})).content.decode()

    assert "This does not fit." in words_of(html)
    assert "needs 5, has 3" in html
    assert not seen(html)


def test_pins_and_nodes_go_with_the_rest(root: Client) -> None:
    sent = {
        "version": "1",
        "pin-vc-0": "language-a",
        "pin-name-0": "mine",
        "pin-address-0": "node-3/0",
        "cordoned": "node-3",
        "reason": "fan",
    }
    token = seen(root.post(PAGE, {**sent, "preview": "yes"}).content.decode())

    root.post(PAGE, {**sent, "apply": "yes", "seen": token})
    unpin = {"version": "2", field_name("language-a", "mine"): "1", "uncordoned": "node-3"}
    html = root.post(PAGE, {**unpin, "preview": "yes"}).content.decode()

    assert PinnedCell.objects.get().address == "node-3/0"
    assert Node.objects.get(name="node-3").state == "cordoned"
    assert "language-a pinned mine node-3/0 → nothing" in words_of(html)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({VISION: "many"}, "many is not a valid number of cells."),
        ({"share:<b>": "1"}, "is not a valid number of cells."),
        ({"removed": "node-9"}, "Node not found."),
        ({"removed": "node-1"}, "still on node-1"),
        ({"pin-name-0": "p", "pin-vc-0": "vision-a"}, "the address of a whole cell"),
        ({}, "The form contains no changes"),
    ],
)
def test_what_is_wrong_is_reported_and_nothing_is_written(
    root: Client, sent: dict[str, str], said: str
) -> None:
    html = root.post(PAGE, {"version": "1", "preview": "yes", **sent}).content.decode()

    assert said in words_of(html)
    assert quotas() == {"vision-a": 1, "language-a": 1}
    assert Topology.objects.count() == 1


def test_only_cluster_admins_see_the_page(client: Client, stage: Stage) -> None:
    for name in ("alice", "lena"):
        sign_in(client, name)
        assert client.get(PAGE).status_code == 403
        assert client.post(PAGE, moved(apply="yes")).status_code == 403


def test_hostile_names_are_text(root: Client, stage: Stage) -> None:
    html = root.post(
        PAGE,
        {
            "version": "1",
            "preview": "yes",
            "pin-name-0": "<script>",
            "pin-vc-0": "<b>",
            "removed": "<i>x",
        },
    ).content.decode()

    assert "<script>&" not in html
    assert "<i>x" not in html
    assert "&lt;i&gt;x" in html


def test_the_editor_reports_who_would_borrow_while_one_types(root: Client, stage: Stage) -> None:
    address = f"/virtual-clusters/{stage.vision_a.pk}/check/"

    said = words_of(
        root.post(address, {'cells:["a-node","a-node"]': "0"}, headers=HTMX).content.decode()
    )
    same = words_of(
        root.post(address, {'cells:["a-node","a-node"]': "1"}, headers=HTMX).content.decode()
    )

    assert "1 running job becomes opportunistic in the next round." in said
    assert "would borrow" not in same
    assert "This changes nothing" not in same


def test_a_part_of_the_page_draws_virtual_cells_beside_the_nodes(
    client: Client, stage: Stage
) -> None:
    html = read(sign_in(client, "alice"), f"/virtual-clusters/{stage.vision_a.pk}/room/")

    said = words_of(html)
    assert "Cells 1 of 1 cell bound" in said
    assert "Virtual cells" in said
    assert "node-1: 8 devices bound to cell 0" in html
    assert "train-a" in html
    assert "secret-name" not in html


def test_the_page_fetches_the_largest_gang_and_the_shape_of_the_past(
    root: Client, stage: Stage
) -> None:
    html = read(root, f"/virtual-clusters/{stage.vision_a.pk}/")
    part = read(root, f"/virtual-clusters/{stage.vision_a.pk}/room/")

    said = words_of(html)
    assert "Largest job that can start now" in words_of(part)
    assert f'hx-get="/virtual-clusters/{stage.vision_a.pk}/room/"' in html
    assert 'id="fits" aria-busy="true"' in html
    assert "Shape needed by past jobs last 30 days" in said
    assert f'hx-get="/virtual-clusters/{stage.vision_a.pk}/past/"' in html


def test_the_shape_of_the_past_is_for_those_who_may_see_the_virtual_cluster(
    client: Client, stage: Stage
) -> None:
    address = f"/virtual-clusters/{stage.vision_a.pk}/"

    own = words_of(read(sign_in(client, "alice"), f"{address}past/"))
    sign_in(client, "bob")
    foreign = [client.get(f"{address}{part}/").status_code for part in ("past", "room")]

    assert "Shape needed by past jobs last 30 days" in own
    assert foreign == [404, 404]


def test_an_admin_tries_the_recommended_shape(root: Client, stage: Stage) -> None:
    html = read(root, f"/virtual-clusters/{stage.vision_a.pk}/recommended/")

    assert "This shape fits." in words_of(html)
    assert quotas() == {"vision-a": 1, "language-a": 1}


def test_the_queries_of_the_pages_do_not_grow(
    root: Client, stage: Stage, django_assert_max_num_queries: Any
) -> None:
    address = f"/virtual-clusters/{stage.vision_a.pk}/"
    read(root, address)
    read(root, PAGE)
    with django_assert_max_num_queries(60) as few:
        read(root, address)
    with django_assert_max_num_queries(20) as few_form:
        read(root, PAGE)
    with django_assert_max_num_queries(60) as few_preview:
        root.post(PAGE, moved(preview="yes"))
    for _ in range(4):
        make_job("alice")
    make_virtual_cluster("vision-b", stage.vision, cells=0)
    Job.objects.unscoped().update(priority=5)

    with django_assert_max_num_queries(len(few)):
        read(root, address)
    with django_assert_max_num_queries(len(few_form)):
        read(root, PAGE)
    with django_assert_max_num_queries(len(few_preview)):
        root.post(PAGE, moved(preview="yes"))


def test_the_fields_survive_any_name() -> None:
    names = [field_name(vc, 'c,|"', "l'é") for vc in ("a b", 'x"]', "ü")]
    sent: Any = dict.fromkeys(names, "2")

    found = read_form(sent)

    assert found.counts == {(vc, 'c,|"', "l'é"): 2 for vc in ("a b", 'x"]', "ü")}


def test_the_fields_offer_cells_with_their_level_and_nodes(root: Client, stage: Stage) -> None:
    html = root.get(PAGE).content.decode()

    lists = dict(re.findall(r'<datalist id="([\w-]+)">(.*?)</datalist>', html, re.DOTALL))
    cells = dict(re.findall(r'value="([^"]+)">([^<]+)<', lists["cell-addresses"]))
    names = set(Node.objects.filter(removed_at=None).values_list("name", flat=True))
    assert set(re.findall(r'value="([^"]+)"', lists["node-names"])) == names
    assert names <= {address.split("/")[-1] for address, text in cells.items() if "node" in text}
    assert {text.split()[-1] for text in cells.values()} >= {"node", "socket", "device"}
    topology = current_topology()
    assert all(topology.cell_at(address) for address in cells)
