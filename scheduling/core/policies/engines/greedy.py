"""Greedy engines: a walk along an order of jobs, and steps by their marginal gain."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduling.core.messages import message, sentence
from scheduling.core.policies.engines.room import FreeDevices, borrows, present
from scheduling.core.policy_interface import Alloc, Plan, PolicyJob, Snapshot

Key = Callable[[PolicyJob], tuple[Any, ...]]

WAITS = sentence(message("others-first"))


def sorted_policy(
    snapshot: Snapshot,
    key: Key,
    *,
    strict: bool = False,
    only: Callable[[PolicyJob], bool] = lambda _job: True,
    wake: float | None = None,
) -> Plan:
    """Walk all jobs in order of ``key`` and allocate complete gangs while devices are free.

    Running jobs have no advantage besides the order: a job that the walk does not reach is
    suspended. Non-preemptible jobs come first, borrowing jobs last.

    Args:
        snapshot: the private view.
        key: sort key of jobs; the ID breaks ties.
        strict: whether the first job that does not fit ends the walk.
        only: predicate of the jobs to serve.
        wake: time of the next change of the order, if the policy can compute it.
    """
    jobs = present(snapshot)
    room = FreeDevices(snapshot)
    allocs = room.take_pinned(jobs)
    ordered = sorted(jobs, key=lambda job: (borrows(job), *key(job), job.id))
    blocked = False
    for job in ordered:
        if job.id in allocs or blocked or not only(job):
            continue
        alloc = room.fit(job)
        if alloc is None:
            blocked = strict
            continue
        room.take(job, alloc)
        allocs[job.id] = alloc
    return meant(allocs, ordered, wake=wake)


def serve_rest(jobs: Iterable[PolicyJob], room: FreeDevices, allocs: dict[int, Alloc]) -> None:
    """Allocate the remaining devices to ``jobs`` without devices: by arrival, borrowers last."""
    for job in sorted(jobs, key=lambda job: (borrows(job), job.submitted, job.id)):
        alloc = room.fit(job) if job.id not in allocs else None
        if alloc is not None:
            room.take(job, alloc)
            allocs[job.id] = alloc


def meant(
    allocs: Mapping[int, Alloc],
    ordered: list[PolicyJob],
    *,
    why: Mapping[int, str] | None = None,
    wake: float | None = None,
) -> Plan:
    """Build a plan of exact allocations (not offers), with a line for each waiting job."""
    lines = {job.id: WAITS for job in ordered if job.id not in allocs}
    return Plan(
        allocs=dict(sorted(allocs.items())),
        order=tuple(job.id for job in ordered if job.id in allocs),
        why={**lines, **{job: text for job, text in (why or {}).items() if job in lines}},
        wake=wake,
    )


def greedy_marginal(
    *,
    start: Mapping[int, int],
    step: Callable[[int, int], int | None],
    gain: Callable[[int, int, int], float],
    free: Mapping[str, int],
    pool_of: Callable[[int], str] = lambda _job: "",
) -> dict[int, int]:
    """Raise the counts of ``start`` one step after the other, the largest gain first.

    The result is optimal if gains fall with every step and steps have one size. Optimus (EuroSys
    '18, section 4.1) and ElasticFlow (ASPLOS '23) use it.

    Args:
        start: initial devices by job; they are not taken from ``free``.
        step: the next count of a job after ``n``, None at its end.
        gain: gain of a job from one count to the next; steps without a gain are not taken.
        free: devices left by pool.
        pool_of: the pool of a job.

    Returns:
        The counts by job. Equal gains go to the smaller id.
    """
    counts = dict(start)
    left = dict(free)
    heap: list[tuple[float, int, int]] = []

    def offer(job: int) -> None:
        following = step(job, counts[job])
        if following is None:
            return
        value = gain(job, counts[job], following)
        if value > 0:
            heapq.heappush(heap, (-value, job, following))

    for job in sorted(counts):
        offer(job)
    while heap:
        _, job, following = heapq.heappop(heap)
        pool, needed = pool_of(job), following - counts[job]
        # A step that does not fit now never will: ``free`` only falls.
        if needed > left.get(pool, 0):
            continue
        left[pool] = left.get(pool, 0) - needed
        counts[job] = following
        offer(job)
    return counts
