"""Mending quantiles by how often earlier ones were wrong, and measuring them.

What came from the futures is mixed with the usual waits of the virtual cluster and with its
present ones, on a logarithmic scale and by fixed parts: a plain mean of forecasts is hard to beat
by weights that are learned from few independent errors (Clemen, International Journal of
Forecasting 1989), and all waits of one congestion are one error.

Then each quantile is moved by a quantile of its past errors (conformal quantile regression,
Romano, Patterson and Candes, NeurIPS 2019). Which one, is moved too: a step up whenever the truth
turned out above, a step down whenever below (adaptive conformal inference, Gibbs and Candes,
NeurIPS 2021), smaller ones for estimates that were made while many others were open. A move
is made only while moves would have lost less than none lately.

Nothing counts before the moment at which it was known; a job that still waits is above a quantile
as soon as that has passed.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Final

from scheduling.core.forecast.usual import (
    LEVELS,
    NEWEST,
    Quantiles,
    present_waits,
    usual_waits,
)

MIDDLE: Final = 1
OFFSET: Final = 900.0
"""Seconds added before a logarithm is taken, so that a minute more or less is no great error."""

STEP: Final = 0.05
"""How far a level is moved by one error, if no other estimate was open when it was made."""

FARTHEST: Final = 0.7
"""No quantile is moved any farther, on the logarithmic scale."""

HELPS: Final = 1.0
"""A quantile is moved while moves would have lost at most such a part of what none lost."""

FADES: Final = 0.98
"""A loss counts so much as the one after it, where it is asked what would have helped."""

NOTHING: Final = 1e-9
BEYOND: Final = 2.0
"""How far quantiles move, on the logarithmic scale, by a level beyond 0 or 1."""

MOST_BEYOND: Final = 0.5
"""Levels go no farther beyond than that, so that they find back."""

TRUST: Final = 30.0
"""So many past errors weigh as much as the belief that there is none."""

FORGETS: Final = 0.97
"""A past error counts so much as the one after it."""

MOST_ERRORS: Final = 150
"""So many past errors are looked at."""

PARTS: Final = (0.5, 0.25, 0.25)
"""How much the futures, the usual waits and the present ones count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An estimate of old, as it came from the futures, and what became of it; in seconds.

    Attributes:
        quantiles: at 10, 50 and 90 %, before they were mended.
        wait: from the estimate to the start, or to now for one that still waits.
        started: whether the wait is over.
        made: when it was made, on one clock for all.
        waited: how long the job had waited by then.
        first: it is the first that is known of its job, and so tells of its whole wait.
    """

    quantiles: Quantiles
    wait: float
    started: bool = True
    made: float = 0.0
    waited: float = 0.0
    first: bool = True


class Lessons:
    """What estimates of old teach about the next ones; they are told in the order of time."""

    def __init__(self) -> None:
        self.levels = list(LEVELS)
        self._open: dict[int, _Kept] = {}
        self._closed: deque[_Kept] = deque(maxlen=MOST_ERRORS)
        self._lost = [(0.0, 0.0) for _ in LEVELS]
        self._waits: list[float] = []
        self._newest: deque[float] = deque(maxlen=NEWEST)
        self._shifts: Quantiles | None = None

    def mend(self, quantiles: Quantiles, *, now: float, waited: float = 0.0) -> Quantiles:
        """The quantiles as they should be, in order and not negative.

        Args:
            quantiles: as they came from the futures.
            now: the present.
            waited: how long the job has waited already.
        """
        self._note_passed(now)
        return self._moved(self._mixed(quantiles, now, waited))

    def keep(
        self,
        number: int,
        quantiles: Quantiles,
        *,
        now: float,
        waited: float = 0.0,
        tells_whole_wait: bool = True,
    ) -> None:
        """An estimate was made; ``number`` is its name."""
        self._note_passed(now)
        mixed = self._mixed(quantiles, now, waited)
        shown = self._moved(mixed)
        moved = _seconds(mixed, self.shifts())
        step = STEP / (1.0 + len(self._open))
        self._open[number] = _Kept(
            made=now,
            waited=waited,
            mixed=mixed,
            moved=moved,
            shown=shown,
            step=step,
            is_whole=tells_whole_wait,
        )
        self._shifts = None

    def close(self, number: int, *, now: float) -> None:
        """The job of an estimate has started."""
        self._note_passed(now)
        kept = self._open.pop(number)
        kept.wait = now - kept.made
        for place, seconds in enumerate(kept.shown):
            if not kept.passed[place]:
                # A start at the very lower end lies inside.
                self._adapt(kept, place, is_above=place == 0 and kept.wait >= seconds)
        unmoved = _seconds(kept.mixed, (0.0, 0.0, 0.0))
        for place, level in enumerate(LEVELS):
            left, moved = self._lost[place]
            self._lost[place] = (
                FADES * left + _loss(level, unmoved[place], kept.wait),
                FADES * moved + _loss(level, kept.moved[place], kept.wait),
            )
        self._closed.append(kept)
        self._shifts = None
        if kept.is_whole:
            insort(self._waits, kept.waited + kept.wait)
            self._newest.append(kept.waited + kept.wait)

    def _mixed(self, quantiles: Quantiles, now: float, waited: float) -> Quantiles:
        """Logarithms of what the futures, the usual waits and the present ones say together."""
        usual = usual_waits(self._waits, waited) or quantiles
        going_on = [now - kept.made + kept.waited for kept in self._open.values() if kept.is_whole]
        present = present_waits(tuple(self._newest), going_on, waited) or quantiles
        p10, p50, p90 = (
            sum(
                part * log(answer[place] + OFFSET)
                for part, answer in zip(PARTS, (quantiles, usual, present), strict=True)
            )
            for place in range(len(LEVELS))
        )
        return p10, p50, p90

    def _moved(self, mixed: Quantiles) -> Quantiles:
        helps = [moved < HELPS * left for left, moved in self._lost]
        p10, p50, p90 = (
            shift if helped else 0.0 for shift, helped in zip(self.shifts(), helps, strict=True)
        )
        p10, p50, p90 = sorted(_seconds(mixed, (p10, p50, p90)))
        return p10, p50, p90

    def shifts(self) -> Quantiles:
        """By how much each quantile is moved, on the logarithmic scale."""
        if self._shifts is None:
            p10, p50, p90 = (self._shift(place) for place in range(len(LEVELS)))
            self._shifts = p10, p50, p90
        return self._shifts

    def _shift(self, place: int) -> float:
        weight, errors = 1.0, []
        for kept in reversed(self._closed):
            weight *= FORGETS
            errors.append((log(kept.wait + OFFSET) - kept.mixed[place], weight))
        level = min(max(self.levels[place], 0.0), 1.0)
        beyond = self.levels[place] - level
        shift = _quantile(errors, level, LEVELS[place]) + BEYOND * beyond
        return min(max(shift, -FARTHEST), FARTHEST)

    def _note_passed(self, now: float) -> None:
        for kept in self._open.values():
            for place, seconds in enumerate(kept.shown):
                if not kept.passed[place] and now - kept.made > seconds:
                    kept.passed[place] = True
                    self._adapt(kept, place, is_above=True)

    def _adapt(self, kept: "_Kept", place: int, *, is_above: bool) -> None:
        if place == MIDDLE:
            return
        level = LEVELS[place]
        moved = self.levels[place] + kept.step * (level if is_above else level - 1.0)
        self.levels[place] = min(max(moved, -MOST_BEYOND), 1.0 + MOST_BEYOND)
        self._shifts = None


@dataclass(slots=True)
class _Kept:
    made: float
    waited: float
    mixed: Quantiles
    moved: Quantiles
    shown: Quantiles
    step: float
    is_whole: bool
    wait: float = 0.0
    passed: list[bool] = field(default_factory=lambda: [False] * len(LEVELS))


def _seconds(mixed: Quantiles, shifts: Quantiles) -> Quantiles:
    p10, p50, p90 = (
        max(0.0, exp(value + shift) - OFFSET) for value, shift in zip(mixed, shifts, strict=True)
    )
    return p10, p50, p90


def learn(past: Sequence[Told], *, now: float) -> Lessons:
    """What past estimates teach, told in any order.

    Args:
        past: of one virtual cluster.
        now: the present, on their clock.
    """
    lessons = Lessons()
    events = [(told.made, 0, number) for number, told in enumerate(past)]
    events += [
        (told.made + told.wait, 1, number) for number, told in enumerate(past) if told.started
    ]
    for at, is_start, number in sorted(events):
        told = past[number]
        if not is_start:
            lessons.keep(
                number,
                told.quantiles,
                now=at,
                waited=told.waited,
                tells_whole_wait=told.first,
            )
        elif at <= now:
            lessons.close(number, now=at)
    return lessons


def _quantile(errors: list[tuple[float, float]], level: float, believed: float) -> float:
    """The quantile of weighted errors.

    As if besides there were ``TRUST`` errors of almost nothing, that share of them below zero
    which should lie below.
    """
    below = TRUST * believed
    ordered = sorted([*errors, (-NOTHING, below), (NOTHING, TRUST - below)])
    wanted = level * sum(weight for _, weight in ordered)
    for error, weight in ordered:
        wanted -= weight
        if wanted <= NOTHING:
            return error
    return ordered[-1][0]


def _loss(level: float, seconds: float, truth: float) -> float:
    return max(level * (truth - seconds), (level - 1.0) * (truth - seconds))


def pinball(quantiles: Sequence[float], truth: float) -> float:
    """Mean pinball loss at 10, 50 and 90 %, in the unit of the arguments."""
    losses = [
        _loss(level, seconds, truth) for level, seconds in zip(LEVELS, quantiles, strict=True)
    ]
    return sum(losses) / len(losses)
