"""The rules of Pollux's artefact: its record to the second, and each rule by itself."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reproductions.driver import simulate
from benchmarks.reproductions.pollux.traces import read_pollux
from benchmarks.reproductions.pollux.world import PolluxWorld
from scheduling.core.policies.optimus import Optimus
from scheduling.core.policies.pollux import Pollux
from scheduling.core.policies.tiresias import Tiresias
from scheduling.core.policy_interface import Alloc, Part, Plan
from scheduling.core.simulation.results import Result
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import (
    FileReader,
    Knowledge,
    SimulationError,
    Trace,
    TraceError,
    TraceJob,
)

ORACLE = Knowledge(oracle=True, size_aware=True)

# cifar10 with made-up figures: a step of the initial batch takes 1 s on 1, 2 and 4 devices.
STEP = "placement,local_bsz,step_time,sync_time\n"
FILES = {
    "cifar10/placements.csv": STEP
    + "".join(
        f"{placement},{local},{seconds},0.0\n"
        for placement in ("1", "2", "3", "4", "44")
        for local, seconds in ((16, 0.5), (128, 1.0), (256, 2.0))
    ),
    "cifar10/scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
    "3,3,16,1.0,0.5\n3,12,128,4.0,2.0\n",
    **{
        f"cifar10/validation-{batch}.csv": "progress,iteration,metric,grad_sqr,grad_var\n"
        + "".join(f"{100 * e},{100 * e},0.5,1.0,0.0\n" for e in range(1, 101))
        for batch in (128, 256)
    },
}


def files_of(folder: Path) -> FileReader:
    def read(path: str) -> str | None:
        return (folder / path).read_text() if (folder / path).exists() else None

    return read


def world_of(
    *jobs: TraceJob,
    files: Mapping[str, str] = FILES,
    cluster: str = "t4:2x4",
    knowledge: Knowledge = ORACLE,
) -> PolluxWorld:
    return PolluxWorld(
        Setup(
            trace=Trace(name="made up", format="pollux", jobs=jobs),
            cluster=read_cluster(cluster),
            files=files.get,
            knowledge=knowledge,
        )
    )


def job(name: str = "a", **rest: Any) -> TraceJob:
    values = {"submitted": 0.0, "devices": 1, "application": "cifar10", "batch": 128, **rest}
    return TraceJob(name=name, **values)


def plan_of(*allocs: tuple[int, int, tuple[int, ...] | None]) -> Plan:
    """A plan from (job, devices, devices by node)."""
    return Plan(
        allocs={
            index: Alloc(parts=(Part(n=n, type="t4"),), batch=128, layout=layout)
            for index, n, layout in allocs
        },
        order=tuple(index for index, _, _ in allocs),
    )


def next_round(world: PolluxWorld, plan: Plan) -> None:
    time = world.next_time(None)
    assert time is not None
    world.advance(time)
    assert world.snapshot() is not None
    world.apply(plan)


def progress(world: PolluxWorld) -> list[float]:
    snapshot = world.snapshot()
    assert snapshot is not None
    return [job.facts.steps_done for job in snapshot.jobs]


def simulated(shared: Path, number: int, policy: Any, knowledge: Knowledge) -> Result:
    path = shared / "data" / "pollux" / "workloads" / f"workload-{number}.csv"
    setup = Setup(
        trace=read_pollux(path.read_text(), path.name),
        cluster=read_cluster("t4:16x4"),
        files=files_of(shared / "data" / "pollux" / "traces"),
        knowledge=knowledge,
    )
    world = PolluxWorld(setup)
    return simulate(world, policy, rules="pollux", workload=path.stem, timer=time.process_time)


def recorded(shared: Path, policy: str, number: int) -> dict[str, int]:
    name = f"results-jobload-{policy}-1.0-summary.json"
    document = json.loads((shared / "data" / "pollux" / "oracle" / name).read_text())
    found: dict[str, int] = document["jcts"][f"workload-{number}"]
    return found


def completion_times(result: Result) -> dict[str, float]:
    ends = ((job.name, job.submitted, job.finished) for job in result.jobs)
    return {name: end - begin for name, begin, end in ends if end is not None}


@pytest.fixture
def records(shared_dir: Path) -> Path:
    if not (shared_dir / "data" / "pollux" / "oracle").is_dir():
        pytest.skip("the shared folder has no records of Pollux's simulator")
    return shared_dir


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_tiresias_gives_every_recorded_completion_time_to_the_second(records, number):
    result = simulated(records, number, Tiresias(), Knowledge())

    assert completion_times(result) == recorded(records, "tiresias", number)
    assert not result.fallbacks


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_optimus_gives_every_recorded_completion_time_to_the_second(records, number):
    result = simulated(records, number, Optimus(), ORACLE)

    assert completion_times(result) == recorded(records, "optimus", number)
    assert not result.fallbacks


@pytest.mark.soak
def test_pollux_comes_within_five_percent_of_the_recorded_mean(records):
    jcts: list[float] = []
    record: list[int] = []
    for number in (1, 2, 3, 4):
        jcts += simulated(records, number, Pollux(), Knowledge()).jcts
        record += recorded(records, "pollux", number).values()

    assert len(jcts) == len(record) == 640
    assert sum(jcts) == pytest.approx(sum(record), rel=0.05)


def test_the_first_decision_is_after_one_round_and_a_start_takes_half_a_minute():
    world = world_of(job())

    next_round(world, plan_of((0, 1, None)))
    world.advance(120.0)

    assert progress(world) == [30.0]
    assert world.records()[0].started == 60.0


def test_other_nodes_of_the_same_shape_are_a_restart():
    world = world_of(job())
    next_round(world, plan_of((0, 1, (1, 0))))
    next_round(world, plan_of((0, 1, (0, 1))))

    world.advance(180.0)

    assert progress(world) == [60.0]
    assert world.records()[0].restarts == 1


def test_a_job_whose_count_stays_keeps_its_nodes():
    world = world_of(job(), job("b"))
    next_round(world, plan_of((0, 1, (0, 1)), (1, 1, (0, 1))))
    next_round(world, plan_of((1, 1, None), (0, 1, None)))

    world.advance(180.0)

    assert progress(world) == [90.0, 90.0]


def test_to_lose_everything_is_free_and_to_come_back_is_not():
    world = world_of(job())
    next_round(world, plan_of((0, 1, (1, 0))))
    next_round(world, plan_of())
    next_round(world, plan_of((0, 1, (1, 0))))

    world.advance(240.0)

    assert progress(world) == [60.0]
    assert world.records()[0].gpu_seconds == 120.0


def test_what_is_left_of_a_restart_is_paid_in_the_next_round():
    setup_interval = 20.0
    world = PolluxWorld(
        Setup(
            trace=Trace(name="x", format="pollux", jobs=(job(),)),
            cluster=read_cluster("t4:2x4"),
            files=FILES.get,
            interval=setup_interval,
        )
    )
    for _ in range(3):
        next_round(world, plan_of((0, 1, (1, 0))))

    assert progress(world) == [10.0]


def test_others_take_from_the_node_with_most_free_devices():
    world = world_of(job(devices=3), job("b", devices=2), job("c", devices=3))

    next_round(world, plan_of((0, 3, None), (1, 2, None), (2, 3, None)))

    jobs = world.timeline()["jobs"]
    assert [jobs[name]["placement"] for name in "abc"] == [[3], [2], [2, 1]]


def test_an_epoch_ends_at_a_whole_second_and_the_job_with_the_last_one():
    world = world_of(job())
    while not world.finished:
        next_round_or_end(world)

    (record,) = world.records()
    assert record.finished == 60.0 + 30.0 + 100 * 100


def next_round_or_end(world: PolluxWorld) -> None:
    time = world.next_time(None)
    assert time is not None
    world.advance(time)
    if world.snapshot() is not None:
        world.apply(plan_of((0, 1, None)))


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("placements", None, "its profile needs cifar10/placements.csv"),
        ("scalability", None, "its profile needs cifar10/placements.csv and cifar10/scalability"),
        ("placements", STEP + "1,16,-1,0\n", "cifar10/placements.csv:2: step_time is -1"),
        ("placements", STEP + "10,16,1,0\n", "cifar10/placements.csv:2: placement is '10'"),
        ("placements", STEP, "cifar10/placements.csv: has no placements"),
        ("validation-128", None, "file not found: cifar10/validation-128.csv"),
        (
            "validation-256",
            "progress,iteration,metric,grad_sqr,grad_var\n1,x,1,1,1\n",
            "cifar10/validation-256.csv:2: iteration is 'x'",
        ),
    ],
)
def test_a_profile_that_is_wrong_is_named(path, text, said):
    files = {**FILES, f"cifar10/{path}.csv": text}
    if text is None:
        del files[f"cifar10/{path}.csv"]

    with pytest.raises((SimulationError, TraceError)) as caught:
        world_of(job(), files=files)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "cluster", "said"),
    [
        (job(application="gpt9"), "t4:2x4", "unknown application 'gpt9'"),
        (job(batch=512), "t4:2x4", "a: batch_size is 512; cifar10 takes 128 to 256"),
        (job(), "t4:2x4,v100:1x8", "one device type"),
    ],
)
def test_a_simulation_that_the_rules_do_not_know_is_refused(bad, cluster, said):
    with pytest.raises(SimulationError, match=said):
        world_of(bad, cluster=cluster)
