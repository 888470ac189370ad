"""How a job's logical workers lie on the devices that it gets: EasyScale's exact plan, sent down.

One process (executor) runs on each device unless the plan says more; faster devices run more
workers, so that all are done with a step at about the same time.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from scheduling.core.policies.easyscale.intra import Workers, best_threads
from scheduling.core.values import Seen

Layout: TypeAlias = list[list[int]]
"""Logical workers of each process, one list for each member of the gang."""


def rates_of(seen: Sequence[Seen], workers: int) -> Mapping[str, float]:
    """Mini-batches per second that one device of a type has made, as far as was seen.

    Args:
        seen: the job's runs.
        workers: its logical workers; each makes one mini-batch a step.
    """
    steps: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for run in seen:
        if run.steps > 0 and run.seconds > 0.0:
            # A step takes as long as the device with the most workers.
            steps[run.type] += run.steps * -(-workers // run.devices)
            seconds[run.type] += run.seconds
    return {kind: steps[kind] / seconds[kind] for kind in sorted(steps)}


def layout_of(
    workers: int, members: Sequence[Sequence[str]], rates: Mapping[str, float]
) -> Layout | None:
    """The logical workers of each process; None where devices cannot hold all of them.

    Args:
        workers: how many there are.
        members: the types of each member's devices, in the order of ranks.
        rates: mini-batches per second of a device, by type; types that were not seen are taken
            for the average of those that were.
    """
    devices = Counter(kind for member in members for kind in member)
    if not 0 < devices.total() <= workers:
        return None
    known = [rates[kind] for kind in devices if rates.get(kind, 0.0) > 0.0]
    usual = sum(known) / len(known) if known else 1.0
    speeds = {kind: (rates.get(kind, 0.0) or usual,) for kind in devices}
    plan = best_threads(Workers(most=workers, rates=speeds), devices)
    if plan is None:
        return None
    most = {kind: plan.threads.get(kind, 0) for kind in devices}
    return _spread(workers, members, most)


def _spread(
    workers: int, members: Sequence[Sequence[str]], most: Mapping[str, int]
) -> Layout | None:
    """All workers over the processes, none above its type's share, one on each at least."""
    processes = [(place, kind) for place, member in enumerate(members) for kind in member]
    # A process without a worker would have nothing to do in any step.
    counts = [1] * len(processes)
    left = workers - len(processes)
    while left > 0:
        room = [i for i, (_, kind) in enumerate(processes) if counts[i] < most[kind]]
        if not room:
            return None
        # The one that is farthest from its share comes next; the first of several.
        index = min(room, key=lambda i: (counts[i] / most[processes[i][1]], i))
        counts[index] += 1
        left -= 1
    layout: Layout = [[] for _ in members]
    for (place, _), count in zip(processes, counts, strict=True):
        layout[place].append(count)
    return layout
