"""A dry run is the edit itself, rolled back: same effect, same refusals, nothing written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.clusters.models import (
    VC_COLUMNS,
    ClusterRules,
    Node,
    PinnedCell,
    Topology,
    VcQuota,
    VcValues,
    VirtualCluster,
)
from scheduling.clusters.services.cluster_edits import (
    ArchiveVc,
    ChangeVc,
    CordonNode,
    CreateVc,
    Edit,
    MoveQuota,
    Pin,
    RemoveNode,
    Unpin,
    VcEdit,
)
from scheduling.clusters.services.reconfiguration import (
    Reconfigured,
    edit_virtual_cluster,
    reconfigure,
)
from scheduling.clusters.services.topology import DoesNotFitError
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease
from tenants.errors import DomainError
from tenants.models import AuditEntry
from tenants.viewers import Viewer
from tests.factories.scheduling import ADMIN, NOW, change_vc, make_two_tenants, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db

WRITTEN = (VirtualCluster, VcQuota, PinnedCell, Topology, Node, Lease, ClusterRules, AuditEntry)
MANY = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80
)


@pytest.fixture
def viewers() -> dict[str, Viewer]:
    """A busy cluster: a whole node guaranteed, a device borrowed, a job that waits, two levels."""
    make_two_tenants()
    Node.objects.filter(name="node-1").update(isolation_level="namespace")
    Node.objects.exclude(name="node-1").update(isolation_level="user")
    change_vc("language-a", pinned=[{"name": "own", "address": "node-3/0"}], cells=[])
    start(submit(devices=8), submit("bob", devices=1, **{"class": "opportunistic"}))
    submit(devices=8)
    return {"admin": ADMIN, "lead": make_viewer("ada"), "member": make_viewer("alice")}


NAMES = st.sampled_from(["vision-a", "language-a", "vision-b", "nobody", "a/b"])
LEVELS = st.sampled_from(["node", "a-node", "a-socket", "a-pcie", "rack"])
ADDRESSES = st.sampled_from(["node-2", "node-3", "node-3/0", "node-3/1", "nowhere"])
CELLS = st.lists(
    st.fixed_dictionaries(
        {
            "chain": st.sampled_from(["a-node", "a-node", "b"]),
            "level": LEVELS,
            "count": st.sampled_from([0, 1, 1, 2, 4, -1]),
        }
    ),
    max_size=2,
)
PINS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["p", "q", ""]), "address": ADDRESSES}),
    max_size=2,
)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "policy": st.sampled_from(["fifo", "fair", "magic"]),
    "policy_args": st.sampled_from([{}, {"backfill": False}, {"x": 1}]),
    "shadows": st.sampled_from([[], [{"policy": "fair"}], [{"policy": "magic"}]]),
    "max_devices_per_user": st.sampled_from([None, 2, 0]),
    "max_opportunistic_devices": st.sampled_from([None, 4]),
    "least_isolation": st.sampled_from(["none", "user", "container", "strong"]),
    "note": st.sampled_from(["", "mine", "a\x00"]),
}
SOME_COLUMNS = st.fixed_dictionaries({}, optional=COLUMNS)
VC_EDITS: st.SearchStrategy[VcEdit] = st.one_of(
    st.builds(
        CreateVc,
        name=NAMES,
        tenant=st.sampled_from(["vision", "language", "none"]),
        values=SOME_COLUMNS.map(lambda columns: VcValues(**columns)),
        cells=CELLS,
        pinned=PINS,
    ),
    st.builds(
        ChangeVc,
        virtual_cluster=NAMES,
        values=SOME_COLUMNS,
        cells=st.none() | CELLS,
        pinned=st.none() | PINS,
    ),
    st.builds(
        ChangeVc,
        virtual_cluster=st.just("vision-a"),
        values=st.fixed_dictionaries({"max_devices_per_user": st.sampled_from([None, 2])}),
    ),
    st.builds(ArchiveVc, virtual_cluster=NAMES),
)
NODES = st.sampled_from(["node-1", "node-2", "node-3", "node-9"])
EDITS: st.SearchStrategy[Edit] = st.one_of(
    VC_EDITS,
    st.builds(
        MoveQuota,
        source=NAMES,
        target=NAMES,
        chain=st.just("a-node"),
        level=LEVELS,
        count=st.sampled_from([1, 2]),
    ),
    st.builds(Pin, virtual_cluster=NAMES, name=st.sampled_from(["p", "own"]), address=ADDRESSES),
    st.builds(Unpin, virtual_cluster=NAMES, name=st.sampled_from(["p", "own"])),
    st.builds(RemoveNode, node=NODES),
    st.builds(CordonNode, node=NODES, reason=st.sampled_from(["fan", ""])),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer or the error of a call."""

    done: Reconfigured | None = None
    error: DomainError | None = None


def outcome(call: Callable[[], Reconfigured | None]) -> Outcome:
    try:
        return Outcome(done=call())
    except DomainError as error:
        return Outcome(error=error)


