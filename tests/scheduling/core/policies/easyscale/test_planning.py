"""EasyScale's planning against all ways of spreading the workers, and its published figure."""

import csv
import itertools
import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies.easyscale.planning import (
    Trainee,
    Workers,
    best_threads,
    growths,
    share_out,
)

KINDS = ("v100", "p100", "t4")


@settings(max_examples=300, deadline=None)
@given(
    most=st.integers(1, 16),
    rates=st.tuples(*(st.sampled_from([0.5, 0.9, 1.0, 1.3, 2.0, 2.7, 3.1]) for _ in KINDS)),
    gpus=st.tuples(*(st.integers(0, 5) for _ in KINDS)),
)
def test_the_step_is_the_shortest_of_all_assignments(most, rates, gpus):
    workers = Workers(most=most, rates={k: [r] for k, r in zip(KINDS, rates, strict=True)})

    found = best_threads(workers, dict(zip(KINDS, gpus, strict=True)))

    brute = min(
        (
            max(a / c for a, c, n in zip(each, rates, gpus, strict=True) if n > 0)
            for each in itertools.product(*(range(most + 1) if n else (0,) for n in gpus))
            if sum(a * n for a, n in zip(each, gpus, strict=True)) >= most
        ),
        default=None,
    )
    if brute is None:
        assert found is None
        return
    assert found is not None
    assert found.step_seconds == pytest.approx(brute, rel=1e-9)
    assert found.performance == pytest.approx(most / brute)
    held = sum(found.gpus[k] * found.executors[k] * found.threads[k] for k in found.gpus)
    assert held >= most
    assert all(found.gpus[k] <= n for k, n in zip(KINDS, gpus, strict=True) if k in found.gpus)
    power = sum(n * rates[KINDS.index(kind)] for kind, n in found.gpus.items())
    assert found.waste == pytest.approx(1 - found.performance / power, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    most=st.integers(1, 10),
    slowdown=st.sampled_from([0.4, 0.6, 0.9]),
    gpus=st.integers(1, 4),
)
def test_several_executors_are_used_where_they_shorten_the_step(most, slowdown, gpus):
    rates = [2.0, 2.0 * slowdown]
    workers = Workers(most=most, rates={"a": rates})

    found = best_threads(workers, {"a": gpus})

    brute = min(
        math.ceil(most / (gpus * executors)) / rate
        for executors, rate in enumerate(rates, start=1)
    )
    assert found is not None
    assert found.step_seconds == pytest.approx(brute)


def test_seven_gpus_are_no_better_than_four_for_eight_workers():
    workers = Workers(most=8, rates={"v100": [1.0]})

    seven = best_threads(workers, {"v100": 7})
    four = best_threads(workers, {"v100": 4})

    assert seven == four
    assert four is not None
    assert four.waste == 0.0


def test_a_proposal_at_most_doubles_and_takes_one_type_only():
    workers = Workers(most=16, rates={"v100": [2.0], "t4": [1.0]})
    now = best_threads(workers, {"v100": 2})
    assert now is not None

    found = growths(workers, now, {"v100": 9, "t4": 9}, most_waste=0.3)

    assert set(found) == {"v100", "t4"}
    for kind, (grown, pays) in found.items():
        other = {"v100", "t4"} - {kind}
        assert pays > 0
        assert grown.total <= 4
        assert grown.waste <= 0.3
        assert all(grown.gpus.get(k, 0) == now.gpus.get(k, 0) for k in other)


def trainee(job: int, *, gpus: dict[str, int] | None = None, **facts: Any) -> Trainee:
    workers = Workers(most=8, rates={"v100": [2.0], "t4": [1.0]})
    return Trainee(id=job, workers=workers, types=("v100", "t4"), gpus=gpus or {}, **facts)


def test_who_waits_is_admitted_before_anybody_grows():
    found = share_out(
        [trainee(1, gpus={"v100": 1}), trainee(2), trainee(3)], {"v100": 1, "t4": 1}, most_waste=1
    )

    assert found[1].gpus == {"v100": 1}
    assert found[2].gpus == {"v100": 1}
    assert found[3].gpus == {"t4": 1}


def test_what_was_tried_and_failed_is_not_proposed_again():
    one = {"v100": 1}

    free = share_out([trainee(1, gpus=one, mixes=False)], {"v100": 1}, most_waste=1)
    barred = share_out(
        [trainee(1, gpus=one, mixes=False, barred=({"v100": 2},))], {"v100": 1}, most_waste=1
    )

    assert free[1].gpus == {"v100": 2}
    assert barred[1].gpus == one


