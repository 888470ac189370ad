"""EasyScale's planning: logical workers of a job on each GPU, and free GPUs among jobs.

Inside a job (SC '23, equations 1a to 1e) the waste of its ``maxP`` logical workers
(EasyScaleThreads) on GPUs of several types is minimised. Its performance is ``maxP`` over the time
of a step, so the least waste for given GPUs is the shortest step: ``maxP`` equal tasks on uniform
machines. This module solves that exactly; the paper tries floors and ceilings of speed ratios.
Algorithm 1 distributes free GPUs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """A job's logical workers and their speed on a GPU.

    Attributes:
        most: number of logical workers, at least 1; the most GPUs that the job can use.
        rates: mini-batches/s of the logical workers of one executor, by type, for each number of
            executors on a GPU: ``rates[type][m - 1]`` with ``m`` of them, without types on which
            the job cannot run.
    """

    most: int
    rates: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Distribution of the logical workers.

    Attributes:
        gpus: GPUs by type, without idle ones.
        executors: executors on each GPU, by type.
        threads: maximum number of logical workers of an executor, by type.
        step_seconds: the time of one global step.
        performance: logical workers' mini-batches per second.
        waste: the share of the GPUs' power that is lost, in [0, 1).
    """

    gpus: Mapping[str, int]
    executors: Mapping[str, int]
    threads: Mapping[str, int]
    step_seconds: float
    performance: float
    waste: float

    @property
    def total(self) -> int:
        """All GPUs."""
        return sum(self.gpus.values())


def best_threads(workers: Workers, gpus: Mapping[str, int]) -> Threads | None:
    """Find the exact minimum step time of a job on ``gpus``.

    A step takes as long as the slowest executor, which is ``k / C`` for some number of workers
    ``k`` and rate ``C``. The result is the shortest of these times at which the GPUs hold all
    workers.

    Args:
        workers: logical workers of the job.
        gpus: number of its GPUs by type.

    Returns:
        The distribution of the workers; None if the job can run on none of the GPUs.
    """
    usable = {kind: n for kind, n in gpus.items() if n > 0 and workers.rates.get(kind)}
    times = sorted(
        {
            count / rate
            for kind in usable
            for rate in workers.rates[kind]
            if rate > 0
            for count in range(1, workers.most + 1)
        }
    )
    low, high = 0, len(times) - 1
    if high < 0:
        return None
    while low < high:
        middle = (low + high) // 2
        if _room(workers, usable, times[middle]) >= workers.most:
            high = middle
        else:
            low = middle + 1
    return _spread(workers, usable, times[low])


def growths(
    workers: Workers,
    now: Threads,
    free: Mapping[str, int],
    *,
    most_waste: float,
    allows: Callable[[int], bool] = lambda _gpus: True,
) -> dict[str, tuple[Threads, float]]:
    """Propose for each type the additional GPUs with the largest gain per GPU.

    Args:
        workers: the job.
        now: its current GPUs.
        free: available GPUs by type.
        most_waste: maximum lost share of power of a proposed configuration.
        allows: returns whether the job can run on a total number of GPUs.

    Returns:
        By type the configuration and its gain in speed per added GPU. A proposal grows one type,
        is faster than now, and has at most twice the GPUs and at most one GPU per logical worker.
    """
    found: dict[str, tuple[Threads, float]] = {}
    most = min(2 * now.total, workers.most)
    for kind in sorted(free):
        for more in range(1, min(free[kind], most - now.total) + 1):
            grown = best_threads(workers, {**now.gpus, kind: now.gpus.get(kind, 0) + more})
            if grown is None or grown.total != now.total + more or not allows(grown.total):
                continue
            if grown.waste > most_waste:
                continue
            pays = (grown.performance / now.performance - 1) / more
            if pays > 1e-12 and (kind not in found or pays > found[kind][1] + 1e-12):
                found[kind] = (grown, pays)
    return found


def _held(rates: Sequence[float], seconds: float) -> tuple[int, int]:
    """Return the maximum workers on one GPU within ``seconds``, and their number of executors."""
    best = (0, 1)
    for executors, rate in enumerate(rates, start=1):
        # A small tolerance compensates for the rounding of the division that gave the time.
        workers = executors * int(seconds * rate * (1 + 1e-12))
        if workers > best[0]:
            best = (workers, executors)
    return best


def _room(workers: Workers, gpus: Mapping[str, int], seconds: float) -> int:
    """Return the workers that fit on all GPUs within ``seconds``."""
    return sum(n * _held(workers.rates[kind], seconds)[0] for kind, n in gpus.items())


