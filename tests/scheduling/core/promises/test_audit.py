"""The audit of the sharing promise: no false alarms on simulated weeks, and planted violations."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from scheduling.common.canonical_json import canonical_json
from scheduling.core.cells import CellEngine
from scheduling.core.jobspec import Demand
from scheduling.core.promises.audit import PromiseReport, audit
from scheduling.core.promises.export import (
    OTHERS,
    AuditedJob,
    DeviceReturn,
    Eviction,
    JobRun,
    OtherUse,
    PromiseExport,
    UnknownFormatError,
    merged_spec,
    read_export,
)
from scheduling.core.promises.figures import Cause, Verdict
from scheduling.core.round.decide import decide
from scheduling.core.simulation import ClusterChange
from scheduling.core.values import HeldLeaf
from tests.factories.promises import DAY, SPEC, VCS, WeekOptions, simulated_week
from tests.factories.rounds import NOW, queued_job

MIDDLE = VCS[1]
POLICIES = ("fifo", "fifo", "srtf", "las", "tessera")


@st.composite
def options(draw: st.DrawFn, seconds: float, policies: Any = ("fifo",)) -> WeekOptions:
    chosen = [draw(st.sampled_from(policies)) for _ in VCS]
    return WeekOptions(
        seconds=seconds,
        load=draw(st.sampled_from([0.5, 0.8, 1.0])),
        policies=chosen,
        round_seconds=draw(st.sampled_from([5.0, 10.0, 60.0])),
        grace=draw(st.sampled_from([0.0, 30.0, 300.0])),
        failures=draw(st.integers(0, 3)),
        cordons=draw(st.integers(0, 3)),
        # Under other policies the audit may report a violation after a change of guarantees
        # that is none (docs/promises.md).
        resizes=draw(st.integers(0, 1)) if set(chosen) == {"fifo"} else 0,
        user_cap=draw(st.sampled_from([None, None, 12])),
        elastic=draw(st.sampled_from([0.0, 0.4])),
    )


def check_no_violation(seed: int, given_options: WeekOptions) -> int:
    history = simulated_week(seed, given_options)
    audited = 0
    for vc in VCS:
        report = audit(history.export(vc))
        assert report.violations == (), (seed, given_options, vc.name)
        audited += len(report.jobs)
    return audited


@given(seed=st.integers(0, 10**6), options=options(DAY / 4, POLICIES))
@example(seed=23, options=WeekOptions(seconds=DAY / 2, failures=1, resizes=1))
@example(
    seed=0,
    options=WeekOptions(
        seconds=DAY / 4, load=0.8, round_seconds=60.0, failures=0, cordons=0, resizes=0
    ),
)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_no_violation_is_reported_on_random_days(seed: int, options: WeekOptions) -> None:
    check_no_violation(seed, options)


@pytest.mark.soak
def test_no_violation_is_reported_on_100_random_weeks_of_32_devices() -> None:
    audited = 0
    for seed in range(100):
        audited += check_no_violation(
            seed,
            WeekOptions(
                load=(0.5, 0.8, 1.0)[seed % 3],
                policies=[POLICIES[(seed // 2 + place) % 5] for place in range(3)],
                round_seconds=(5.0, 10.0, 60.0)[seed // 3 % 3],
                grace=(0.0, 30.0, 300.0)[seed // 9 % 3],
                failures=seed % 4,
                cordons=seed // 4 % 4,
                resizes=seed // 16 % 2,
                user_cap=12 if seed % 5 == 0 else None,
                elastic=0.4 if seed % 2 else 0.0,
            ),
        )
    assert audited > 10_000


def delayed(export: PromiseExport, report: PromiseReport) -> tuple[PromiseExport, int] | None:
    """Delay a start beyond its bound while no other job of the virtual cluster waits."""
    by_id = {job.job.id: job for job in export.jobs}
    for verdict in report.jobs:
        job = by_id[verdict.job]
        if not job.runs or job.runs[0].end is None or verdict.verdict is not Verdict.KEPT:
            continue
        run = job.runs[0]
        later = max(run.start, job.eligible + verdict.private) + 2 * export.allowance(job) + 30.0
        alone = not any(
            other.eligible < later
            and (not other.runs or any(one.start > run.start for one in other.runs))
            for other in export.jobs
            if other is not job and (other.withdrawn is None or other.withdrawn > run.start)
        )
        if alone and run.end is not None and later < min(run.end, export.until):
            late = replace(job, runs=(replace(run, start=later), *job.runs[1:]))
            jobs = tuple(late if one is job else one for one in export.jobs)
            return replace(export, jobs=jobs), job.job.id
    return None


@given(seed=st.integers(0, 10**6), options=options(DAY / 2))
@settings(max_examples=8, deadline=None)
def test_a_planted_delay_is_reported(seed: int, options: WeekOptions) -> None:
    history = simulated_week(
        seed, replace(options, failures=0, cordons=0, resizes=0, user_cap=None)
    )
    planted = 0
    for vc in VCS:
        export = history.export(vc)
        found = delayed(export, audit(export))
        if found is not None:
            planted += 1
            report = audit(found[0])
            (row,) = [row for row in report.jobs if row.job == found[1]]
            assert (row.verdict, row.causes) == (Verdict.VIOLATED, (Cause.DENIED,))
    assume(planted)


def single(*, waits: float = 0.0, devices: int = 8, **changes: Any) -> PromiseExport:
    """One job of the virtual cluster with a node, which starts after ``waits`` seconds."""
    history = simulated_week(1, WeekOptions(seconds=100.0, load=0.0001))
    export = history.export(MIDDLE)
    job = replace(queued_job(1, devices, vc=MIDDLE), submitted=NOW)
    (start,) = decide(replace(export.snapshot, queued=(job,))).starts
    run = JobRun(
        start=NOW + waits, end=NOW + waits + 600.0, members=tuple(m.leaves for m in start.members)
    )
    audited = AuditedJob(job=job, eligible=NOW, runs=(run,), work=600.0)
    return replace(
        export,
        until=NOW + DAY,
        snapshot=replace(export.snapshot, queued=(job,)),
        jobs=(audited,),
        **changes,
    )


def row_of(export: PromiseExport) -> Any:
    (row,) = audit(export).jobs
    return row


def test_a_wait_of_grace_and_two_rounds_is_kept() -> None:
    row = row_of(single(waits=50.0))

    assert (row.own, row.private, row.bound) == (50.0, 0.0, 50.0)
    assert (row.verdict, row.causes) == (Verdict.KEPT, ())


def test_a_longer_wait_on_idle_cells_is_a_violation() -> None:
    row = row_of(single(waits=51.0))

    assert (row.verdict, row.causes, row.denied) == (Verdict.VIOLATED, (Cause.DENIED,), 51.0)


def test_victims_with_a_longer_grace_extend_the_bound() -> None:
    export = single(waits=100.0)
    (job,) = export.jobs

    assert row_of(replace(export, jobs=(replace(job, grace=90.0),))).verdict is Verdict.KEPT


def closed(*names: str, **state: bool) -> Any:
    return lambda export: tuple(
        replace(node, **state) if node.name in names else node for node in export.snapshot.nodes
    )


ALL = ("node-1", "node-2", "node-3", "node-4")


@pytest.mark.parametrize(
    ("nodes", "verdict", "causes"),
    [
        (closed("node-1", healthy=False), Verdict.EXCEEDED, (Cause.HARDWARE,)),
        (closed("node-1", placeable=False), Verdict.EXCEEDED, (Cause.ADMIN,)),
        (closed(), Verdict.VIOLATED, (Cause.DENIED,)),
    ],
)
def test_unusable_nodes_are_causes_if_no_spare_node_is_left(
    nodes: Any, verdict: Verdict, causes: tuple[Cause, ...]
) -> None:
    export = single(waits=500.0)
    state = replace(export.snapshot, nodes=nodes(export))

    row = row_of(replace(export, snapshot=state))

    assert (row.verdict, row.causes) == (verdict, causes)


def test_a_spare_node_covers_one_unusable_node() -> None:
    export = single(waits=500.0)
    spec = replace(
        SPEC, virtual_clusters={"middle": SPEC.virtual_clusters["middle"], OTHERS: single_pair()}
    )
    state = replace(export.snapshot, spec=spec, nodes=closed("node-1", healthy=False)(export))

    assert row_of(replace(export, snapshot=state)).verdict is Verdict.VIOLATED


def single_pair() -> Any:
    return SPEC.virtual_clusters["large"]


def test_time_before_the_repair_does_not_count() -> None:
    export = single(waits=500.0)
    repaired = ClusterChange(
        at=NOW + 470.0,
        spec=export.snapshot.spec,
        topology_version=1,
        vcs=export.snapshot.vcs,
        nodes=export.snapshot.nodes,
        bad_devices=frozenset(),
        device_memory={},
    )
    state = replace(export.snapshot, nodes=closed(*ALL, healthy=False)(export))
    export = replace(export, snapshot=state, changes=(repaired,))

    assert row_of(export).causes == (Cause.HARDWARE,)
    assert row_of(replace(export, changes=(replace(repaired, at=NOW + 400.0),))).causes == (
        Cause.DENIED,
    )


def test_delays_of_earlier_jobs_add_up_without_a_violation() -> None:
    export = single(waits=40.0)
    (first,) = export.jobs
    run = replace(first.runs[0], start=NOW + 660.0, end=NOW + 710.0)
    job = replace(first.job, id=2, submitted=NOW + 1.0)
    second = replace(first, job=job, eligible=NOW + 1.0, runs=(run,), work=50.0)

    _, row = audit(replace(export, jobs=(first, second))).jobs

    assert (row.own, row.private, row.bound) == (659.0, 599.0, 649.0)
    assert (row.verdict, row.causes) == (Verdict.EXCEEDED, (Cause.EARLIER_JOBS,))


def test_a_cap_that_other_jobs_of_the_owner_reach_is_a_cause() -> None:
    use = OtherUse(owner=1, in_vc=True, devices=8, start=NOW - 10.0, end=NOW + 480.0)
    export = single(waits=500.0, other_use=(use,))
    (vc,) = export.snapshot.vcs
    capped = replace(export.snapshot, vcs=(replace(vc, max_devices_per_user=8),))

    row = row_of(replace(export, snapshot=capped))

    assert (row.verdict, row.causes) == (Verdict.EXCEEDED, (Cause.CAP,))


def test_a_request_that_cells_do_not_cover_is_a_cause() -> None:
    export = single(waits=500.0)
    (job,) = export.jobs
    (member,) = job.job.demand.members
    pair = Demand(members=(replace(member, devices=4), replace(member, devices=4, role="b")))
    parts = replace(pair, members=(pair.members[0], replace(pair.members[1], device_types=("a",))))
    job = replace(job, job=replace(job.job, demand=parts))
    state = replace(export.snapshot, queued=(job.job,))

    row = row_of(replace(export, snapshot=state, jobs=(job,)))

    assert (row.verdict, row.causes) == (Verdict.EXCEEDED, (Cause.REQUEST,))


def test_an_eviction_for_another_virtual_cluster_is_a_violation() -> None:
    row = row_of(single(evictions=(Eviction(job=1, at=NOW + 60.0),)))

    assert (row.verdict, row.causes) == (Verdict.VIOLATED, (Cause.EVICTED,))


def test_a_job_on_a_lost_guarantee_has_no_private_cell() -> None:
    """Its guarantee was reduced: the private cluster has no cells for it either."""
    export = single(waits=500.0)
    spec = merged_spec(SPEC, "small")
    bare = {**spec.virtual_clusters, "middle": replace(spec.virtual_clusters["small"], quotas=())}
    state = replace(export.snapshot, spec=replace(spec, virtual_clusters=bare))
    (job,) = export.jobs
    export = replace(export, snapshot=state, jobs=(replace(job, runs=(), work=None),))

    row = row_of(export)

    assert (row.own, row.private, row.verdict) == (DAY, DAY, Verdict.KEPT)


def test_use_guarantee_and_returns_are_in_the_document() -> None:
    returns = (DeviceReturn(job=1, devices=4, asked=NOW, released=NOW + 20.0),)
    document = audit(single(waits=20.0, returns=returns)).to_json()

    assert document["guaranteed_device_hours"] == 192.0
    assert document["used_device_hours"] == pytest.approx(8 * 600 / 3600, abs=1e-4)
    assert document["verdicts"] == {"kept": 1, "exceeded": 0, "violated": 0}
    assert document["own_wait_s"]["p50"] == 20.0
    assert document["private_wait_s"]["max"] == 0.0
    assert document["returned_devices"] == 4
    assert document["return_s"] == {"p50": 20.0, "p90": 20.0, "p99": 20.0, "max": 20.0}
    assert document["returns"] == [{"job": 1, "devices": 4, "seconds": 20.0}]


@given(seed=st.integers(0, 10**6), options=options(DAY / 12, POLICIES))
@settings(max_examples=3, deadline=None)
def test_an_export_survives_its_json(seed: int, options: WeekOptions) -> None:
    export = simulated_week(seed, options).export(VCS[0])

    again = read_export(orjson.loads(canonical_json(export)))

    assert audit(again).to_json() == audit(export).to_json()


def test_an_export_of_another_format_is_refused() -> None:
    with pytest.raises(UnknownFormatError, match="format 2"):
        read_export({"format": 2})


def test_merged_guarantees_still_fit() -> None:
    merged = merged_spec(SPEC, "small")

    CellEngine(merged)
    assert set(merged.virtual_clusters) == {"small", OTHERS}
    assert [quota.count for quota in merged.virtual_clusters[OTHERS].quotas] == [3]


def test_devices_of_a_run_are_where_they_were() -> None:
    (job,) = single().jobs

    assert all(isinstance(leaf, HeldLeaf) for one in job.runs[0].members for leaf in one)
