"""A job's training on its page: throughput, goodput, and texts about other sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext
from django.utils.translation import gettext as _

from portal.web.components import words
from portal.web.components.history import Mark
from scheduling.core.performance.executors import executors_in
from scheduling.parallelism.views import ProfiledPace
from scheduling.runs.queries.predictions import Outlook
from workers.goodput import CurvePoint

if TYPE_CHECKING:
    from scheduling.core.performance.saturation import Prediction


MOST_CHECKPOINTS: Final = 200
MOST_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The newest sample and its trend.

    Attributes:
        throughput, goodput: samples per second.
        step: number of the last step.
        step_seconds: duration of one step, if reported.
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
    profiles: Sequence[ProfiledPace] = (),
) -> dict[str, Any]:
    """Build the curves of goodput and throughput, with a gap between attempts.

    Args:
        samples: oldest first.
        start: start of the axis: the timeline above it has the same span.
        end: end of the axis.
        marks: changes of the job, oldest first.
        checkpoints: times of saving, oldest first; the newest are drawn.
        profiles: throughput of one device by profile jobs, drawn as one point for each type.
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
            *_profile_traces(profiles, start, end),
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


def _profile_traces(
    profiles: Sequence[ProfiledPace], start: datetime, end: datetime
) -> list[dict[str, Any]]:
    """Return one point for each type, within the span of the chart."""
    return [
        {
            **_trace(
                gettext("profile on %(type)s") % {"type": one.type},
                f"c{2 + number % 4}",
                [words.on_chart(min(max(one.measured_at, start), end))],
                [one.samples_per_second],
            ),
            "mode": "markers",
        }
        for number, one in enumerate(profiles)
    ]


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


def elastic_words(said: Mapping[str, Any] | None, asked: int) -> str:
    """Describe the bounds of an elastic job and its rule between them; empty if rigid.

    Args:
        said: field ``elastic`` of the job's specification.
        asked: requested devices.
    """
    if said is None:
        return ""
    least, most = said.get("min", asked), said.get("max", asked)
    size = words.plural(most, "device", "devices")
    parts = [
        gettext("%(least)s to %(size)s") % {"least": words.count(least), "size": size}
        if least < most
        else size
    ]
    if "logical_workers" in said:
        level = f" ({said['determinism']})" if "determinism" in said else ""
        parts.append(
            f"{words.plural(said['logical_workers'], 'logical worker', 'logical workers')}{level}"
        )
    if said.get("executors", 1) > 1:
        processes = words.plural(said["executors"], "process", "processes")
        parts.append(gettext("up to %(processes)s per device") % {"processes": processes})
    if "initial_batch" in said:
        parts.append(
            gettext("batch %(initial_batch)s to %(max_batch)s")
            % {
                "initial_batch": words.count(said["initial_batch"]),
                "max_batch": words.count(said["max_batch"]),
            }
        )
    if "total_steps" in said:
        parts.append(words.plural(said["total_steps"], "step", "steps"))
    if "epochs" in said:
        parts.append(words.plural(said["epochs"], "epoch", "epochs"))
    return ", ".join(parts)


def layout_words(layout: Sequence[Sequence[int]] | None, devices: int) -> str:
    """Describe the layout of logical workers on devices; empty without any.

    Args:
        layout: logical workers of each process, by member.
        devices: number of devices of all members.
    """
    if not layout:
        return ""
    counts = [_(", ").join(words.count(one) for one in member) for member in layout[:MOST_SHOWN]]
    shown = "; ".join([*counts, "…"] if len(layout) > MOST_SHOWN else counts)
    executors = executors_in(layout, devices)
    if not executors:
        total = words.plural(sum(map(len, layout)), "process", "processes")
        return _("%(processes)s, logical workers of each: %(counts)s") % {
            "processes": total,
            "counts": shown,
        }
    processes = words.plural(executors, "process", "processes")
    return _("%(processes)s per device, logical workers of each: %(counts)s") % {
        "processes": processes,
        "counts": shown,
    }


def outlook_words(outlook: Outlook | None) -> tuple[tuple[str, str], ...]:
    """Return expected results at other sizes, and past costs of restarts, as facts."""
    if outlook is None:
        return ()
    facts = []
    curve = outlook.prediction
    if curve is not None:
        facts.append(
            (
                gettext("Sizes"),
                gettext("%(verdict)s (on %(type)s)")
                % {"verdict": _verdict(curve), "type": curve.type},
            )
        )
        facts.append((gettext("Steps/s by size"), _curve(curve)))
        if curve.has_gains:
            facts.append((gettext("Scaling efficiency"), _efficiency(curve)))
    if outlook.restarts:
        each = outlook.start_seconds
        cost = (
            gettext(", %(each)s each") % {"each": words.duration(each)} if each is not None else ""
        )
        facts.append((gettext("Restarts"), f"{words.count(outlook.restarts)}{cost}"))
    if outlook.lost_seconds >= 0.5:
        facts.append((gettext("Work lost to preemptions"), words.duration(outlook.lost_seconds)))
    return tuple(facts)


