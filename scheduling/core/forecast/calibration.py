"""Calibration of start estimates: mixing, correction by past errors, and measured quality.

Five estimates are mixed. The first is from the simulated futures, and the second is the first one
shifted by its recent error. The others are the usual waits of the virtual cluster, its present
waits, and the time in which its queue drains. At each quantile, the lowest and the highest are
dropped and the logarithms of the others are averaged (Jose and Winkler, International Journal of
Forecasting 2008). An error counts less if many estimates were open at the same time, since all
waits of one congestion are one error. Therefore weights are not learned from losses.

Then each start inside the range narrows both ends, and each start outside widens them, so that the
range reaches its coverage (adaptive conformal inference, Gibbs and Candes, NeurIPS 2021). The
correction is bounded, since one congestion after many short waits would result in ranges of
months.

Data counts only from the time at which it became available. A waiting job counts as above the
upper end as soon as the upper end has passed.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, inf, log
from typing import Final

from scheduling.core.forecast.usual import (
    LEVELS,
    NEWEST,
    Quantiles,
    drained_waits,
    present_waits,
    usual_waits,
)

MIDDLE: Final = 1
OFFSET: Final = 900.0
"""Seconds added before a logarithm is taken, so that a minute is a small error."""

TRUST: Final = 5.0
"""Number of zero errors that are added to the errors of the futures."""

FORGETS: Final = 0.97
"""Decay factor of a past error relative to the following error."""

MOST_ERRORS: Final = 150
"""Maximum number of past errors."""

FARTHEST: Final = 1.5
"""Maximum shift of the futures by their errors, on the logarithmic scale."""

STEP: Final = 0.05
"""Relative change of an end's distance from the middle for a full share of error."""

NEAREST, WIDEST = 0.6, 1.4
"""Bounds of the factor by which an end's distance from the middle is stretched."""


SPREAD: Final = 8.0
"""Maximum ratio of the end of a range to its start; larger ranges are not shown."""

SOON: Final = OFFSET
"""Minimum start of a range in seconds for the ratio: *within 2 h* is still useful."""

GATE_SECONDS: Final = 60.0
"""If 9 of 10 futures start a job within these seconds after its gate, only the gate counts."""

COMPARED: Final = 10
"""Minimum number of finished waits to compare two forecasts."""

MARGIN: Final = 0.5
"""Maximum ratio of the recent losses of the usual waits to those of the corrected futures at which
the usual waits are shown. All waits of one congestion are one error, so that a smaller difference
does not last."""


class Basis(StrEnum):
    """The source of a start estimate."""

    FORECAST = "forecast"
    WAITS = "waits"
    GATE = "gate"
    FEW = "few"
    """No estimate: futures end before the start, and too few jobs have started after a wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Start of a job in seconds from now at 10, 50 and 90 %, and the method of the estimate."""

    quantiles: Quantiles
    basis: Basis

    @property
    def is_reliable(self) -> bool:
        """Whether the range is narrow enough to be shown."""
        p10, _, p90 = self.quantiles
        return p90 <= SPREAD * max(p10, SOON)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEstimate:
    """A past estimate from the futures, and the actual wait, in seconds.

    Attributes:
        quantiles: quantiles at 10, 50 and 90 %, before correction; None if no estimate was
            possible, so that only the wait counts.
        wait: time from the estimate to the start, or to now while the job waits.
        started: whether the wait is over.
        made: time of the estimate; all estimates use the same clock.
        waited: wait of the job at that time.
        first: whether it is the first estimate of its job, which covers the complete wait.
        devices: number of devices that the job requests.
        job: ID of the job; None if not needed.
    """

    quantiles: Quantiles | None
    wait: float
    started: bool = True
    made: float = 0.0
    waited: float = 0.0
    first: bool = True
    devices: int = 1
    job: int | None = None


