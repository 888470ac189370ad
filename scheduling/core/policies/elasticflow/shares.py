"""Minimum satisfactory shares: the fewest devices with which a job meets its deadline.

ElasticFlow (ASPLOS '23, admission control). A job's share is filled backwards from its deadline,
so that the near future remains free for others; jobs are served in the order of their deadlines.
This misses some feasible sets of jobs, so an integer program covers all schedules of a few jobs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import NamedTuple

import numpy as np

from scheduling.core.policies.engines.lp import InfeasibleError, LinearProgram


class ShareSpan(NamedTuple):
    """A number ``n`` of devices from ``start`` to ``end``."""

    start: float
    end: float
    n: int


Profile = tuple[ShareSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A job with a deadline.

    Attributes:
        rates: steps/s by number of devices; only sizes at which it can run.
        steps: remaining steps.
        restart: cost of each change of size in seconds.
        held: its current devices.
    """

    id: int
    rates: Mapping[int, float]
    steps: float
    deadline: float
    restart: float = 0.0
    held: int = 0

    def best(self, room: int) -> int:
        """Return the fastest size up to ``room``, the smaller one in a tie; 0 if none."""
        best = 0
        for n, rate in self.rates.items():
            if n <= room and rate > 0 and (not best or (rate, -n) > (self.rates[best], -best)):
                best = n
        return best

    def work(self, profile: Iterable[ShareSpan], now: float) -> float:
        """Return the steps done along ``profile`` by the deadline, after restart costs."""
        done, before, end = 0.0, self.held, now
        for span in sorted(profile):
            seconds = min(span.end, self.deadline) - span.start
            if span.n == 0 or seconds <= 0:
                continue
            moved = span.n != before or span.start > end + 1e-9
            done += self.rates[span.n] * max(0.0, seconds - (self.restart if moved else 0.0))
            before, end = span.n, span.end
        return done


class Horizon:
    """Free devices from now on, with changes at the boundaries of slots."""

    def __init__(self, *, now: float, slot: float, free: int) -> None:
        """Create a horizon with all ``free`` devices, without end.

        Args:
            now: its begin; the first slot may be shorter.
            slot: length of a slot in seconds; boundaries are its multiples.
            free: number of free devices.
        """
        self.now = now
        self.slot = slot
        self.spans = [ShareSpan(now, inf, free)]

    def copy(self) -> "Horizon":
        """Return an independent copy."""
        other = Horizon(now=self.now, slot=self.slot, free=0)
        other.spans = list(self.spans)
        return other

    def slot_before(self, time: float) -> float:
        """Return the boundary at or before ``time``, but not before now."""
        return max(self.now, floor(time / self.slot + 1e-9) * self.slot)

    def slot_after(self, time: float) -> float:
        """Return the boundary at or after ``time``."""
        return max(self.now, ceil(time / self.slot - 1e-9) * self.slot)

    def take(self, profile: Iterable[ShareSpan]) -> bool:
        """Subtract a profile; return False, without a change, if not enough is free."""
        before = list(self.spans)
        for span in profile:
            self._split(span.start)
            self._split(span.end)
            index = bisect_left(self.spans, span.start, key=_start)
            while index < len(self.spans) and self.spans[index].end <= span.end:
                free = self.spans[index]
                if free.n < span.n:
                    self.spans = before
                    return False
                self.spans[index] = free._replace(n=free.n - span.n)
                index += 1
        return True

    def until(self, deadline: float) -> list[ShareSpan]:
        """Free devices up to the end of the deadline's slot, the latest first."""
        end = self.slot_after(deadline)
        self._split(end)
        found: list[ShareSpan] = []
        for span in reversed(self.spans):
            if span.end > end:
                continue
            if found and found[-1].n == span.n:
                found[-1] = found[-1]._replace(start=span.start)
            else:
                found.append(span)
        return found

    def _split(self, time: float) -> None:
        index = bisect_left(self.spans, time, key=_start) - 1
        if index >= 0 and self.spans[index].start < time < self.spans[index].end:
            span = self.spans[index]
            self.spans[index : index + 1] = [span._replace(end=time), span._replace(start=time)]


def _start(span: ShareSpan) -> float:
    return span.start


def minimum_share(contract: Contract, horizon: Horizon) -> Profile | None:
    """Find the profile of the smallest level that meets the deadline; None if impossible.

    At each level the slots are filled backwards from the deadline with the free devices, up to the
    level. ``horizon`` is not modified.
    """
    if contract.steps <= 0:
        return ()
    spans = horizon.until(contract.deadline)
    most = contract.deadline - horizon.now
    for level in sorted(contract.rates):
        if contract.rates[contract.best(level)] * most < contract.steps * (1 - 1e-9):
            continue
        profile = _filled(contract, horizon, spans, level)
        if profile is not None:
            return profile
    return None


def satisfy(contracts: Sequence[Contract], horizon: Horizon) -> dict[int, Profile] | None:
    """Find profiles for all contracts together, by earliest deadline; None if one has none."""
    left = horizon.copy()
    found: dict[int, Profile] = {}
    for contract in sorted(contracts, key=lambda contract: (contract.deadline, contract.id)):
        profile = minimum_share(contract, left)
        if profile is None or not left.take(profile):
            return None
        found[contract.id] = profile
    return found