def sizes_figure(outlook: Outlook | None, *, held: int = 0) -> dict[str, Any] | None:
    """Build the figure of predicted pace by size, with measured sizes marked; None if unknown.

    Args:
        outlook: of the job.
        held: devices that the job uses now, which are marked; 0 if it does not run.
    """
    curve = outlook.prediction if outlook is not None else None
    if curve is None or len(curve.sizes) < 2:
        return None
    sizes = [n for n, _ in curve.sizes]
    paces = [_rounded(rate) for _, rate in curve.sizes]
    seen = [pace if n in curve.seen else None for n, pace in zip(sizes, paces, strict=True)]
    least = [_rounded(low) for low, _ in curve.bounds]
    most = [_rounded(high) for _, high in curve.bounds]
    common = {"type": "scatter", "x": sizes}
    edge = {**common, "mode": "lines", "colour": "text-3", "line": {"width": 0}, "opacity": 0.4}
    return {
        "data": [
            {**edge, "name": gettext("no gain"), "y": least},
            {**edge, "name": gettext("perfect scaling"), "y": most, "fill": "tonexty"},
            {
                **common,
                "name": gettext("estimated"),
                "colour": "text-2",
                "mode": "lines",
                "line": {"dash": "dash"},
                "y": paces,
            },
            {
                **common,
                "name": gettext("measured"),
                "colour": "text",
                "mode": "markers",
                "y": seen,
            },
            *_operating_point(sizes, paces, held),
        ],
        "layout": {
            "xaxis": {"title": {"text": gettext("devices")}, "dtick": -(-max(sizes) // 16)},
            "yaxis": {"rangemode": "tozero"},
        },
        "across": gettext("Devices"),
    }


def _operating_point(
    sizes: Sequence[int], paces: Sequence[float], held: int
) -> list[dict[str, Any]]:
    """Return the mark of the present size; empty if the figure does not have it."""
    if held not in sizes:
        return []
    return [
        {
            "type": "scatter",
            "name": gettext("in use now"),
            "mode": "markers",
            "colour": "accent",
            "marker": {"symbol": "circle-open", "size": 14},
            "x": [held],
            "y": [paces[sizes.index(held)]],
        }
    ]


def _rounded(rate: float) -> float:
    return float(f"{rate:.6g}")


def sizes_in_words(outlook: Outlook | None) -> str:
    """Describe the chart of sizes in a sentence; empty without data."""
    curve = outlook.prediction if outlook is not None else None
    if curve is None:
        return ""
    facts = {"verdict": _verdict(curve), "type": curve.type}
    return _("%(verdict)s on %(type)s.") % facts


def _verdict(curve: "Prediction") -> str:
    """Describe measurements of other sizes; no claim goes beyond the largest measured one."""
    asked, enough = words.count(curve.requested), words.count(curve.saturates)
    largest = words.plural(max(curve.seen), "device", "devices")
    if not curve.has_gains:
        return gettext("%(asked)s requested; not measured beyond %(size)s") % {
            "asked": asked,
            "size": largest,
        }
    if curve.saturates < max(curve.seen):
        return gettext("%(asked)s requested; no gain measured beyond %(enough)s") % {
            "asked": asked,
            "enough": enough,
        }
    return gettext(
        "%(asked)s requested; gains measured up to %(enough)s; not measured beyond %(size)s"
    ) % {"asked": asked, "enough": enough, "size": largest}


def _curve(curve: "Prediction") -> str:
    """Return the curve of the pace by size; measured sizes are marked."""
    inside = [(n, rate) for n, rate in curve.sizes if min(curve.seen) <= n <= max(curve.seen)]
    stride = -(-len(inside) // MOST_SHOWN) or 1
    shown = [
        one for place, one in enumerate(inside) if place % stride == 0 or one[0] in curve.seen
    ]
    measured = f" ({gettext('measured')})"
    return _(", ").join(
        f"{words.count(n)}: {words.amount(rate)}{measured if n in curve.seen else ''}"
        for n, rate in shown
    )


def _efficiency(curve: "Prediction") -> str:
    """Format measured sizes and their pace as a share of perfect scaling from the smallest."""
    return _(", ").join(
        f"{words.count(n)}: {words.percent(share)}" for n, share in curve.efficiencies[:MOST_SHOWN]
    )