def everything() -> dict[type[Any], list[tuple[Any, ...]]]:
    """All rows that an edit could write."""
    found = {}
    with connection.cursor() as cursor:
        for model in WRITTEN:
            cursor.execute(f"select * from {model._meta.db_table} order by id")
            found[model] = cursor.fetchall()
    return found


def check_preview(
    call: Callable[[bool], Reconfigured | None], *, whole: Callable[[], Reconfigured]
) -> None:
    """Try, then act, and compare; all rows are rolled back.

    Args:
        call: the edit, with whether it is a dry run.
        whole: the same edit as a reconfiguration, which answers with its effect on the jobs.
    """
    with transaction.atomic():
        before = everything()
        tried = outcome(lambda: call(True))
        assert everything() == before
        with transaction.atomic():
            effect = outcome(whole)
            transaction.set_rollback(True)
        done = outcome(lambda: call(False))
        if isinstance(done.error, DoesNotFitError):
            assert tried.done is not None
            assert not tried.done.effect.change.fits
            witnesses = [fault.value for fault in done.error.errors]
            assert list(tried.done.effect.change.witnesses) == witnesses
        elif done.error is not None:
            assert tried.error is not None, done.error
            assert type(tried.error) is type(done.error)
            assert tried.error.errors == done.error.errors
        else:
            check_done(tried, effect)
        if done.error is not None:
            assert everything() == before
        transaction.set_rollback(True)


def check_done(tried: Outcome, effect: Outcome) -> None:
    """Compare the answer of a dry run with the rows of the edit."""
    assert tried.done is not None, tried.error
    assert tried.done.dry_run
    assert effect.done is not None, effect.error
    assert tried.done.effect == effect.done.effect
    promised = dict.fromkeys(
        ((p.vc, p.chain, p.level) for p in tried.done.effect.change.promises), 0
    )
    for vc, chain, level, count in VcQuota.objects.values_list(
        "virtual_cluster__name", "chain", "level", "count"
    ):
        promised |= {(vc, chain, level): count} if (vc, chain, level) in promised else {}
    assert promised == {
        (p.vc, p.chain, p.level): p.after for p in tried.done.effect.change.promises
    }
    assert violations() == ()


@MANY
@given(
    edit=VC_EDITS,
    who=st.sampled_from(["admin", "admin", "admin", "lead", "member"]),
    seen=st.sampled_from([None, None, 1, 2]),
)
def test_the_preview_of_one_virtual_cluster_equals_the_edit(
    viewers: dict[str, Viewer], edit: VcEdit, who: str, seen: int | None
) -> None:
    check_preview(
        lambda dry_run: edit_virtual_cluster(
            viewer=viewers[who], edit=edit, now=NOW, dry_run=dry_run, expected_version=seen
        ),
        whole=lambda: reconfigure(viewer=ADMIN, edits=(edit,), now=NOW),
    )


@MANY
@given(edits=st.lists(EDITS, min_size=1, max_size=3), seen=st.sampled_from([None, None, 1, 2]))
def test_the_preview_of_several_edits_equals_the_edits(
    viewers: dict[str, Viewer], edits: list[Edit], seen: int | None
) -> None:
    check_preview(
        lambda dry_run: reconfigure(
            viewer=ADMIN, edits=edits, now=NOW, dry_run=dry_run, expected_version=seen
        ),
        whole=lambda: reconfigure(viewer=ADMIN, edits=edits, now=NOW),
    )


def test_a_lead_previews_caps_and_nothing_else(viewers: dict[str, Viewer]) -> None:
    def preview(**wanted: Any) -> Outcome:
        edit = ChangeVc(virtual_cluster="vision-a", **wanted)
        lead = viewers["lead"]
        return outcome(lambda: edit_virtual_cluster(viewer=lead, edit=edit, now=NOW, dry_run=True))

    assert preview(values={"max_devices_per_user": 2}).done is not None
    wanted: dict[str, Any]
    for wanted in ({"values": {"note": "x"}}, {"cells": []}, {"pinned": []}, {}):
        refused = preview(**wanted).error
        assert refused is not None
        assert refused.code == "forbidden"


def test_every_column_takes_the_one_path(viewers: dict[str, Viewer]) -> None:
    values = VcValues(
        policy="fair",
        policy_args={},
        shadows=({"policy": "fifo"},),
        max_devices_per_user=3,
        max_opportunistic_devices=5,
        least_isolation="user",
        note="all of it",
    )

    made = CreateVc(name="vision-b", tenant="vision", values=values)
    edit_virtual_cluster(viewer=ADMIN, edit=made, now=NOW)
    changed = change_vc("vision-a", cells=[], **values.columns())

    for row in (VirtualCluster.objects.unscoped().get(name="vision-b"), changed):
        assert VcValues.of(row).columns() == values.columns()
        entry = AuditEntry.objects.unscoped().filter(object_name=row.name).latest("id")
        recorded = {name: value for name, value in entry.after.items() if name in VC_COLUMNS}
        assert recorded.items() >= {"policy": "fair", "note": "all of it"}.items()
        assert {**values.columns(), **recorded} == values.columns()
