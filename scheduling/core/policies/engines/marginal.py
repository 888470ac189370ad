"""Marginal greedy: give the next step to whoever gains most by it, until nothing fits."""

import heapq
from collections.abc import Callable, Mapping


def greedy_marginal(
    *,
    start: Mapping[int, int],
    step: Callable[[int, int], int | None],
    gain: Callable[[int, int, int], float],
    free: Mapping[str, int],
    pool_of: Callable[[int], str] = lambda _job: "",
) -> dict[int, int]:
    """Raise the counts of ``start`` one step after the other, the greatest gain first.

    For gains that fall with every step and steps of one size the result is optimal; that is how
    Optimus (EuroSys '18, section 4.1) and ElasticFlow (ASPLOS '23) use it.

    Args:
        start: devices by job to begin with; they are not taken from ``free``.
        step: the next count of a job after ``n``, None when it is at its end.
        gain: what a job gains by going from one count to the next; steps that gain nothing
            are not taken.
        free: devices left by pool.
        pool_of: the pool from which a job takes its devices.

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
        # What does not fit now never will: what is free only falls.
        if needed > left.get(pool, 0):
            continue
        left[pool] = left.get(pool, 0) - needed
        counts[job] = following
        offer(job)
    return counts