def _filled(
    contract: Contract, horizon: Horizon, spans: Sequence[ShareSpan], level: int
) -> Profile | None:
    """Fill slots backwards until all steps are done; return None if now is reached first."""
    taken: list[ShareSpan] = []
    done = 0.0
    for span in spans:
        size = contract.best(min(level, span.n))
        end = min(span.end, contract.deadline)
        if size == 0 or end <= span.start:
            continue
        rate = contract.rates[size]
        # A restart is paid at the beginning of every span but one that continues with its size.
        later = taken[-1] if taken else None
        if later is not None and later.n == size and later.start == span.end:
            done += rate * min(contract.restart, later.end - later.start)
        if span.start <= horizon.now and size == contract.held:
            done += rate * contract.restart
        needed = (contract.steps - done) / rate + contract.restart
        start = max(span.start, horizon.slot_before(end - needed))
        taken.append(ShareSpan(start, span.end, size))
        done += rate * max(0.0, end - start - contract.restart)
        if done >= contract.steps * (1 - 1e-9) and _enough(contract, taken, horizon.now):
            return tuple(sorted(taken))
    return None


def _enough(contract: Contract, taken: Sequence[ShareSpan], now: float) -> bool:
    return contract.work(taken, now) >= contract.steps * (1 - 1e-9)


def trimmed(profile: Iterable[ShareSpan], now: float) -> Profile:
    """Return the future part of a profile."""
    return tuple(
        span._replace(start=max(now, span.start)) for span in profile if span.end > now + 1e-9
    )


def at(profile: Iterable[ShareSpan], time: float) -> int:
    """Return the devices at ``time``."""
    return next((span.n for span in profile if span.start <= time + 1e-9 < span.end), 0)


_MOST_COLUMNS = 3000


def any_way(contracts: Sequence[Contract], horizon: Horizon) -> dict[int, Profile] | None:
    """Find profiles that meet all deadlines, by slot; None if none exist, or too many slots."""
    end = max((horizon.slot_after(contract.deadline) for contract in contracts), default=0.0)
    slots = _slots(horizon, end)
    if len(slots) * sum(len(contract.rates) for contract in contracts) > _MOST_COLUMNS:
        return None
    program = LinearProgram()
    columns: dict[tuple[int, int, int], int] = {}
    for row, contract in enumerate(contracts):
        mine = _keep_deadline(program, contract, slots)
        if not mine and contract.steps > 0:
            return None
        columns |= {(row, number, size): column for (number, size), column in mine.items()}
    _keep_capacity(program, columns, slots)
    if not columns:
        return {contract.id: () for contract in contracts}
    try:
        found = program.maximise(
            list(columns.values()), -np.array([float(size) for _, _, size in columns])
        )
    except InfeasibleError:
        return None
    profiles = {
        contract.id: tuple(
            ShareSpan(slots[number].start, slots[number].end, size)
            for (owner, number, size), column in sorted(columns.items())
            if owner == row and found.x[column] > 0.5
        )
        for row, contract in enumerate(contracts)
    }
    kept = all(
        contract.work(profiles[contract.id], horizon.now) >= contract.steps * (1 - 1e-6)
        for contract in contracts
    )
    return profiles if kept else None


def _keep_deadline(
    program: LinearProgram, contract: Contract, slots: Sequence[ShareSpan]
) -> dict[tuple[int, int], int]:
    """Add a contract's columns, by slot and size, which must complete its work in time."""
    columns: dict[tuple[int, int], int] = {}
    worth: list[float] = []
    for number, slot in enumerate(slots):
        seconds = min(slot.end, contract.deadline) - slot.start
        sizes = [n for n in sorted(contract.rates) if n <= slot.n and seconds > 0]
        if not sizes:
            continue
        chosen = program.variables(len(sizes), upper=1.0, integral=True)
        program.at_most(chosen, np.ones(len(sizes)), 1.0)
        for size, column in zip(sizes, chosen, strict=True):
            columns[number, size] = int(column)
            worth.append(contract.rates[size] * seconds)
    if columns:
        # Scaled to 1, so that the solver's tolerance is a part of the work.
        program.at_least(
            list(columns.values()),
            np.array(worth) / max(contract.steps, 1e-9),
            1.0 if contract.steps > 0 else 0.0,
        )
    return columns


def _keep_capacity(
    program: LinearProgram, columns: dict[tuple[int, int, int], int], slots: Sequence[ShareSpan]
) -> None:
    for number, slot in enumerate(slots):
        inside = [(size, column) for (_, at, size), column in columns.items() if at == number]
        if inside:
            program.at_most(
                [column for _, column in inside],
                np.array([float(size) for size, _ in inside]),
                float(slot.n),
            )


def _slots(horizon: Horizon, end: float) -> list[ShareSpan]:
    """Free devices by slot until ``end``; empty if there are too many slots."""
    count = (end - horizon.now) / horizon.slot
    if count > _MOST_COLUMNS:
        return [ShareSpan(horizon.now, end, 0)] * (_MOST_COLUMNS + 1)
    found: list[ShareSpan] = []
    time = horizon.now
    while time < end - 1e-9:
        following = min(horizon.slot_before(time) + horizon.slot, end)
        free = min(span.n for span in horizon.spans if span.start < following and span.end > time)
        found.append(ShareSpan(time, following, free))
        time = following
    return found
