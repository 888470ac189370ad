"""The report of a comparison: one self-contained HTML file, readable without a network.

The template escapes all text. ``html.escape`` also escapes the data of charts, since Plotly
interprets some tags in labels.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from scheduling.core.simulation.comparing import METRICS
from scheduling.management.simulations import TaskOutcome

_STATIC: Final = Path(__file__).resolve().parents[2] / "static"
_QUANTILES: Final = 200
_LABEL: Final = 40


def render_report(document: Mapping[str, Any], outcomes: Sequence[TaskOutcome]) -> str:
    """Render the complete HTML page.

    Args:
        document: the result of ``compare``, with the common parameters of the runs.
        outcomes: the runs, with their recordings.
    """
    first = outcomes[0]
    context = {
        "document": document,
        "rows": [_row(item, document["baseline"]) for item in document["policies"]],
        "metrics": [name for name, _unit in METRICS.values()],
        "distributions": [_distribution(name, outcomes) for name in _policies(outcomes)],
        "runs": [_run_row(outcome) for outcome in outcomes],
        "left_out": sorted(
            {
                (outcome.task.workload.name, reason, count)
                for outcome in outcomes
                for reason, count in outcome.left_out.items()
            }
        ),
        "spans": _span_rows(first),
        "first": f"{first.task.policy} on {first.task.workload.name}, seed {first.task.seed}",
        "charts": {
            "cdf": _curves(outcomes, "jct"),
            "fairness": _curves(outcomes, "ftf"),
            "box": _boxes(outcomes),
            "ratios": _ratios(document),
            "runs": [_course(outcome) for outcome in outcomes],
        },
        "look": json.loads((_STATIC / "plotly.json").read_text(encoding="utf-8")),
        "tokens": _styles(),
        "plotly": _script(),
    }
    return render_to_string("reports/compare.html", context)


def _styles() -> SafeString:
    """Return the design tokens without font files, and the charts' styles."""
    tokens = (_STATIC / "tokens.css").read_text(encoding="utf-8")
    lines = [line for line in tokens.splitlines() if not line.startswith("@font-face")]
    styles = (_STATIC / "dist" / "plotly.css").read_text(encoding="utf-8")
    return mark_safe("\n".join([*lines, styles]))  # noqa: S308 (our own files)


def _script() -> SafeString:
    """Return the chart library, escaped so that it cannot end its script element."""
    text = (_STATIC / "dist" / "plotly-cartesian.min.js").read_text(encoding="utf-8")
    return mark_safe(text.replace("</script", "<\\/script"))  # noqa: S308 (our own file)


def _label(text: str) -> str:
    """Return a short chart label without HTML special characters."""
    short = text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"
    return escape(short)


def _policies(outcomes: Sequence[TaskOutcome]) -> list[str]:
    return list(dict.fromkeys(outcome.task.policy for outcome in outcomes))


def _values(outcomes: Sequence[TaskOutcome], policy: str, what: str) -> "np.ndarray[Any, Any]":
    """Return sorted completion times in hours, or finish-time fairness, of a policy's runs."""
    found: list[float] = []
    for outcome in outcomes:
        if outcome.task.policy == policy:
            result = outcome.result
            found += [s / 3600.0 for s in result.jcts] if what == "jct" else list(result.ftf)
    return np.sort(np.array(found, dtype=np.float64))


def _curves(outcomes: Sequence[TaskOutcome], what: str) -> list[dict[str, Any]]:
    """Build the distribution curves by policy."""
    curves = []
    for policy in _policies(outcomes):
        values = _values(outcomes, policy, what)
        if len(values):
            parts = np.linspace(0.0, 1.0, min(_QUANTILES, len(values)) + 1)
            x = np.quantile(values, parts)
            curves.append(
                {"name": _label(policy), "x": _short(x), "y": _short(parts * 100.0)},
            )
    return curves


def _boxes(outcomes: Sequence[TaskOutcome]) -> list[dict[str, Any]]:
    boxes = []
    for policy in _policies(outcomes):
        values = _values(outcomes, policy, "jct")
        if len(values):
            low, q1, median, q3, high = _short(np.percentile(values, [5, 25, 50, 75, 95]))
            boxes.append(
                {
                    "name": _label(policy),
                    "lowerfence": [low],
                    "q1": [q1],
                    "median": [median],
                    "q3": [q3],
                    "upperfence": [high],
                    "mean": [round(float(values.mean()), 5)],
                }
            )
    return boxes


