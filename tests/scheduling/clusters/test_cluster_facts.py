"""Facts that readers share: worked out once, never stale, and nothing hidden gets through them."""

from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries import cluster
from scheduling.clusters.queries import cluster_facts as module
from scheduling.clusters.queries.cluster import cluster_snapshot, node_views
from scheduling.clusters.queries.cluster_facts import KEPT, cluster_facts
from scheduling.clusters.queries.current_engine import engine_in_force
from scheduling.clusters.queries.nodes import list_nodes
from scheduling.clusters.queries.occupancy import sight_of
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.runs.models import Lease
from scheduling.runs.queries.running import running_now
from scheduling.topology.current import current_topology
from tests.factories.scheduling import NOW, make_two_tenants, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def named(nodes):
    return {d.occupant.name for node in nodes for d in node.devices if d.occupant} - {""}


def test_readers_of_the_same_rows_share_the_facts_and_what_follows_from_them():
    start(submit(devices=4))

    first, again = cluster_facts(), cluster_facts()

    assert first is again
    assert first.uses is again.uses
    assert node_views(first, make_viewer("alice")) is node_views(again, make_viewer("alice"))


changes = pytest.mark.parametrize(
    "change",
    [
        lambda: Lease.objects.all().update(virtual_cell=""),
        lambda: Lease.objects.all().update(released_at=NOW),
        lambda: Device.objects.filter(pk=Device.objects.all()[0].pk).update(healthy=False),
        lambda: Node.objects.filter(name="node-1").update(state="down"),
        lambda: start(submit(devices=1)),
    ],
    ids=["guarantee", "release", "device", "node", "start"],
)


@changes
def test_any_change_of_a_row_gives_new_facts(change):
    start(submit(devices=4))
    before = cluster_facts()

    change()

    assert cluster_facts() is not before
    assert cluster_facts().rows != before.rows


@changes
def test_a_change_makes_new_views_of_the_nodes_that_it_shows_on_and_of_no_other(change):
    start(submit(devices=4))
    viewer = make_viewer("alice")
    before = {view.name: view for view in node_views(cluster_facts(), viewer)}

    change()
    after = {view.name: view for view in node_views(cluster_facts(), viewer)}

    kept = {name for name, view in after.items() if view is before[name]}
    assert kept == {name for name, view in after.items() if view == before[name]}
    assert kept < set(after)
    cluster._GIVEN.clear()
    anew = node_views(module.ClusterFacts(current_topology(), cluster_facts().rows), viewer)
    assert {view.name: view for view in anew} == after


def test_a_process_that_changed_nothing_itself_sees_what_another_one_changed():
    job = submit(devices=4)
    start(job)
    viewer = make_viewer("alice")
    assert cluster_snapshot(viewer, now=NOW).totals.in_use == 4

    # As another process does it: rows only, no signal, no call in this process.
    Lease.objects.filter(job=job).update(released_at=NOW)

    assert cluster_snapshot(viewer, now=NOW).totals.in_use == 0
    assert named(cluster_snapshot(viewer, now=NOW).nodes) == set()


def test_cached_views_of_one_user_show_nothing_to_another_tenant():
    start(submit(name="mine-a"), submit("bob", name="theirs-b"))
    names = {"root": {"mine-a", "theirs-b"}, "alice": {"mine-a"}, "bob": {"theirs-b"}}
    names["carol"] = set()

    for username in ("root", "alice", "bob", "carol", "alice", "root", "carol", "bob"):
        viewer = make_viewer(username)
        assert named(cluster_snapshot(viewer, now=NOW).nodes) == names[username]
        assert named([row.view for row in list_nodes(viewer)]) == names[username]


def test_names_of_tenants_are_part_of_what_decides():
    start(submit())
    facts, viewer = cluster_facts(), make_viewer("alice")
    (tenant_id,) = facts.tenant_ids

    blind = replace(viewer, tenant_names={})

    assert sight_of(viewer, facts) != sight_of(blind, facts)
    views = node_views(facts, blind)
    held = [device.occupant for node in views for device in node.devices if device.occupant]
    assert {occupant.tenant for occupant in held} == {"another tenant"}
    assert viewer.name_of(tenant_id) == "vision"


def test_a_token_without_the_scope_gets_no_share_of_what_its_owner_sees():
    start(submit(name="mine-a"))
    viewer = make_viewer("alice")
    assert named(node_views(cluster_facts(), viewer)) == {"mine-a"}

    bound = replace(viewer, scopes=frozenset())

    assert named(node_views(cluster_facts(), bound)) == set()


def test_what_is_kept_is_bounded():
    facts = cluster_facts()

    def ask(number: int, made: int) -> int:
        return facts.once(number, lambda: made)

    for number in range(3 * KEPT):
        ask(number, made=number)

    assert len(facts._made) == KEPT
    assert ask(3 * KEPT - 1, made=-1) == 3 * KEPT - 1


def test_a_lease_whose_job_was_gone_when_jobs_were_read_counts_as_released():
    start(submit(devices=4))
    facts = cluster_facts()

    torn = module.ClusterFacts(facts.topology, facts.rows._replace(holders=()))

    assert (torn.leases, torn.in_use, torn.held) == ((), 0, frozenset())


@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads how SQLite goes about it")
def test_no_reader_walks_the_leases_of_the_past():
    with CaptureQueriesContext(connection) as asked:
        cluster_facts()
        running_now()

    about_leases = [query["sql"] for query in asked if "scheduling_lease" in query["sql"]]
    assert len(about_leases) == 3
    for sql in about_leases:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            steps = [row[3] for row in cursor.fetchall()]
        live = ("USING INDEX lease_live_by_job", "USING INDEX lease_by_end (released_at=?)")
        assert any(words in step for step in steps for words in live), steps


def test_the_engine_in_force_is_asked_anew_when_anything_it_holds_has_changed():
    spec = spec_in_force(current_topology())
    before = engine_in_force(spec)
    free = before.largest("vision-a")
    assert engine_in_force(spec_in_force(current_topology())) is before

    start(submit(devices=8))

    after = engine_in_force(spec_in_force(current_topology()))
    assert after is not before
    assert after.largest("vision-a") != free
