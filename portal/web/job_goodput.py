"""Throughput and goodput of a job on its page: the last pace, and the curve over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils.translation import gettext

from portal.web.components import words
from portal.web.components.history import Mark
from workers.curves import CurvePoint

MOST_CHECKPOINTS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The newest sample and its trend.

    Attributes:
        throughput, goodput: samples per second.
        step: number of the last step.
        step_seconds: of one step, if reported.
        loss: if reported.
        trend: goodput of the last samples, oldest first.
    """

    throughput: float
    goodput: float
    step: int
    step_seconds: float | None
    loss: float | None
    trend: tuple[float, ...]


def pace_of(samples: Sequence[CurvePoint]) -> Pace | None:
    """Return the pace at the end of ``samples`` (oldest first); None without any."""
    if not samples:
        return None
    last = samples[-1]
    return Pace(
        throughput=last.throughput,
        goodput=last.goodput,
        step=last.step,
        step_seconds=last.step_seconds,
        loss=last.loss,
        trend=tuple(sample.goodput for sample in samples),
    )


def goodput_figure(
    samples: Sequence[CurvePoint],
    *,
    start: datetime,
    end: datetime,
    marks: Sequence[Mark] = (),
    checkpoints: Sequence[datetime] = (),
) -> dict[str, Any]:
    """Build the curves of goodput and throughput, with a gap between attempts.

    Args:
        samples: oldest first.
        start: start of the axis: the timeline above it has the same span.
        end: end of the axis.
        marks: changes of the job, oldest first.
        checkpoints: times of saving, oldest first; the newest are drawn.
    """
    points = _with_gaps(samples)
    times = [words.on_chart(at) for at, _ in points]
    return {
        "data": [
            _trace(
                gettext("throughput"),
                "c1",
                times,
                [s.throughput if s else None for _, s in points],
            ),
            _trace(
                gettext("goodput"), "text", times, [s.goodput if s else None for _, s in points]
            ),
        ],
        "layout": {
            "xaxis": {"range": [words.on_chart(start), words.on_chart(end)]},
            "yaxis": {"rangemode": "tozero"},
        },
        "marks": [
            *(
                {
                    "x": words.on_chart(mark.at),
                    "text": gettext(", ").join((str(mark.what), str(mark.cause))),
                    "line": True,
                }
                for mark in marks
            ),
            *(
                {"x": words.on_chart(at), "text": gettext("checkpoint saved"), "line": False}
                for at in checkpoints[-MOST_CHECKPOINTS:]
            ),
        ],
    }


def goodput_in_words(samples: Sequence[CurvePoint]) -> str:
    """Describe the chart in a sentence."""
    pace = pace_of(samples)
    if pace is None:
        return gettext("No progress reported yet.")
    most = max(sample.goodput for sample in samples)
    return gettext("Goodput %(goodput)s samples/s at step %(step)s (peak %(most)s).") % {
        "goodput": words.amount(pace.goodput),
        "step": words.count(pace.step),
        "most": words.amount(most),
    }


def _trace(name: str, colour: str, times: list[str], values: list[float | None]) -> dict[str, Any]:
    rounded = [None if value is None else float(f"{value:.6g}") for value in values]
    return {"name": name, "type": "scatter", "colour": colour, "x": times, "y": rounded}


def _with_gaps(samples: Sequence[CurvePoint]) -> list[tuple[datetime, CurvePoint | None]]:
    points: list[tuple[datetime, CurvePoint | None]] = []
    before: CurvePoint | None = None
    for sample in samples:
        if before is not None and sample.attempt != before.attempt:
            points.append((before.at, None))
        points.append((sample.at, sample))
        before = sample
    return points