class Calibration:
    """Corrections learned from past estimates, which are added in the order of time."""

    def __init__(self) -> None:
        self.stretch = [1.0, 1.0]
        self._open: dict[int, _Kept] = {}
        self._errors: deque[tuple[float, float]] = deque(maxlen=MOST_ERRORS)
        self._waits: list[float] = []
        self._newest: deque[float] = deque(maxlen=NEWEST)
        self._given: list[tuple[float, int]] = []
        self._began = inf
        self._losses: deque[tuple[float, float]] = deque(maxlen=MOST_ERRORS)
        self.usual_miss = 0.0

    def forecast(
        self,
        quantiles: Quantiles,
        *,
        now: float,
        waited: float = 0.0,
        devices: int = 1,
        job: int | None = None,
        soonest: float = 0.0,
    ) -> Forecast:
        """Return the best forecast: gate, corrected futures, or usual waits.

        The usual waits replace the futures where their recent errors are smaller. The arguments
        are those of ``mend``.
        """
        if soonest > 0.0 and quantiles[-1] <= soonest + GATE_SECONDS:
            return Forecast(quantiles=(soonest, soonest, soonest), basis=Basis.GATE)
        plain = usual_waits(self._waits, waited)
        if plain is not None and self.prefers_waits:
            p10, p50, p90 = sorted(max(soonest, seconds) for seconds in plain)
            return Forecast(quantiles=(p10, p50, p90), basis=Basis.WAITS)
        mended = self.mend(
            quantiles, now=now, waited=waited, devices=devices, job=job, soonest=soonest
        )
        return Forecast(quantiles=mended, basis=Basis.FORECAST)

    def from_waits(
        self,
        *,
        now: float,
        waited: float = 0.0,
        devices: int = 1,
        job: int | None = None,
        soonest: float = 0.0,
    ) -> Quantiles | None:
        """Return quantiles where most futures end before the start; None after too few waits.

        They are the medians of the forecasts that need no futures: the usual waits, the present
        waits and the drain. The arguments are those of ``mend``.
        """
        needed = self._ahead(now, waited, job) + devices
        answers = [
            _logarithms(answer)
            for answer in self._without_futures(now, waited, needed)
            if answer is not None
        ]
        if not answers:
            return None
        middles = [sorted(values)[len(values) // 2] for values in zip(*answers, strict=True)]
        p10, p50, p90 = sorted(max(soonest, exp(value) - OFFSET) for value in middles)
        return p10, p50, p90

    @property
    def prefers_waits(self) -> bool:
        """Return whether the usual waits have been much closer than the corrected futures."""
        if len(self._losses) < COMPARED:
            return False
        plain = mended = 0.0
        for losses in self._losses:
            mended = FORGETS * mended + losses[0]
            plain = FORGETS * plain + losses[1]
        return plain < MARGIN * mended

    def mend(
        self,
        quantiles: Quantiles,
        *,
        now: float,
        waited: float = 0.0,
        devices: int = 1,
        job: int | None = None,
        soonest: float = 0.0,
    ) -> Quantiles:
        """Return the corrected quantiles, in order and not before ``soonest``.

        Args:
            quantiles: quantiles from the futures.
            now: the present.
            waited: wait of the job so far.
            devices: number of devices that it requests.
            job: ID of the job, if earlier estimates of it may be stored.
            soonest: lower bound of the start in seconds, not negative, independent of other jobs.
        """
        self._note_passed(now)
        ahead = self._ahead(now, waited, job)
        low, middle, high = self._mixed(quantiles, now, waited, ahead + devices)
        below, above = self.stretch
        logarithms = middle - below * (middle - low), middle, middle + above * (high - middle)
        p10, p50, p90 = sorted(max(soonest, exp(value) - OFFSET) for value in logarithms)
        return p10, p50, p90

    def keep(self, number: int, told: PastEstimate) -> None:
        """Store an estimate under ``number``, without its outcome."""
        now = told.made
        shown = (
            None
            if told.quantiles is None
            else self.mend(
                told.quantiles, now=now, waited=told.waited, devices=told.devices, job=told.job
            )
        )
        self._began = min(self._began, now)
        self._open[number] = _Kept(
            told=told,
            shown=shown,
            plain=usual_waits(self._waits, told.waited),
            weight=1.0 / (1.0 + len(self._open)),
        )

    def close(self, number: int, *, now: float) -> None:
        """Record that the job of an estimate has started."""
        self._note_passed(now)
        kept = self._open.pop(number)
        told, wait = kept.told, now - kept.told.made
        if told.quantiles is not None and kept.shown is not None:
            self._learn(kept, told.quantiles, kept.shown, wait)
        if told.first:
            insort(self._waits, told.waited + wait)
            self._newest.append(told.waited + wait)
            self._given.append((now, told.devices))

    def _learn(self, kept: "_Kept", raw: Quantiles, shown: Quantiles, wait: float) -> None:
        """Correct later estimates by the error of one estimate."""
        self._adapt(0, is_beyond=wait < shown[0])
        if not kept.passed:
            self._adapt(1, is_beyond=False)
        error = log(wait + OFFSET) - log(raw[MIDDLE] + OFFSET)
        self._errors.append((error, kept.weight))
        self.usual_miss = _usual_miss(self._errors)
        if kept.plain is not None:
            self._losses.append((pinball(shown, wait), pinball(kept.plain, wait)))

    def _ahead(self, now: float, waited: float, job: int | None) -> int:
        """Return the devices of the jobs that have waited for longer."""
        return sum(
            kept.told.devices
            for kept in self._open.values()
            if kept.told.first
            and kept.told.made - kept.told.waited <= now - waited
            and (job is None or kept.told.job != job)
        )

    def _without_futures(
        self, now: float, waited: float, needed: int
    ) -> tuple[Quantiles | None, Quantiles | None, Quantiles | None]:
        """Return the usual waits, the present waits, and the time in which the queue drains."""
        going_on = [
            now - kept.told.made + kept.told.waited
            for kept in self._open.values()
            if kept.told.first
        ]
        return (
            usual_waits(self._waits, waited),
            present_waits(tuple(self._newest), going_on, waited),
            drained_waits(self._given, needed, now=now, began=self._began),
        )

    def _mixed(
        self, quantiles: Quantiles, now: float, waited: float, needed: int
    ) -> Sequence[float]:
        """Return the logarithms of the mixed estimates, in order."""
        others = self._without_futures(now, waited, needed)
        answers = [_logarithms(quantiles)]
        answers.append([max(value + self.usual_miss, log(OFFSET)) for value in answers[0]])
        answers += [_logarithms(answer or quantiles) for answer in others]
        return [_trimmed_mean(values) for values in zip(*answers, strict=True)]

    def _note_passed(self, now: float) -> None:
        for kept in self._open.values():
            if kept.shown is None or kept.passed:
                continue
            if now - kept.told.made > kept.shown[-1]:
                kept.passed = True
                self._adapt(1, is_beyond=True)

    def _adapt(self, end: int, *, is_beyond: bool) -> None:
        share = LEVELS[0]
        moved = self.stretch[end] * exp(STEP * ((1.0 - share) if is_beyond else -share))
        self.stretch[end] = min(max(moved, NEAREST), WIDEST)


@dataclass(slots=True)
class _Kept:
    told: PastEstimate
    shown: Quantiles | None
    plain: Quantiles | None
    weight: float
    passed: bool = False


def learn(past: Sequence[PastEstimate], *, now: float) -> Calibration:
    """Build the calibration from past estimates in any order.

    Args:
        past: past estimates of one virtual cluster.
        now: current time, on their clock.
    """
    lessons = Calibration()
    events = [(told.made, 0, number) for number, told in enumerate(past)]
    events += [
        (told.made + told.wait, 1, number) for number, told in enumerate(past) if told.started
    ]
    for at, is_start, number in sorted(events):
        if not is_start:
            lessons.keep(number, past[number])
        elif at <= now:
            lessons.close(number, now=at)
    return lessons


def _logarithms(quantiles: Quantiles) -> list[float]:
    return [log(seconds + OFFSET) for seconds in quantiles]


def _trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest value."""
    inner = sorted(values)[1:-1]
    return sum(inner) / len(inner)


def _usual_miss(errors: Sequence[tuple[float, float]]) -> float:
    """Return the weighted median of the errors, newest last, with ``TRUST`` zero errors added."""
    weighted = [(0.0, TRUST)]
    weighted += [
        (error, weight * FORGETS**rank) for rank, (error, weight) in enumerate(reversed(errors))
    ]
    left = 0.5 * sum(weight for _, weight in weighted)
    for error, weight in sorted(weighted):
        left -= weight
        if left <= 0.0:
            return min(max(error, -FARTHEST), FARTHEST)
    return 0.0


def pinball(quantiles: Sequence[float], truth: float) -> float:
    """Return the mean pinball loss at 10, 50 and 90 %, in the unit of the arguments."""
    losses = [
        max(level * (truth - seconds), (level - 1.0) * (truth - seconds))
        for level, seconds in zip(LEVELS, quantiles, strict=True)
    ]
    return sum(losses) / len(losses)
