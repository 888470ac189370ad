"""Layout of logical workers on devices: the exact plan of EasyScale, sent to the processes.

One process (executor) runs on each device, or several if measurements show a gain
(``core.performance.executors``). Faster devices run more workers, so that all finish a step at
about the same time.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from scheduling.core.performance.executors import executors_on
from scheduling.core.policies.easyscale.planning import Threads, Workers, best_threads
from scheduling.core.values import RunObservation

Layout: TypeAlias = list[list[int]]
"""Logical workers of each process, one list for each member of the gang."""


def rates_of(seen: Sequence[RunObservation], workers: int) -> Mapping[str, float]:
    """Return the measured mini-batches per second of one process alone on a device.

    Args:
        seen: the job's runs.
        workers: its logical workers; each makes one mini-batch a step.
    """
    steps: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for run in seen:
        if run.steps > 0 and run.seconds > 0.0 and run.executors == 1:
            # A step takes as long as the device with the most workers.
            steps[run.type] += run.steps * -(-workers // run.devices)
            seconds[run.type] += run.seconds
    return {kind: steps[kind] / seconds[kind] for kind in sorted(steps)}


def layout_of(
    workers: int,
    members: Sequence[Sequence[str]],
    rates: Mapping[str, float],
    sharing: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Layout | None:
    """Distribute the logical workers over processes; return None if the devices cannot hold them.

    Args:
        workers: number of logical workers.
        members: device types of each member, in the order of ranks.
        rates: mini-batches per second of a process alone on a device, by type; unmeasured types
            count as the average of the measured ones.
        sharing: the pace of one of n processes on a device, relative to one alone, by type; one
            process on each device if missing.
    """
    devices = Counter(kind for member in members for kind in member)
    if not 0 < devices.total() <= workers:
        return None
    known = [rates[kind] for kind in devices if rates.get(kind, 0.0) > 0.0]
    usual = sum(known) / len(known) if known else 1.0
    alone = {kind: rates.get(kind, 0.0) or usual for kind in devices}
    shared = {
        kind: tuple(rate * pace for pace in sharing.get(kind, (1.0,)))
        for kind, rate in alone.items()
    }
    if len(devices) == 1:
        # The same formula as in policies, so that the requested layout is the one that starts.
        ((kind, n),) = devices.items()
        executors = executors_on(workers, n, sharing.get(kind, (1.0,)))
        shared = {kind: (*[0.0] * (executors - 1), shared[kind][executors - 1])}
    plan = best_threads(Workers(most=workers, rates=shared), devices)
    if plan is not None and _processes(plan, devices) > workers:
        single = {kind: (rate,) for kind, rate in alone.items()}
        plan = best_threads(Workers(most=workers, rates=single), devices)
    return None if plan is None else _spread(workers, members, plan)


def _processes(plan: Threads, devices: Mapping[str, int]) -> int:
    return sum(n * plan.executors.get(kind, 1) for kind, n in devices.items())


def _spread(workers: int, members: Sequence[Sequence[str]], plan: Threads) -> Layout | None:
    """Distribute all workers over the processes: at least one each, at most the type's share."""
    processes = [
        (place, kind)
        for place, member in enumerate(members)
        for kind in member
        for _ in range(plan.executors.get(kind, 1))
    ]
    # A process without a worker would have nothing to do in any step.
    counts = [1] * len(processes)
    left = workers - len(processes)
    while left > 0:
        room = [
            i for i, (_, kind) in enumerate(processes) if counts[i] < plan.threads.get(kind, 0)
        ]
        if not room:
            return None
        # The process farthest from its share comes next; in a tie, the first one.
        index = min(room, key=lambda i: (counts[i] / plan.threads[processes[i][1]], i))
        counts[index] += 1
        left -= 1
    layout: Layout = [[] for _ in members]
    for (place, _), count in zip(processes, counts, strict=True):
        layout[place].append(count)
    return layout
