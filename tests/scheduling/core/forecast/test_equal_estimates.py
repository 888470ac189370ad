"""Start estimates of fixed snapshots and seeds do not change with the simulation engine."""

import math
from dataclasses import replace

import pytest

from scheduling.core.forecast import HORIZON
from scheduling.core.forecast.durations import RunTime, RunTimes, lineage_of
from scheduling.core.forecast.futures import Past, try_futures
from scheduling.core.policy_interface import Terms
from scheduling.core.simulation import SimulationSettings
from scheduling.core.values import ClusterSnapshot, HoldingJob, JobFacts, QueuedJob
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    VISION,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)

MINE = lineage_of(vc=1, owner=1, application="bert", name="train-7", devices=4)
TIMES = RunTimes([RunTime(lineage=MINE, seconds=100.0 * n) for n in range(1, 30)])
SETTINGS = SimulationSettings(horizon=HORIZON, coarse=0.02, most_waiting=200)
GOLDEN = [
    (
        "fifo",
        (
            0.0,
            0.0,
            120.0,
            2578.405304,
            0.0,
            3829.437875,
            5415.743696,
            0.0,
            3129.227153,
            9924.019853,
            120.0,
            4006.329734,
            11106.511851,
            14586.658026,
            7764.243638,
            8132.064178,
        ),
    ),
    (
        "las",
        (
            0.0,
            0.0,
            120.0,
            2585.543386,
            0.0,
            3829.437875,
            5415.743696,
            0.0,
            3143.479687,
            9924.019853,
            120.0,
            4013.467815,
            11053.649794,
            14561.90061,
            7781.441593,
            8146.316711,
        ),
    ),
    (
        "fair",
        (
            0.0,
            0.0,
            120.0,
            2585.543386,
            0.0,
            3829.437875,
            5415.743696,
            0.0,
            3143.479687,
            9924.019853,
            120.0,
            4013.467815,
            11053.649794,
            14561.90061,
            7781.441593,
            8146.316711,
        ),
    ),
    (
        "tiresias",
        (
            0.0,
            0.0,
            120.0,
            0.0,
            0.0,
            360.0,
            120.0,
            240.0,
            360.0,
            3906.521196,
            3086.204924,
            2683.258846,
            10729.311871,
            14021.093165,
            9342.815806,
            8428.110806,
        ),
    ),
    (
        "sia",
        (
            5527.132905,
            4896.113691,
            4010.392848,
            0.0,
            0.0,
            0.0,
            120.0,
            240.0,
            0.0,
            360.0,
            120.0,
            3912.38225,
            20868.991696,
            12239.58669,
            2920.0,
            19117.659602,
        ),
    ),
]
"""Sums of the waits in four futures by job ID, as the engine before ADR 68 gave them."""


def busy_cluster(policy: str) -> ClusterSnapshot:
    """A cluster with lent devices, priorities, gates, a dependency and a large gang."""
    held = jobs_started_by(
        cluster_snapshot(
            queued_job(90, devices=4),
            queued_job(91, devices=4, vc=LANGUAGE),
            queued_job(92, devices=8, borrow=True),
        )
    )
    waiting = [
        queued_job(
            n, devices=1 + n % 4, vc=(VISION, LANGUAGE)[n % 2], priority=(10, 10, 100)[n % 3]
        )
        for n in range(1, 13)
    ]
    waiting += [
        queued_job(20, devices=8, borrow=True),
        queued_job(21, devices=8, count=2, vc=LANGUAGE),
        queued_job(22, 2, not_before=NOW + 700.0),
        queued_job(23, 1, after=(1,)),
    ]
    live: list[QueuedJob | HoldingJob] = [*waiting, *held]
    known = {
        job.id: JobFacts(
            terms=Terms(tenant=job.tenant, estimate=200.0 * (job.id % 7 + 1)), asked=job.demand
        )
        for job in live
    }
    vcs = (replace(LANGUAGE, policy=policy), replace(VISION, policy=policy))
    return cluster_snapshot(*waiting, vcs=vcs, holding=held, known=known)


@pytest.mark.parametrize(("policy", "expected"), GOLDEN)
def test_estimates_of_fixed_futures_are_those_of_the_first_engine(
    policy: str, expected: tuple[float, ...]
) -> None:
    snapshot = busy_cluster(policy)
    live: list[QueuedJob | HoldingJob] = [*snapshot.queued, *snapshot.holding]
    pasts = {job.id: Past(lineage=MINE) for job in live}

    found = try_futures(snapshot, TIMES, pasts, futures=4, seed=7, settings=SETTINGS)

    sums = tuple(math.fsum(waits) for _, waits in sorted(found.waits.items()))
    assert sums == pytest.approx(expected, rel=1e-9)