def _distribution(policy: str, outcomes: Sequence[TaskOutcome]) -> dict[str, Any]:
    """Build a row of the table next to the distributions."""
    times, fairness = _values(outcomes, policy, "jct"), _values(outcomes, policy, "ftf")
    cells = [f"{value:.3f}" for value in _percentiles(times)]
    return {
        "policy": policy,
        "times": cells,
        "fairness": [f"{value:.2f}" for value in _percentiles(fairness)],
    }


def _percentiles(values: "np.ndarray[Any, Any]") -> list[float]:
    return _short(np.percentile(values, [5, 25, 50, 75, 95, 100])) if len(values) else []


def _ratios(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Build points with their intervals, one series per policy."""
    series = []
    for item in document["policies"]:
        if item["policy"] == document["baseline"]:
            continue
        points = [
            (METRICS[metric][0], figure["ratio"])
            for metric, figure in item["figures"].items()
            if figure["ratio"] is not None
        ]
        series.append(
            {
                "name": _label(item["policy"]),
                "y": [name for name, _ratio in points],
                "x": [ratio["geometric"] for _name, ratio in points],
                "plus": [_reach(ratio, "high") for _name, ratio in points],
                "minus": [-_reach(ratio, "low") for _name, ratio in points],
            }
        )
    return series


def _reach(ratio: Mapping[str, Any], end: str) -> float:
    """Return the distance from a ratio to an end of its interval; 0 without an interval."""
    return 0.0 if ratio[end] is None else float(ratio[end] - ratio["geometric"])


def _row(item: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """Build the row of a policy in the first table."""
    cells = []
    for metric, figure in item["figures"].items():
        ratio = figure["ratio"]
        unit = METRICS[metric][1]
        mean = "-" if figure["mean"] is None else f"{figure['mean']:.3f} {unit}".strip()
        text, tone = "", ""
        if ratio is not None and item["policy"] != baseline:
            text = f"×{ratio['geometric']:.3f}"
            if ratio["low"] is not None:
                text += f" ({ratio['low']:.2f} to {ratio['high']:.2f})"
                tone = "better" if ratio["high"] < 1.0 else "worse" if ratio["low"] > 1.0 else ""
        cells.append({"mean": mean, "ratio": text, "tone": tone})
    return {**item, "cells": cells, "is_baseline": item["policy"] == baseline}


def _run_row(outcome: TaskOutcome) -> dict[str, Any]:
    """Build the row of a run in the table of runs."""
    document = outcome.result.to_json()
    busy = document["avg_gpus_busy"] / outcome.devices * 100.0 if outcome.devices else 0.0
    course = outcome.recorder.points if outcome.recorder else []
    return {
        "policy": outcome.task.policy,
        "workload": outcome.task.workload.name,
        "seed": outcome.task.seed,
        **{key: document[key] for key in ("jobs", "completed", "censored", "refused", "failures")},
        "busy": f"{busy:.1f} %",
        "longest": max((waiting for _time, waiting, _busy in course), default=0),
        "fallbacks": len(outcome.result.fallbacks),
    }


def _course(outcome: TaskOutcome) -> dict[str, Any]:
    """Return the charted time series of one run, in hours from its beginning."""
    recorder = outcome.recorder
    points = recorder.points if recorder else []
    spans = recorder.spans if recorder else []
    start = points[0][0] if points else 0.0
    order = list(dict.fromkeys(span.job for span in spans))
    places = {name: place for place, name in enumerate(order)}
    return {
        "policy": _label(outcome.task.policy),
        "pair": f"{_label(outcome.task.workload.name)}, seed {outcome.task.seed}",
        "devices": outcome.devices,
        "time": [round((time - start) / 3600.0, 4) for time, _waiting, _busy in points],
        "waiting": [waiting for _time, waiting, _busy in points],
        "busy": [
            round(100.0 * busy / max(1, outcome.devices), 2) for _time, _waiting, busy in points
        ],
        "names": [_label(name) for name in order],
        "spans": [
            [
                places[span.job],
                round((span.start - start) / 3600.0, 4),
                round((span.end - span.start) / 3600.0, 4),
                _label(span.kind),
                span.devices,
            ]
            for span in spans
        ],
    }


def _span_rows(outcome: TaskOutcome) -> list[dict[str, Any]]:
    """Build the rows of the table next to the allocations, from the first run."""
    recorder = outcome.recorder
    if recorder is None or not recorder.points:
        return []
    start = recorder.points[0][0]
    return [
        {
            "job": span.job[:200],
            "start": f"{(span.start - start) / 3600.0:.2f}",
            "end": f"{(span.end - start) / 3600.0:.2f}",
            "kind": span.kind[:60],
            "devices": span.devices,
        }
        for span in recorder.spans[:400]
    ]


def _short(values: "np.ndarray[Any, Any]") -> list[float]:
    return [round(float(value), 5) for value in values]
