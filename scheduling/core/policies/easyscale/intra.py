"""EasyScale's intra-job planning: the number of a job's logical workers on each GPU.

EasyScale (SC '23, equations 1a to 1e) minimises the waste of a job that has ``maxP`` logical
workers (EasyScaleThreads) on GPUs of several types. Its performance is ``maxP`` over the time of
a step, so the least waste for given GPUs is the shortest step: ``maxP`` equal tasks on uniform
machines. That is solved exactly here, where the paper tries floors and ceilings of speed ratios.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


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
        gpus: GPUs by type, those without work left out.
        executors: executors on each GPU, by type.
        threads: the most logical workers that an executor has, by type.
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
    """The shortest step of a job on ``gpus``, exactly.

    A step takes as long as the slowest executor, which is ``k / C`` for some number of workers
    ``k`` and rate ``C``. Of these times the shortest is taken at which the GPUs hold all workers.

    Args:
        workers: the job.
        gpus: number of each type it has.

    Returns:
        The spread of the workers; None when the job can run on none of the GPUs.
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
    """One proposal for each type: the additional GPUs of it that pay best.

    Args:
        workers: the job.
        now: its present GPUs.
        free: available GPUs by type.
        most_waste: configurations that lose a greater share are not proposed.
        allows: whether the job can run on a total number of GPUs.

    Returns:
        By type the configuration and its gain in speed per added GPU. A proposal grows one type,
        is faster than now, and has at most twice the GPUs and at most as many as logical workers.
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
    """The most workers that one GPU runs within ``seconds``, and with how many executors."""
    best = (0, 1)
    for executors, rate in enumerate(rates, start=1):
        # The time came from a division by some rate; a hair of slack makes up for its rounding.
        workers = executors * int(seconds * rate * (1 + 1e-12))
        if workers > best[0]:
            best = (workers, executors)
    return best


def _room(workers: Workers, gpus: Mapping[str, int], seconds: float) -> int:
    """Workers that fit on all GPUs within ``seconds``."""
    return sum(n * _held(workers.rates[kind], seconds)[0] for kind, n in gpus.items())


def _spread(workers: Workers, gpus: Mapping[str, int], seconds: float) -> Threads:
    """The configuration of a step of ``seconds``, without idle GPUs."""
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
