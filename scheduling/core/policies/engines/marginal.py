"""Marginal greedy: the next step goes to the largest gain, until nothing fits."""

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
    """Raise the counts of ``start`` one step after the other, the largest gain first.

    For gains that fall with every step and steps of one size the result is optimal; Optimus
    (EuroSys '18, section 4.1) and ElasticFlow (ASPLOS '23) use it so.

    Args:
        start: initial devices by job; they are not taken from ``free``.
        step: the next count of a job after ``n``, None at its end.
        gain: of a job from one count to the next; steps without a gain are not taken.
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
