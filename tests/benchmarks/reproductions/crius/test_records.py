"""Runs of Crius' artefact, reproduced job by job: starts, shapes and completions."""

import csv
import time

import pytest

from benchmarks.reproductions.crius.devices import Span
from benchmarks.reproductions.crius.policies import CriusPolicy, ElasticFlowPolicy, FifoPolicy
from benchmarks.reproductions.crius.world import CriusWorld
from benchmarks.reproductions.driver import simulate
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.readers import read_trace

CLUSTERS = {
    "1280": "a100:80x4,v100:20x16,a40:160x2,a10:160x2",
    "64": "a100:4x4,v100:1x16,a40:8x2,a10:8x2",
}
CASES = {
    "crius-pai": CriusPolicy(),
    "crius-ns-pai64": CriusPolicy(scaling=False, depth=1),
    "fcfs-pai": FifoPolicy(),
    "fcfs-pai64": FifoPolicy(),
    "elasticflow-l-pai": ElasticFlowPolicy(),
}


def run(shared_dir, trace, cluster, policy):
    """Run a published trace; return the result, and each job's shapes with their first times."""
    data = shared_dir / "data" / "crius-arena"
    path = data / "traces" / trace
    if not path.is_file():
        pytest.skip(f"{path.name} is not on this machine")
    setup = Setup(
        trace=read_trace(path.read_text(), path.name, "crius"),
        cluster=read_cluster(cluster),
        files=lambda name: (data / "perf" / name).read_text(),
        policy=policy,
    )
    world = CriusWorld(setup)
    shapes: dict[str, list[tuple[int, Span]]] = {}

    def note(_state):
        for name, span in world.holdings.items():
            seen = shapes.setdefault(name, [])
            if not seen or seen[-1][1] != span:
                seen.append((int(world.now), span))

    result = simulate(
        world, policy, rules="crius", workload=trace, timer=time.perf_counter, on_round=note
    )
    assert result.fallbacks == ()
    return result, shapes


@pytest.mark.parametrize("case", CASES)
def test_a_public_case_is_reproduced_to_the_last_digit(shared_dir, case):
    cases = shared_dir / "cases" / "crius"
    if not cases.is_dir():
        pytest.skip(f"no cases of Crius at {cases}")
    with (cases / "expected.csv").open() as file:
        figures = next(row for row in csv.DictReader(file) if row["case"] == case)
    with (cases / "expected" / f"{case}.csv").open() as file:
        expected = {row["job"]: row for row in csv.DictReader(file)}
    cluster = CLUSTERS[figures["cluster"]]

    result, shapes = run(shared_dir, figures["trace"], cluster, CASES[case])

    jcts = result.jcts
    assert len(jcts) == int(figures["completed"])
    assert round(sum(jcts) / len(jcts), 1) == float(figures["jct_mean_s"])
    starts = sum(job.restarts for job in result.jobs)
    starts += sum(job.started is not None for job in result.jobs)
    assert starts == int(figures["restarts"])
    for job in result.jobs:
        row = expected[job.name]
        if row["submitted_s"]:
            assert job.submitted == float(row["submitted_s"])
        assert job.started == (float(row["first_start_s"]) if row["first_start_s"] else None)
        assert job.finished == (float(row["completed_s"]) if row["completed_s"] else None)
        held = [
            f"{start}:{span.type}x{span.devices}/{span.nodes}"
            for start, span in shapes.get(job.name, ())
        ]
        assert " ".join(held) == row["holdings"]


#: Mean completion times over completed jobs: of Helios (venus) as published, of the others
#: measured with the artefact's own code.
MEASURED = [
    ("simulate_trace_pai.csv", "64", CriusPolicy(depth=1), 125, 9_993.6),
    ("simulate_trace_pai.csv", "64", CriusPolicy(depth=1, types=False, rounds=400), 115, 15_250.4),
    ("simulate_trace_pai.csv", "64", CriusPolicy(depth=1, opportunistic=False), 125, 11_781.6),
    ("simulate_trace_pai.csv", "64", CriusPolicy(depth=1, deadline=True), 125, 9_993.6),
    ("simulate_trace_pai.csv", "64", CriusPolicy(depth=1, filtered=True), 94, 2_333.0),
    ("simulate_trace_pai.csv", "64", CriusPolicy(depth=1, honest=True), 125, 10_896.0),
    ("simulate_trace_pai.csv", "64", FifoPolicy(relaxed=True), 125, 63_940.8),
    ("simulate_trace_pai.csv", "64", ElasticFlowPolicy(), 80, 4_368.8),
    ("simulate_trace_venus.csv", "1280", CriusPolicy(rounds=500), 438, 5_518.5),
    ("simulate_trace_venus.csv", "1280", FifoPolicy(rounds=500), 437, 14_212.6),
    ("simulate_trace_philly.csv", "1280", CriusPolicy(rounds=250), 41, 20_970.7),
]


@pytest.mark.parametrize("measured", MEASURED)
def test_figures_of_the_artefacts_code_are_reproduced(shared_dir, measured):
    trace, size, policy, completed, mean = measured

    result, _shapes = run(shared_dir, trace, CLUSTERS[size], policy)

    assert len(result.jcts) == completed
    assert round(sum(result.jcts) / completed, 1) == mean


@pytest.mark.soak
@pytest.mark.parametrize(
    ("policy", "completed", "mean"),
    [(FifoPolicy(), 590, 83_192.0), (CriusPolicy(), 828, 41_647.8)],
)
def test_the_published_figures_of_philly_are_reproduced(shared_dir, policy, completed, mean):
    result, _shapes = run(shared_dir, "simulate_trace_philly.csv", CLUSTERS["1280"], policy)

    assert len(result.jcts) == completed
    assert round(sum(result.jcts) / completed, 1) == mean
