"""Progress of a training towards its declared last step, with the expected range of its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from django.utils.translation import gettext as _

from portal.web.components import words
from portal.web.viewing import PageRequest
from scheduling.jobs.queries.job_detail import JobDetail
from workers.goodput import CurvePoint

CHUNKS: Final = 8
"""Parts of the recent samples whose paces are compared."""
RECENT: Final = 120
LEAST_SAMPLES: Final = 4
LEAST_SPREAD: Final = 0.05
LONGEST: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRange:
    """When the last step is expected: p10, p50 and p90 of the recent pace."""

    soonest: datetime
    likely: datetime
    latest: datetime


def end_range(
    samples: Sequence[CurvePoint], *, total_steps: int, now: datetime
) -> EndRange | None:
    """Return when a training reaches its last step; None if its pace is not known.

    The pace of recent parts of the attempt gives p10 to p90. The latest end also has the mean pace
    since the first report, with all pauses, since pauses may come again.

    Args:
        samples: oldest first.
        total_steps: number of the last step.
        now: the present.
    """
    recent = [one for one in samples if one.attempt == samples[-1].attempt][-RECENT:]
    if len(recent) < LEAST_SAMPLES:
        return None
    paces = sorted(_paces(recent))
    left = total_steps - recent[-1].step
    if not paces or left < 0:
        return None
    slow, usual, fast = (_quantile(paces, share) for share in (0.1, 0.5, 0.9))
    whole = _pace(samples[0], samples[-1])
    slow = min(slow, usual * (1 - LEAST_SPREAD), whole or slow)
    fast = max(fast, usual * (1 + LEAST_SPREAD))
    soonest, likely, latest = (
        # A duration that is too long for a timedelta raises, and a job may declare any last step.
        now + timedelta(seconds=min(LONGEST.total_seconds(), left / pace))
        for pace in (fast, usual, slow)
    )
    return EndRange(soonest=soonest, likely=likely, latest=latest)


def _paces(samples: Sequence[CurvePoint]) -> list[float]:
    width = max(1, (len(samples) - 1) // CHUNKS)
    edges = samples[::-width][::-1]
    found = (_pace(first, last) for first, last in pairwise(edges))
    return [pace for pace in found if pace is not None]


def _pace(first: CurvePoint, last: CurvePoint) -> float | None:
    """Return steps per second between two samples; None if there are none."""
    seconds = (last.at - first.at).total_seconds()
    steps = last.step - first.step
    return steps / seconds if seconds > 0 and steps > 0 else None


def _quantile(values: Sequence[float], share: float) -> float:
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSpan:
    """A part of the bar of progress, in percent of its width."""

    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressDrawing:
    """The bar of progress on an axis of time.

    Attributes:
        attempts: spans of the attempts; gaps are pauses.
        rest: from now to the latest end.
        band: soonest to latest end.
        now, likely: positions in percent.
    """

    attempts: tuple[ProgressSpan, ...]
    rest: ProgressSpan | None
    band: ProgressSpan | None
    now: float
    likely: float | None


def progress_drawing(
    spans: Sequence[tuple[datetime, datetime]], *, now: datetime, end: EndRange | None
) -> ProgressDrawing | None:
    """Draw attempts and the expected end; None without an attempt.

    Args:
        spans: start and end of the attempts, oldest first.
        now: the present, or the end of the job.
        end: expected end of a running job.
    """
    if not spans:
        return None
    first = spans[0][0]
    whole = ((end.latest if end else now) - first).total_seconds() or 1.0

    def place(moment: datetime) -> float:
        return round(100 * min(1.0, max(0.0, (moment - first).total_seconds() / whole)), 2)

    def bar(start: datetime, stop: datetime) -> ProgressSpan:
        return ProgressSpan(x=place(start), width=round(max(0.2, place(stop) - place(start)), 2))

    return ProgressDrawing(
        attempts=tuple(bar(*span) for span in spans),
        rest=bar(now, end.latest) if end else None,
        band=bar(end.soonest, end.latest) if end else None,
        now=place(now),
        likely=place(end.likely) if end else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The card of progress.

    Attributes:
        percent: share of the declared steps; empty without them.
        text: steps, or how to declare them.
        note: basis of the expected end.
        begun, end: labels of the ends of the bar.
        summary: all of it in a sentence.
    """

    percent: str
    text: str
    note: str
    begun: str
    end: str
    summary: str
    drawing: ProgressDrawing | None


def progress_of(
    request: PageRequest,
    detail: JobDetail,
    samples: Sequence[CurvePoint],
    *,
    total_steps: int | None,
    log_step: int | None = None,
) -> Progress | None:
    """Describe the progress of a job; None before its first attempt.

    Args:
        request: of the page.
        detail: the job.
        samples: its goodput, oldest first.
        total_steps: declared number of the last step.
        log_step: newest step of its metrics, if it reports no goodput.
    """
    row, now = detail.row, request.now
    spans = [(one.running_at, one.ended_at or now) for one in detail.attempts if one.running_at]
    if not spans:
        return None
    is_running = row.state == "running"
    end = (
        end_range(samples, total_steps=total_steps, now=now)
        if is_running and total_steps and samples
        else None
    )
    step = samples[-1].step if samples else log_step
    text, finish = _steps(step, total_steps), _finish(end, row.finished_at)
    return Progress(
        percent=_percent(step, total_steps),
        text=text,
        note=_note(samples, end, is_running=is_running, total_steps=total_steps),
        begun=_("started %(at)s") % {"at": words.clock(spans[0][0])},
        end=finish,
        summary=_(", ").join(part for part in (text, finish) if part),
        drawing=progress_drawing(spans, now=row.finished_at or now, end=end),
    )


def _percent(step: int | None, total_steps: int | None) -> str:
    if not total_steps or step is None:
        return ""
    return words.percent(min(1.0, step / total_steps))


def _steps(step: int | None, total_steps: int | None) -> str:
    if step is None:
        return _("No steps reported yet.")
    if not total_steps:
        return _("Step %(step)s; no end declared.") % {"step": words.count(step)}
    return _("%(step)s of %(total)s steps") % {
        "step": words.count(step),
        "total": words.count(total_steps),
    }


def _note(
    samples: Sequence[CurvePoint],
    end: EndRange | None,
    *,
    is_running: bool,
    total_steps: int | None,
) -> str:
    if end is not None:
        return _("Estimated from the speed of this attempt; the latest end includes past pauses.")
    if not is_running:
        return ""
    if not total_steps:
        return _("Set total_steps in train.report to see when it ends.")
    return _("The end is estimated after more reports.") if samples else ""


def _finish(end: EndRange | None, finished_at: datetime | None) -> str:
    if finished_at is not None:
        return _("ended %(at)s") % {"at": words.clock(finished_at)}
    if end is None:
        return ""
    return _("ends about %(likely)s (%(soonest)s – %(latest)s)") % {
        "likely": words.clock(end.likely),
        "soonest": _short(end.soonest, end.likely),
        "latest": _short(end.latest, end.likely),
    }


def _short(moment: datetime, beside: datetime) -> str:
    """Format a time; the date only if it differs from that of the time beside it."""
    shown = words.local(moment)
    is_same_day = shown.date() == words.local(beside).date()
    return f"{shown:%H:%M}" if is_same_day else words.clock(moment)
