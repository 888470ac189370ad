"""Lines of reports with points of metrics, as the control plane reads them."""

from __future__ import annotations

import json
import math
import re
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Union

MOST_LINE_BYTES = 40 << 10
LONGEST_NAME = 100
_POINT_BYTES, _VALUE_BYTES = 60, 28
_UNNAMED = re.compile(r"[^A-Za-z0-9_ ./:@%()+-]")
_START = re.compile(r"^[^A-Za-z0-9_]+")


class Value(NamedTuple):
    """A value of a metric; ``time`` is in seconds since the epoch."""

    name: str
    step: int
    time: float
    value: float


def metric_name(text: str) -> str:
    """Return a valid name for a metric; empty if nothing of the text is valid."""
    return _START.sub("", _UNNAMED.sub("_", text[:LONGEST_NAME]))


def report_lines(values: Iterable[Value], *, process: int = 0) -> Iterator[bytes]:
    """Yield lines with all values; consecutive values of one step share a point.

    Args:
        values: with valid names, in order.
        process: number of the process of the rank.
    """
    points: List[List[object]] = []
    named: Dict[str, Union[float, str]] = {}
    step: Optional[int] = None
    size = 0
    for one in values:
        if size > MOST_LINE_BYTES:
            yield _line(points, process)
            points, step, size = [], None, 0
        if one.step != step or one.name in named:
            named, step = {}, one.step
            time = round(one.time, 3) if math.isfinite(one.time) else None
            points.append([one.step, time, None, named])
            size += _POINT_BYTES
        named[one.name] = one.value if math.isfinite(one.value) else str(one.value)
        size += len(one.name) + _VALUE_BYTES
    if points:
        yield _line(points, process)


def _line(points: List[List[object]], process: int) -> bytes:
    line: Dict[str, object] = {"points": points}
    if process:
        line["local_rank"] = process
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