def _spread(workers: Workers, gpus: Mapping[str, int], seconds: float) -> Threads:
    """Build the configuration of a step of ``seconds``, without idle GPUs."""
    used: dict[str, int] = {}
    executors: dict[str, int] = {}
    threads: dict[str, int] = {}
    left = workers.most
    power = 0.0
    for kind in sorted(gpus, key=lambda kind: (-_held(workers.rates[kind], seconds)[0], kind)):
        each, processes = _held(workers.rates[kind], seconds)
        if left <= 0 or each == 0:
            continue
        used[kind] = min(gpus[kind], -(-left // each))
        executors[kind] = processes
        threads[kind] = each // processes
        left -= used[kind] * each
        power += used[kind] * processes * workers.rates[kind][processes - 1]
    performance = workers.most / seconds
    return Threads(
        gpus=used,
        executors=executors,
        threads=threads,
        step_seconds=seconds,
        performance=performance,
        waste=max(0.0, 1.0 - performance / power),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """A job for the inter-job scheduler.

    Attributes:
        types: usable types in order of preference.
        least: minimum number of GPUs.
        gpus: current GPUs; empty while it waits.
        wanted: GPUs to restart on, while it waits for a resize.
        mixes: whether it may use several types at once, since its operators are equal on them.
        allows: returns whether it can run on a total number of GPUs.
        barred: numbers of GPUs by type that were slower than predicted.
    """

    id: int
    workers: Workers
    types: tuple[str, ...]
    least: int = 1
    gpus: Mapping[str, int]
    wanted: Mapping[str, int] = field(default_factory=dict)
    mixes: bool = True
    allows: Callable[[int], bool] = lambda _gpus: True
    barred: tuple[Mapping[str, int], ...] = ()


def share_out(
    trainees: Sequence[Trainee], free: Mapping[str, int], *, most_waste: float
) -> dict[int, Threads]:
    """Admit waiting jobs, then grow those with the largest gains.

    Running jobs retain their GPUs. Waiting jobs come first, in the order given, each with its
    minimum number of GPUs of its best type with room; then each job proposes one growth per type,
    and the proposals that gain most per GPU are accepted, one per job at most.

    Args:
        trainees: running and waiting jobs, earliest first.
        free: idle GPUs by type.
        most_waste: maximum share of power that a proposal may lose.

    Returns:
        The configuration of each job that runs.
    """
    left = dict(free)
    running: dict[int, Threads] = {}
    for job in trainees:
        kept = best_threads(job.workers, job.gpus) if job.gpus else None
        if kept is not None:
            running[job.id] = kept
    for job in trainees:
        if job.id in running:
            continue
        begun = _begin(job, left)
        if begun is not None:
            running[job.id] = begun
            _take(left, begun.gpus)
    admitted = {job.id for job in trainees if not job.gpus}
    proposals = [
        (-pays, -grown.total, job.id, kind, grown)
        for job in trainees
        if job.id in running and job.id not in admitted
        for kind, (grown, pays) in growths(
            job.workers,
            running[job.id],
            _growable(job, running[job.id], left),
            most_waste=most_waste,
            allows=job.allows,
        ).items()
        if dict(grown.gpus) not in [dict(barred) for barred in job.barred]
    ]
    grown_jobs: set[int] = set()
    for _, _, job_id, kind, grown in sorted(proposals, key=lambda proposal: proposal[:4]):
        more = grown.gpus[kind] - running[job_id].gpus.get(kind, 0)
        if job_id in grown_jobs or more > left.get(kind, 0):
            continue
        left[kind] -= more
        running[job_id] = grown
        grown_jobs.add(job_id)
    return running


def _begin(job: Trainee, left: Mapping[str, int]) -> Threads | None:
    """Start a waiting job with its minimum, on its best type with room only.

    A job that left for a resize gets its new size, if there is still room for it. Sizes with an
    idle GPU (3 for 4 workers) are skipped if there is room for the next size. Otherwise the job
    starts at its minimum, with that GPU idle.
    """
    if job.wanted and all(n <= left.get(kind, 0) for kind, n in job.wanted.items()):
        back = best_threads(job.workers, job.wanted)
        if back is not None and back.gpus == job.wanted:
            return back
    for kind in job.types:
        there = left.get(kind, 0)
        if there < job.least:
            continue
        sizes = range(job.least, min(there, job.workers.most) + 1)
        for n in (n for n in sizes if job.allows(n)):
            begun = best_threads(job.workers, {kind: n})
            if begun is not None and begun.total == n:
                return begun
        begun = best_threads(job.workers, {kind: job.least})
        if begun is not None:
            return replace(begun, gpus={kind: job.least})
    return None


def _growable(job: Trainee, now: Threads, left: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs by type on which a job may grow: its types, and others if it may mix."""
    return {
        kind: left.get(kind, 0)
        for kind in job.types
        if left.get(kind, 0) > 0 and (job.mixes or kind in now.gpus)
    }


def _take(left: dict[str, int], gpus: Mapping[str, int]) -> None:
    for kind, n in gpus.items():
        left[kind] -= n
