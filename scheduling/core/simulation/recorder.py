"""Recording of a simulation for its charts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_MOST_POINTS: Final = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSpan:
    """A span in which a job had the same devices.

    Attributes:
        kind: the device types, joined by ``+``.
    """

    job: str
    start: float
    end: float
    kind: str
    devices: int


class Recorder:
    """Records a simulation's state after each decision for the charts.

    If the time series exceeds its limit, every other point is dropped. Only the first jobs have
    separate lines.
    """

    def __init__(self, *, most_jobs: int = 120, most_spans: int = 2_500) -> None:
        """Limit the number of jobs and their spans."""
        self.points: list[tuple[float, int, int]] = []
        self.spans: list[HoldSpan] = []
        self._open: dict[str, tuple[float, str, int]] = {}
        self._known: set[str] = set()
        self._most_jobs = most_jobs
        self._most_spans = most_spans
        self._every = 1
        self._seen = 0

    def __call__(self, state: Mapping[str, Any]) -> None:
        """Record one state from a decision: (time, jobs waiting, devices busy)."""
        time = float(state["time_s"])
        holding = {
            name: held for name, item in state["jobs"].items() if (held := _held(item)) is not None
        }
        if self._seen % self._every == 0:
            self.points.append((time, state["active"] - len(holding), state["gpus_busy"]))
            if len(self.points) > _MOST_POINTS:
                self.points, self._every = self.points[::2], self._every * 2
        self._seen += 1
        self._follow(time, holding)

    def close(self, ends: Mapping[str, float | None], now: float) -> None:
        """End all open spans.

        Args:
            ends: completion time of each job; None if never.
            now: end of the simulation.
        """
        for name, (start, kind, devices) in sorted(self._open.items()):
            end = ends.get(name)
            self._add(name, start, now if end is None else end, kind, devices)
        self._open.clear()
        self.points.append((now, 0, 0))
        ended = []
        for span in self.spans:
            finish = ends.get(span.job)
            end = span.end if finish is None else min(span.end, finish)
            ended.append(
                HoldSpan(
                    job=span.job,
                    start=span.start,
                    end=end,
                    kind=span.kind,
                    devices=span.devices,
                )
            )
        self.spans = sorted(ended, key=lambda span: (span.start, span.end, span.job))

    def _follow(self, time: float, holding: Mapping[str, tuple[str, int]]) -> None:
        for name in [name for name in self._open if self._open[name][1:] != holding.get(name)]:
            start, kind, devices = self._open.pop(name)
            self._add(name, start, time, kind, devices)
        for name, held in holding.items():
            if name in self._open:
                continue
            if name not in self._known:
                if len(self._known) >= self._most_jobs:
                    continue
                self._known.add(name)
            self._open[name] = (time, *held)

    def _add(self, name: str, start: float, end: float, kind: str, devices: int) -> None:
        if len(self.spans) < self._most_spans:
            self.spans.append(HoldSpan(job=name, start=start, end=end, kind=kind, devices=devices))


def _held(item: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the types and number of devices of a job's entry, or None if it has none."""
    if "placement" in item:
        devices = sum(item["placement"])
        return (str(item["type"]), devices) if devices and item["type"] else None
    devices = sum(item.values())
    return ("+".join(sorted(str(kind) for kind in item)), devices) if devices else None
