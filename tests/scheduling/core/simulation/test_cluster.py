"""The simulated cluster: costs of starts, failures, resizes, changes from outside, the record."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.cells import Quota, VcSpec
from scheduling.core.jobspec import Demand
from scheduling.core.policies.base import rigid_alloc
from scheduling.core.policy_interface import Alloc, Part, Plan, Snapshot
from scheduling.core.simulation import (
    ClusterChange,
    HealthChange,
    ModelSpeedup,
    Overhead,
    QueueChange,
    SimulatedCluster,
    SimulationSettings,
)
from scheduling.core.simulation.job_table import RETRY_SECONDS
from scheduling.core.storages import StorageFacts
from scheduling.core.values import ClusterSnapshot, JobFacts, QueuedJob, RunObservation
from tests.factories.policies import making
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    SPEC,
    VISION,
    VISION_MINE,
    cluster_snapshot,
    elastic_facts,
    queued_job,
)

SETTINGS = SimulationSettings(grace=10.0)


def run(world: SimulatedCluster) -> SimulatedCluster:
    world.decide()
    while (due := world.next_time()) is not None:
        world.advance(due)
        world.decide()
    return world


def simulate(snapshot: ClusterSnapshot, work: Mapping[int, float], **more: Any) -> Any:
    more.setdefault("settings", SETTINGS)
    return run(SimulatedCluster(snapshot, work.__getitem__, **more)).record


def urgent(at: float) -> tuple[QueuedJob, JobFacts]:
    return replace(queued_job(2, 8, priority=100), submitted=at), JobFacts()


def test_a_start_and_a_restart_cost_time_without_progress() -> None:
    record = simulate(
        cluster_snapshot(queued_job(1, 8)),
        {1: 200.0, 2: 100.0},
        arrivals=[urgent(NOW + 50.0)],
        overhead=lambda job_id: Overhead(start=5.0, restart=20.0 * (job_id == 1)),
    )

    assert record.starts == {1: NOW, 2: NOW + 60.0}
    assert record.ends == {2: NOW + 165.0, 1: NOW + 165.0 + 25.0 + 155.0}
    assert (record.preemptions[1], record.restarts[1], record.failures[1]) == (1, 1, 0)
    assert record.device_seconds == {1: 8 * (60.0 + 180.0), 2: 8 * 105.0}


@pytest.mark.parametrize(
    ("checkpoint", "lost"), [(None, 0.0), (60.0, 30.0), (1000.0, 150.0), (0.0, 0.0)]
)
def test_a_failed_node_restarts_its_jobs_from_the_last_checkpoint(
    checkpoint: float | None, lost: float
) -> None:
    world = SimulatedCluster(
        cluster_snapshot(queued_job(1, 8)),
        lambda _job: 400.0,
        settings=SETTINGS,
        events=[
            HealthChange(at=NOW + 150.0, node=node, healthy=False)
            for node in ("node-1", "node-2", "node-3")
        ]
        + [HealthChange(at=NOW + 1000.0, node="node-2", healthy=True)],
        overhead=lambda _job: Overhead(checkpoint=checkpoint),
    )

    record = run(world).record

    assert record.failures == {1: 1}
    assert record.ends == {1: NOW + 1000.0 + 250.0 + lost}


def test_a_failed_device_interrupts_only_the_jobs_on_it() -> None:
    jobs = [queued_job(1, 4), queued_job(2, 4)]
    first = SimulatedCluster(cluster_snapshot(*jobs), lambda _job: 100.0)
    first.decide()
    leaf = first.holding[1].members[0][0].address
    node, index = leaf.partition("/")[0], int(leaf.rpartition("/")[2])

    record = simulate(
        cluster_snapshot(*jobs),
        {1: 100.0, 2: 100.0},
        events=[HealthChange(at=NOW + 50.0, node=node, device=index, healthy=False)],
    )

    assert record.failures == {1: 1}
    assert record.ends[2] == NOW + 100.0


def grow_later(view: Snapshot) -> Plan:
    allocs = {job.id: job.alloc or rigid_alloc(job) for job in view.jobs}
    if view.now >= NOW + 400.0:
        allocs = {job_id: Alloc(parts=(Part(n=8, type="a"),)) for job_id in allocs}
    return Plan(allocs=allocs, order=tuple(allocs))


def elastic() -> ClusterSnapshot:
    return cluster_snapshot(
        queued_job(1, 4),
        vcs=(LANGUAGE, VISION_MINE),
        known={1: replace(elastic_facts(1, 8, 4), asked=queued_job(1, 4).demand)},
    )


def test_a_resized_job_runs_on_in_proportion_without_a_model() -> None:
    wake = [QueueChange(at=NOW + 400.0, job_id=99, job=None)]

    record = simulate(elastic(), {1: 1000.0}, events=wake, make=making(grow_later))

    assert (record.preemptions[1], record.restarts[1]) == (1, 1)
    assert record.ends == {1: NOW + 410.0 + 300.0}


def test_a_resized_job_has_the_speed_of_its_performance_model() -> None:
    seen = tuple(
        RunObservation(
            type="a", nodes=1, devices=n, seconds=100.0, steps=steps, samples=float(steps)
        )
        for n, steps in ((4, 100), (8, 150))
    )
    snapshot = elastic()
    known = {1: replace(snapshot.known[1], seen=seen)}
    speedup = ModelSpeedup({1: snapshot.queued[0]}, known)
    wake = [QueueChange(at=NOW + 400.0, job_id=99, job=None)]

    record = simulate(snapshot, {1: 1000.0}, events=wake, make=making(grow_later), speedup=speedup)

    assert record.ends == {1: pytest.approx(NOW + 410.0 + 600.0 / 1.5)}


def change(at: float, **changes: Any) -> ClusterChange:
    base = cluster_snapshot()
    values = {
        "spec": SPEC,
        "topology_version": 2,
        "vcs": base.vcs,
        "nodes": base.nodes,
        "bad_devices": frozenset(),
        "device_memory": {},
        **changes,
    }
    return ClusterChange(at=at, **values)


def guarantee(cells: int) -> Any:
    quota = Quota(chain="a-node", level="a-node", count=cells)
    return replace(
        SPEC, virtual_clusters={**SPEC.virtual_clusters, "vision-a": VcSpec(quotas=(quota,))}
    )


def test_a_larger_guarantee_starts_the_next_job_at_its_time() -> None:
    smaller = replace(
        guarantee(2),
        virtual_clusters={
            **guarantee(2).virtual_clusters,
            "language-a": VcSpec(quotas=(Quota(chain="a-node", level="a-node", count=1),)),
        },
    )

    record = simulate(
        cluster_snapshot(queued_job(1, 8), queued_job(2, 8)),
        {1: 500.0, 2: 500.0},
        events=[change(NOW + 100.0, spec=smaller)],
    )

    assert record.starts == {1: NOW, 2: NOW + 100.0}


def test_a_job_starts_when_a_node_reports_its_storage() -> None:
    job = queued_job(1, 8)
    member = replace(job.demand.members[0], storages=("sets",))
    snapshot = cluster_snapshot(replace(job, demand=Demand(members=(member,))))
    nodes = frozenset(node.name for node in snapshot.nodes)
    vcs = frozenset(vc.id for vc in snapshot.vcs)
    absent = {"sets": StorageFacts(vcs=vcs, nodes=frozenset())}
    present = {"sets": StorageFacts(vcs=vcs, nodes=nodes)}

    record = simulate(
        replace(snapshot, storages=absent),
        {1: 500.0},
        events=[change(NOW + 100.0, storages=present)],
    )

    assert record.starts == {1: NOW + 100.0}


def test_a_job_on_a_removed_node_is_interrupted() -> None:
    world = SimulatedCluster(cluster_snapshot(queued_job(1, 8)), lambda _job: 500.0)
    world.decide()
    node = world.holding[1].members[0][0].address.partition("/")[0]
    rest = replace(
        SPEC,
        physical=tuple(cell for cell in SPEC.physical if cell.address != node),
        virtual_clusters={"vision-a": SPEC.virtual_clusters["vision-a"]},
    )
    nodes = tuple(one for one in cluster_snapshot().nodes if one.name != node)

    record = simulate(
        cluster_snapshot(queued_job(1, 8)),
        {1: 500.0},
        events=[change(NOW + 100.0, spec=rest, nodes=nodes)],
    )

    assert record.failures == {1: 1}
    assert record.starts == {1: NOW}
    assert record.ends == {1: NOW + 500.0 + RETRY_SECONDS}


def test_an_unhealthy_node_in_a_change_of_the_cluster_interrupts_nothing() -> None:
    nodes = tuple(replace(one, healthy=False) for one in cluster_snapshot().nodes)

    record = simulate(
        cluster_snapshot(queued_job(1, 8), queued_job(2, 8)),
        {1: 500.0, 2: 500.0},
        events=[
            change(NOW + 100.0, nodes=nodes),
            change(NOW + 800.0),
        ],
    )

    assert record.ends == {1: NOW + 500.0, 2: NOW + 800.0 + 500.0}


def test_another_policy_takes_effect_at_its_time() -> None:
    shortest = replace(VISION, policy="srtf")
    known = {
        n: JobFacts(terms=replace(elastic_facts(1, 8, 8).terms, scale=None, estimate=seconds))
        for n, seconds in ((1, 100.0), (2, 900.0), (3, 50.0))
    }
    jobs = [queued_job(n, 8) for n in (1, 2, 3)]

    record = simulate(
        cluster_snapshot(*jobs, known=known),
        {1: 100.0, 2: 900.0, 3: 50.0},
        events=[change(NOW + 50.0, vcs=(LANGUAGE, shortest))],
    )

    assert record.starts == {1: NOW, 3: NOW + 100.0, 2: NOW + 150.0}


def test_a_withdrawn_job_never_starts_and_an_amended_one_starts_as_it_is_then() -> None:
    record = simulate(
        cluster_snapshot(queued_job(1, 8), queued_job(2, 8), queued_job(3, 16)),
        {1: 100.0, 2: 100.0, 3: 100.0},
        events=[
            QueueChange(at=NOW + 10.0, job_id=2, job=None),
            QueueChange(at=NOW + 20.0, job_id=3, job=queued_job(3, 4)),
        ],
    )

    assert record.starts == {1: NOW, 3: NOW + 100.0}
