"""Several edits at once: all or none, tried beforehand, recorded, and nobody is evicted."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection

from scheduling.clusters.models import (
    Node,
    PinnedCell,
    Topology,
    VcQuota,
    VcValues,
    VirtualCluster,
)
from scheduling.clusters.services.cluster_edits import (
    AddNode,
    ArchiveVc,
    ChangeVc,
    CordonNode,
    CreateVc,
    MoveQuota,
    Pin,
    RemoveNode,
    UncordonNode,
    Unpin,
)
from scheduling.clusters.services.nodes import fingerprint_of
from scheduling.clusters.services.reconfiguration import reconfigure
from scheduling.clusters.services.topology import DoesNotFitError
from scheduling.core.lifecycle import JobState
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease
from tenants.errors import (
    ConflictError,
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import AuditEntry
from tests.factories.scheduling import ADMIN, NOW, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db

MOVE = MoveQuota(source="vision-a", target="language-a", chain="a-node", level="node", count=1)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDk2tHBLYzuGFW2o3FYbMUuTXjkvKsmLz1nkIrOr8lSB"


AWAY = ArchiveVc(virtual_cluster="vision-a")


def move(**changes):
    return replace(MOVE, **changes)


def pin(name):
    return Pin(virtual_cluster=name, name="p", address="node-3")


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def act(*edits, **changes):
    return reconfigure(**{"viewer": ADMIN, "edits": edits, "now": NOW, **changes})


def cell(count, level="a-node"):
    return {"chain": "a-node", "level": level, "count": count}


def quotas():
    rows = VcQuota.objects.order_by("virtual_cluster__name", "level")
    return {
        (row["virtual_cluster__name"], row["level"]): row["count"]
        for row in rows.values("virtual_cluster__name", "level", "count")
    }


def everything():
    """All rows that a reconfiguration could touch."""
    with connection.cursor() as cursor:
        found = {}
        for model in (VirtualCluster, VcQuota, PinnedCell, Topology, Node, Lease, AuditEntry):
            cursor.execute(f"select * from {model._meta.db_table} order by id")
            found[model] = cursor.fetchall()
    return found


def test_quota_moves_in_one_step_and_the_running_job_borrows():
    job = submit(devices=8)
    start(job)

    done = act(MOVE, reason="vision is away")

    assert [loser.job_id for loser in done.effect.loses] == [job.pk]
    assert (done.effect.loses[0].name, done.effect.loses[0].user) == ("hello", "alice")
    assert quotas() == {("language-a", "a-node"): 2}
    assert done.version == Topology.objects.order_by("-version")[0].version == 2
    assert run_round(NOW + timedelta(seconds=10)).rebound == (job.pk,)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    assert violations() == ()


def test_a_dry_run_reports_what_the_apply_does_and_leaves_nothing_behind():
    job = submit(devices=8)
    start(job)
    before = everything()

    tried = act(MOVE, dry_run=True)

    assert everything() == before
    assert (tried.dry_run, tried.version) == (True, 1)
    assert tried.effect == act(MOVE).effect


def test_cells_may_change_hands_in_a_ring():
    act(CreateVc(name="vision-b", tenant="vision", cells=[cell(1)]))

    done = act(
        MOVE,
        MoveQuota(source="language-a", target="vision-b", chain="a-node", level="node", count=2),
        MoveQuota(source="vision-b", target="vision-a", chain="a-node", level="node", count=3),
    )

    assert quotas() == {("vision-a", "a-node"): 3}
    assert done.effect.change.fits


def test_pins_change_hands_in_one_step():
    act(
        ChangeVc(virtual_cluster="vision-a", cells=[], pinned=[{"name": "p", "address": "node-3"}])
    )

    act(
        Unpin(virtual_cluster="vision-a", name="p"),
        Pin(virtual_cluster="language-a", name="q", address="node-3"),
    )

    assert list(PinnedCell.objects.values_list("virtual_cluster__name", "name", "address")) == [
        ("language-a", "q", "node-3")
    ]


def test_promises_that_do_not_fit_are_an_answer_of_the_dry_run_and_an_error_of_the_apply():
    before = everything()
    greedy = ChangeVc(virtual_cluster="vision-a", cells=[cell(3)])

    tried = act(greedy, dry_run=True)
    with pytest.raises(DoesNotFitError) as caught:
        act(greedy)

    assert not tried.effect.change.fits
    assert "at level a-node chain a-node needs 4, has 3" in tried.effect.change.witnesses[0]
    assert "needs 4, has 3" in str(caught.value)
    assert everything() == before


def test_of_two_admins_with_one_version_the_second_gets_an_error():
    act(MOVE, expected_version=1)
    back = MoveQuota(source="language-a", target="vision-a", chain="a-node", level="node", count=1)

    for dry_run in (True, False):
        with pytest.raises(StaleEditError) as caught:
            act(back, expected_version=1, dry_run=dry_run)
        assert caught.value.code == "stale-edit"
        assert "topology" in str(caught.value)
    assert quotas() == {("language-a", "a-node"): 2}


def test_each_change_is_recorded_and_the_whole_too():
    job = submit(devices=8)
    start(job)

    act(MOVE, reason="a quarter for language")

    rows = AuditEntry.objects.unscoped().order_by("id")
    changes = rows.filter(action="virtual_cluster.update")
    assert [(row.object_name, row.message) for row in changes] == [
        ("language-a", "a quarter for language"),
        ("vision-a", "a quarter for language"),
    ]
    assert changes[1].before == {"cells": [cell(1)]}
    assert changes[1].after == {"cells": []}
    whole = rows.get(action="cluster.reconfigure")
    assert whole.before == {
        "version": 1,
        "cells": {"language-a: a-node": 1, "vision-a: a-node": 1},
    }
    assert whole.after["cells"] == {"language-a: a-node": 2, "vision-a: a-node": 0}
    assert (whole.after["version"], whole.after["become_opportunistic"]) == (2, [job.pk])


def test_waiting_jobs_that_would_never_fit_again_are_named():
    job = submit(devices=8)
    small = submit("bob", devices=1)

    effect = act(MOVE, dry_run=True).effect

    assert [affected.job_id for affected in effect.no_longer_fit] == [job.pk]
    assert effect.loses == ()
    assert small.pk not in {affected.job_id for affected in effect.no_longer_fit}


def test_a_node_goes_with_the_promise_that_needed_it():
    done = act(ChangeVc(virtual_cluster="vision-a", cells=[]), RemoveNode(node="node-3"))
    assert done.effect.change.nodes_removed == ("node-3",)
    assert Node.objects.get(name="node-3").removed_at == NOW
    spec = Topology.objects.order_by("-version")[0].spec
    assert [entry["address"] for entry in spec["physical"]] == ["node-1", "node-2"]
    assert violations() == ()

    with pytest.raises(DoesNotFitError):
        act(ChangeVc(virtual_cluster="vision-a", cells=[cell(1)]), RemoveNode(node="node-2"))


def test_a_node_with_jobs_does_not_go():
    job = submit(devices=8)
    start(job)
    node = Lease.objects.filter(job=job).values_list("device__node__name", flat=True)[0]

    for dry_run in (True, False):
        with pytest.raises(ConflictError) as caught:
            act(RemoveNode(node=node), dry_run=dry_run)
        assert "still on" in str(caught.value)


def test_nodes_are_added_cordoned_and_used_again_with_the_rest():
    fingerprint = fingerprint_of(KEY)
    assert fingerprint is not None
    added = AddNode(
        name="node-9",
        host="127.0.0.9",
        user="tessera",
        host_key=KEY,
        fingerprint=fingerprint,
    )

    act(added, CordonNode(node="node-3", reason="disk"), MOVE)
    assert Node.objects.get(name="node-9").state == "down"
    assert Node.objects.get(name="node-3").state == "cordoned"
    act(UncordonNode(node="node-3"))

    assert Node.objects.get(name="node-3").state == "ready"
    assert Topology.objects.count() == 2


def test_a_virtual_cluster_is_made_and_another_put_away():
    done = act(
        ArchiveVc(virtual_cluster="vision-a"),
        CreateVc(
            name="vision-b", tenant="vision", cells=[cell(2)], values=VcValues(note="instead")
        ),
    )

    assert done.effect.change.fits
    assert quotas() == {("language-a", "a-node"): 1, ("vision-b", "a-node"): 2}
    assert VirtualCluster.objects.unscoped().get(name="vision-a").archived_at == NOW
    with pytest.raises(DuplicateError):
        act(CreateVc(name="vision-a", tenant="vision"))
    submit("bob")
    with pytest.raises(ConflictError):
        act(ArchiveVc(virtual_cluster="language-a"))


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ((), "edits"),
        ((MOVE, move(source="x")), "edits[1].source"),
        ((move(target="x"),), "edits[0].target"),
        ((move(chain="b"),), "edits[0].chain"),
        ((move(level="rack"),), "edits[0].level"),
        ((move(count=-1),), "edits[0].count"),
        ((move(count=0),), "edits[0].count"),
        ((move(target="vision-a"),), "edits[0].count"),
        ((move(count=2),), "edits[0].count"),
        ((ChangeVc(virtual_cluster="x", cells=[]),), "edits[0].virtual_cluster"),
        (
            (ChangeVc(virtual_cluster="vision-a", cells=[7]),),  # type: ignore[list-item]  # no cell
            "edits[0].cells[0]",
        ),
        ((Pin(virtual_cluster="vision-a", name="", address="node-3"),), "edits[0].name"),
        ((Pin(virtual_cluster="vision-a", name="p", address="nowhere"),), "edits[0].address"),
        ((Unpin(virtual_cluster="vision-a", name="p"),), "edits[0].name"),
        ((CreateVc(name="a/b", tenant="vision"),), "edits[0].name"),
        ((CreateVc(name="vision-a", tenant="vision"),), "edits[0].name"),
        (
            (CreateVc(name="vision-b", tenant="vision", values=VcValues(policy="magic")),),
            "edits[0].policy",
        ),
        ((AWAY, AWAY), "edits[1].virtual_cluster"),
        ((RemoveNode(node="node-3"), RemoveNode(node="node-3")), "edits[1].node"),
        ((pin("vision-a"), pin("language-a")), "pinned"),
    ],
)
def test_what_is_wrong_is_named_with_the_number_of_the_edit(edits, field):
    before = everything()

    for dry_run in (True, False):
        with pytest.raises(InvalidError) as caught:
            act(*edits, dry_run=dry_run)
        assert caught.value.field == field
        assert caught.value.remedy
    assert everything() == before


def test_unknown_nodes_are_not_found_and_bad_reasons_are_refused():
    for edit in (RemoveNode(node="node-9"), CordonNode(node="node\x00", reason="x")):
        with pytest.raises(NotFoundError):
            act(edit)
    with pytest.raises(InvalidError):
        act(CordonNode(node="node-1", reason=""))
    with pytest.raises(InvalidError):
        act(MOVE, reason="x" * 501)


def test_only_cluster_admins_reconfigure():
    for name in ("alice", "ada", "carol"):
        for edit in (MOVE, CordonNode(node="node-1", reason="x")):
            with pytest.raises(ForbiddenError):
                act(edit, viewer=make_viewer(name), dry_run=True)
