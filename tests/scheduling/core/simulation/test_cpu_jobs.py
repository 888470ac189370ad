"""Jobs without devices in a simulation: decisions as in live rounds, and no pool overflows."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.cpu_pools import in_use, sizes_of
from scheduling.core.round.decide import decide
from scheduling.core.simulation.cluster import SimulatedCluster
from scheduling.core.simulation.events import HealthChange
from scheduling.core.values import ClusterSnapshot
from tests.factories.cpu_jobs import cpu_job, cpu_work, held, pools, snapshot_of
from tests.factories.rounds import NOW, queued_job


def world_of(snapshot: ClusterSnapshot, **more: Any) -> SimulatedCluster:
    return SimulatedCluster(snapshot, lambda job: 100.0 + job % 7, **more)


def run_to_the_end(world: SimulatedCluster) -> None:
    for _ in range(500):
        before = world.snapshot()
        expected = decide(before)
        result = world.decide()
        assert result.cpu_starts == expected.cpu_starts
        assert result.cpu_preemptions == expected.cpu_preemptions
        after = world.snapshot()
        sizes = sizes_of(after.cpu_pools)
        gone = {one.job.id for one in after.cpu_holding if one.job.leaving}
        staying = [x for one in after.cpu_holding if one.job.id not in gone for x in one.leases]
        for node, amount in in_use(staying).items():
            assert amount.within(sizes[node])
        due = world.next_time()
        if due is None:
            return
        world.advance(due)
    raise AssertionError("the simulation does not end")


def test_jobs_run_one_after_the_other_and_beside_jobs_with_devices():
    snapshot = snapshot_of(
        cpu_job(1, 6.0), cpu_job(2, 6.0), pooled=pools(8), queued=(queued_job(3, 8),)
    )
    world = world_of(snapshot)
    run_to_the_end(world)

    assert world.record.ends.keys() == {1, 2, 3}
    first, second = sorted((1, 2), key=world.record.starts.__getitem__)
    assert world.record.starts[first] == world.record.starts[3] == NOW
    assert world.record.starts[second] == world.record.ends[first]
    assert world.record.device_seconds[first] == 0.0


def test_a_job_is_preempted_and_starts_again():
    borrower = held(cpu_job(7, 8.0, borrow=True), "node-1")
    snapshot = snapshot_of(cpu_job(1, 8.0), pooled=pools(8), cpu_holding=(borrower,))
    world = world_of(snapshot)
    run_to_the_end(world)

    assert world.record.preemptions[7] == 1
    assert world.record.starts[1] < world.record.ends[1] <= world.record.starts[7]
    assert world.record.ends.keys() == {1, 7}


def test_a_failed_node_interrupts_its_jobs_which_run_elsewhere():
    running = held(cpu_job(7, 4.0), "node-1")
    events = (HealthChange(at=NOW + 10.0, node="node-1", healthy=False),)
    world = world_of(snapshot_of(pooled=pools(8, 8), cpu_holding=(running,)), events=events)
    run_to_the_end(world)

    assert world.record.failures[7] == 1
    assert 7 in world.record.ends


def test_a_dependency_opens_at_the_end_of_a_job_without_devices():
    world = world_of(
        snapshot_of(cpu_job(1), pooled=pools(8), queued=(queued_job(3, 8, after=(1,)),))
    )
    run_to_the_end(world)

    assert world.record.starts[3] == world.record.ends[1]


@given(cpu_work(), st.integers(0, 3))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_simulated_decisions_are_those_of_live_rounds(work: dict[str, Any], jobs: int) -> None:
    snapshot = snapshot_of(queued=tuple(queued_job(n, 8) for n in range(1, jobs + 1)))
    run_to_the_end(world_of(replace(snapshot, **work)))