@settings(max_examples=100, deadline=None)
@given(
    holdings=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5),
    free=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_nobody_loses_and_no_gpu_is_given_twice(holdings, free):
    jobs = [
        trainee(i, gpus={k: n for k, n in zip(("v100", "t4"), held, strict=True) if n})
        for i, held in enumerate(holdings)
    ]

    found = share_out(jobs, dict(zip(("v100", "t4"), free, strict=True)), most_waste=0.3)

    for position, kind in enumerate(("v100", "t4")):
        given_out = sum(threads.gpus.get(kind, 0) for threads in found.values())
        assert given_out <= sum(held[position] for held in holdings) + free[position]
    for job in jobs:
        if job.gpus:
            kept = best_threads(job.workers, job.gpus)
            assert kept is not None
            assert found[job.id].performance >= kept.performance


# Samples that an epoch takes, and GPUs of the published simulation.
SAMPLES = {
    "resnet50": 12_800,
    "vgg19": 12_800,
    "shufflenetv2": 12_800,
    "swintransformer": 12_800,
    "yolov3": 165.51,
    "bert": 886.41,
    "electra": 886.41,
    "ncf": 49_708.45,
}
CLUSTER = {"v100": 32, "p100": 16, "t4": 16}


@pytest.fixture(scope="module")
def jobs(shared_dir):
    folder = shared_dir / "data/easyscale"
    if not folder.is_dir():
        pytest.skip(f"no workload of EasyScale at {folder}")
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    batch: dict[str, int] = {}
    with (folder / "determinism_overhead.csv").open() as lines:
        for row in csv.DictReader(lines):
            name = {"NeuMF": "ncf"}.get(row["model"], row["model"].lower())
            seconds[name][row["gpu"]] = float(row["ddp_determinism"])
            batch[name] = int(row["bs"])
    # A step with a smaller batch than the measured one is taken to be no shorter.
    with (folder / "workload_67jobs.csv").open() as lines:
        rows = list(csv.reader(lines))[1:]
    # A name that stands twice is one job there, with the values of its last row.
    named = {row[0]: row for row in rows}
    return [
        {
            "submit": float(row[1]),
            "most": int(row[3]),
            "rates": {
                kind: [1 / (each * max(1.0, int(row[4]) / batch[row[2]]))]
                for kind, each in seconds[row[2]].items()
            },
            "work": float(row[5]) * SAMPLES[row[2]] / int(row[4]),
            "mixes": row[6] == "1",
            "preferred": row[7],
        }
        for row in named.values()
    ]


def run(jobs, *, mixing: bool) -> tuple[float, float]:
    """Mean completion time and makespan under EasyScale in 60-second rounds."""
    done: dict[int, float] = defaultdict(float)
    ended: dict[int, float] = {}
    held: dict[int, dict[str, int]] = {}
    now = 0.0
    while len(ended) < len(jobs):
        now += 60.0
        active = [i for i, job in enumerate(jobs) if job["submit"] <= now and i not in ended]
        trainees = []
        for i in active:
            mixes = mixing and jobs[i]["mixes"]
            kinds = sorted(KINDS, key=lambda kind: kind != jobs[i]["preferred"])
            workers = Workers(most=jobs[i]["most"], rates=jobs[i]["rates"])
            trainees.append(
                Trainee(
                    id=i,
                    workers=workers,
                    types=tuple(kinds) if mixes else (jobs[i]["preferred"],),
                    gpus=held.get(i, {}),
                    mixes=mixes,
                )
            )
        free = {
            kind: n - sum(gpus.get(kind, 0) for i, gpus in held.items() if i in active)
            for kind, n in CLUSTER.items()
        }
        plans = share_out(trainees, free, most_waste=0.3)
        held = {i: dict(plan.gpus) for i, plan in plans.items()}
        for i, plan in plans.items():
            left = (jobs[i]["work"] - done[i]) / plan.performance
            if left <= 60.0:
                ended[i] = now + left
            done[i] += plan.performance * 60.0
    return (
        sum(ended[i] - job["submit"] for i, job in enumerate(jobs)) / len(jobs),
        max(ended.values()),
    )


def run_one_by_one(jobs) -> tuple[float, float]:
    """The published baseline: one job at a time, with as many GPUs as logical workers."""
    now, total = 0.0, 0.0
    for job in sorted(jobs, key=lambda job: job["submit"]):
        gpus = job["most"]
        begin = max(now, job["submit"])
        now = begin + job["work"] / (gpus * job["rates"][job["preferred"]][0])
        total += now - job["submit"]
    return total / len(jobs), now


def test_the_order_of_figure_14_holds(jobs):
    queue = run_one_by_one(jobs)
    alike = run(jobs, mixing=False)
    mixed = run(jobs, mixing=True)

    assert queue[0] > 5 * alike[0]
    assert alike[0] > 1.5 * mixed[0]
    assert queue[1] > alike[1] > mixed[1]
