"""Rounds, shadows and futures may be worked out at once in the threads of one process.

Workers of the queue ``default`` run estimates and shadows in threads, and web processes ask what
would become of a job beside them: what processes keep between two answers must not tell.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier
from typing import TypeVar

from scheduling.core.forecast.durations import RunTime, RunTimes, lineage_of
from scheduling.core.forecast.futures import Past, try_futures
from scheduling.core.round.decide import decide
from scheduling.core.simulation import SimulationSettings
from scheduling.core.values import ClusterSnapshot
from tests.factories.rounds import LANGUAGE, VISION, cluster_snapshot, jobs_started_by, queued_job

T = TypeVar("T")
THREADS = 3
SOME = ("fifo", "fair", "capacity", "tiresias", "sia")
"""Policies of different engines."""


def under(policy: str) -> ClusterSnapshot:
    vcs = (replace(LANGUAGE, policy=policy), replace(VISION, policy=policy))
    held = jobs_started_by(
        cluster_snapshot(queued_job(90, devices=4), queued_job(91, devices=4, vc=LANGUAGE))
    )
    waiting = [queued_job(n, devices=1 + n % 4, vc=(VISION, LANGUAGE)[n % 2]) for n in range(1, 9)]
    lent = queued_job(9, devices=8, borrow=True)
    return cluster_snapshot(*waiting, lent, vcs=vcs, holding=held)


def all_at_once(tasks: Sequence[Callable[[], T]]) -> list[list[T]]:
    """What each of some threads gets that begin together, each with another task."""
    barrier = Barrier(THREADS)

    def run(first: int) -> list[T]:
        barrier.wait(60)
        turned = [*tasks[first:], *tasks[:first]]
        found = [task() for task in turned]
        return [*found[len(tasks) - first :], *found[: len(tasks) - first]]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def test_rounds_decided_in_threads_are_those_decided_one_by_one() -> None:
    snapshots = [under(policy) for policy in SOME]
    alone = [decide(one) for one in snapshots]

    found = all_at_once([partial(decide, one) for one in snapshots])

    assert found == [alone] * THREADS


def test_futures_tried_in_threads_are_those_tried_one_by_one() -> None:
    mine = lineage_of(vc=1, owner=1, application="bert", name="train-7", devices=4)
    times = RunTimes([RunTime(lineage=mine, seconds=100.0 * n) for n in range(1, 30)])
    snapshots = [under(policy) for policy in SOME[:3]]
    pasts = {one.id: Past(lineage=mine) for one in snapshots[0].queued}

    def look(one: ClusterSnapshot) -> object:
        return try_futures(
            one, times, pasts, futures=1, seed=7, settings=SimulationSettings(horizon=1e5)
        )

    alone = [look(one) for one in snapshots]
    found = all_at_once([partial(look, one) for one in snapshots])

    assert found == [alone] * THREADS
