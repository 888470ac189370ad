"""Rates of hybrid jobs: estimates of their best grids, corrected by measured steps."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from scheduling.core.policy_interface import BestGrid, Shape
from scheduling.core.values import RunObservation

MEASURED_STEPS: Final = 20
"""Number of steps from which a measurement replaces the estimate."""
_BOUNDS: Final = (0.5, 2.0)
"""Bounds of the ratio of measured to estimated rates that corrects other shapes."""


class GridRates:
    """Steps per second of one hybrid job on the shapes of its table.

    Args:
        table: its best grids.
        seen: its own runs; a measured shape replaces its estimate. The median ratio of measured
            to estimated rates of a type corrects the other shapes of this type.
    """

    def __init__(self, table: Sequence[BestGrid], seen: Iterable[RunObservation] = ()) -> None:
        self._rows: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for row in sorted(table, key=lambda row: row.nodes):
            self._rows.setdefault((row.type, row.devices), []).append((row.nodes, row.rate))
        runs = [run for run in seen if run.steps >= MEASURED_STEPS and run.seconds > 0.0]
        self._measured = _measured(runs) if runs else {}
        self._factors = self._corrections() if runs else {}

    def rate(self, shape: Shape) -> float:
        """Return the measured or estimated steps per second; 0 without a row."""
        if self._measured and shape in self._measured:
            return self._measured[shape]
        estimated = self._estimated(shape)
        return estimated * self._factors.get(shape.type, 1.0) if self._factors else estimated

    def speed(self, device_type: str) -> float:
        """Return the largest steps per second and device of a type; 0 if it has no row."""
        shapes = (Shape(kind, rows[0][0], n) for (kind, n), rows in self._rows.items())
        rates = (self.rate(s) / s.devices for s in shapes if s.type == device_type)
        return max(rates, default=0.0)

    def largest(self) -> dict[str, int]:
        """Return the largest number of devices with a grid, by type; all count as measured."""
        found: dict[str, int] = {}
        for kind, devices in self._rows:
            found[kind] = max(found.get(kind, 0), devices)
        return found

    def _estimated(self, shape: Shape) -> float:
        rows = self._rows.get((shape.type, shape.devices))
        if rows is None:
            return 0.0
        within = [rate for nodes, rate in rows if nodes <= shape.nodes]
        return within[-1] if within else rows[0][1]

    def _corrections(self) -> dict[str, float]:
        ratios: dict[str, list[float]] = {}
        for shape, rate in self._measured.items():
            estimated = self._estimated(shape)
            if estimated > 0.0:
                ratios.setdefault(shape.type, []).append(rate / estimated)
        low, high = _BOUNDS
        return {kind: min(high, max(low, median(found))) for kind, found in ratios.items()}


def _measured(runs: Iterable[RunObservation]) -> dict[Shape, float]:
    steps: dict[Shape, list[float]] = {}
    for run in runs:
        total = steps.setdefault(Shape(run.type, run.nodes, run.devices), [0.0, 0.0])
        total[0] += run.steps
        total[1] += run.seconds
    return {shape: made / seconds for shape, (made, seconds) in steps.items()}
