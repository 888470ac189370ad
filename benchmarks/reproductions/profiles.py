"""Measured profiles of applications: step times by placement, gradient statistics by epoch.

``<app>/placements-<type>.csv`` (``placement`` is a digit per node), ``scalability-<type>.csv``
(other shapes, only interpolated) and ``validation-<batch>.csv`` (a row per epoch).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import scipy  # its parts are loaded when a profile is read, not when the portal starts

from scheduling.core.performance.goodput import Floats
from scheduling.core.workloads.tables import Row, read_rows
from scheduling.core.workloads.traces import FileReader, SimulationError, TraceError

_MOST_NODES: Final = 16
Placement: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Curve:
    """Step and sync times of one placement by local batch."""

    batches: tuple[int, ...]
    steps: tuple[float, ...]
    syncs: tuple[float, ...]

    def at(self, batch: int) -> tuple[float, float] | None:
        """Interpolate linearly between the measured batches; None outside them."""
        if not self.batches[0] <= batch <= self.batches[-1]:
            return None
        index = bisect_left(self.batches, batch)
        if self.batches[index] == batch:
            return self.steps[index], self.syncs[index]
        part = (batch - self.batches[index - 1]) / (self.batches[index] - self.batches[index - 1])
        return (
            self.steps[index - 1] + part * (self.steps[index] - self.steps[index - 1]),
            self.syncs[index - 1] + part * (self.syncs[index] - self.syncs[index - 1]),
        )


class TypeProfile:
    """Step times of one application on one device type."""

    def __init__(self, placements: Iterable[Row], scalability: Iterable[Row], source: str) -> None:
        self._source = source
        self._points: list[tuple[int, int, int, float, float]] = []
        self._curves = self._read_placements(placements)
        self._other = [
            (
                row.whole("num_nodes", minimum=1),
                row.whole("num_replicas", minimum=1),
                row.whole("local_bsz", minimum=1),
                row.number("step_time", minimum=1e-12),
                row.number("sync_time", minimum=0.0),
            )
            for row in scalability
        ]
        if not self._curves:
            raise TraceError(source, 0, "has no placements")
        self.smallest_batch = min(curve.batches[0] for curve in self._curves.values())
        self.largest_batch = max(curve.batches[-1] for curve in self._curves.values())
        self._largest_by_devices: dict[int, int] = {}
        for placement, curve in self._curves.items():
            devices = sum(placement)
            largest = max(self._largest_by_devices.get(devices, 0), curve.batches[-1])
            self._largest_by_devices[devices] = largest
        self._interpolator: Any = None
        self._known: dict[tuple[Placement, int], tuple[float, float] | None] = {}

    def step_time(self, placement: Placement, batch: int) -> tuple[float, float]:
        """Return seconds of a step and of its exchange; (-1, -1) for an unprofiled batch.

        Raises:
            SimulationError: the profile does not contain such a placement.
        """
        found = self.measured(placement, batch)
        if found is None:
            raise SimulationError(
                f"{self._source}: no measurements for {sum(placement)} devices on "
                f"{len(placement)} nodes at {batch} samples each"
            )
        return found

    def measured(self, placement: Placement, batch: int) -> tuple[float, float] | None:
        """Return the same as ``step_time``, or None if the profile has no such placement."""
        key = placement, batch
        if key not in self._known:
            self._known[key] = self._look_up(_normal(placement), batch)
        return self._known[key]

    def largest_batch_at(self, placement: Placement) -> int:
        """Return the largest batch per device measured on a placement, or on larger ones."""
        curve = self._curves.get(_normal(placement))
        if curve is not None:
            return curve.batches[-1]
        nodes, devices = len(placement), sum(placement)
        fitting = [row[2] for row in self._other if row[0] >= nodes and row[1] >= devices]
        if not fitting:
            raise SimulationError(f"{self._source}: no measurements for {devices} devices")
        return max(fitting)

    def largest_batch_on(self, devices: int) -> int | None:
        """Return the largest batch per device of any placement of a number of devices."""
        return self._largest_by_devices.get(devices)

    def speed(self, devices: int = 1) -> float:
        """Return samples per second at a replica's largest batch, to compare types."""
        rows = [row for row in self._points if row[1] == devices]
        return max(row[2] for row in rows) / max(row[3] for row in rows)

    def observations(self) -> list[tuple[int, int, int, float, float]]:
        """Return nodes, devices, batch, step and sync time of every measurement."""
        seen = {row[:3]: row for row in self._other}
        seen.update({row[:3]: row for row in self._points})
        return list(seen.values())

    def _read_placements(self, rows: Iterable[Row]) -> dict[Placement, _Curve]:
        measured: dict[Placement, dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in rows:
            digits = row.text("placement")
            if not digits.isdigit() or "0" in digits:
                raise row.fault(f"placement is {digits!r}; use a digit from 1 to 9 per node")
            placement = _normal(tuple(int(digit) for digit in digits))
            batch = row.whole("local_bsz", minimum=1)
            times = (
                row.number("step_time", minimum=1e-12),
                row.number("sync_time", minimum=0.0),
            )
            measured[placement][batch] = times
            self._points.append((len(digits), sum(placement), batch, *times))
        return {placement: _curve(points) for placement, points in measured.items()}

    def _look_up(self, placement: Placement, batch: int) -> tuple[float, float] | None:
        curve = self._curves.get(placement)
        if curve is not None:
            return curve.at(batch) or (-1.0, -1.0)
        if self._interpolator is None:
            self._interpolator = self._build_interpolator()
        nodes = min(len(placement), _MOST_NODES)
        step, sync = self._interpolator((nodes, sum(placement), batch))
        return (float(step), float(sync)) if np.isfinite(step) else None

    def _build_interpolator(self) -> Any:
        groups: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
        for nodes, devices, batch, step, sync in self._points:
            groups[nodes, devices, batch].append((step, sync))
        means = [(*key, *np.mean(values, axis=0)) for key, values in sorted(groups.items())]
        table = np.array([*means, *self._other], dtype=np.float64)
        return scipy.interpolate.LinearNDInterpolator(table[:, :3], table[:, 3:])


class AppProfile:
    """One application: its types' step times and its gradient statistics over time.

    Attributes:
        epochs: length of its training.
        initial_batch: the smallest total batch.
        largest_batch: the largest total batch.
        milestones: progress at the end of each epoch, in steps of the initial batch.
    """

    def __init__(
        self,
        name: str,
        types: dict[str, TypeProfile],
        files: FileReader,
        *,
        epochs: int,
        initial_batch: int,
    ) -> None:
        self.name = name
        self.epochs = epochs
        self.types = types
        self._curves = _read_validation(name, initial_batch, files)
        self._batches = sorted(self._curves)
        self.initial_batch, self.largest_batch = self._batches[0], self._batches[-1]
        progress = [[row[0] for row in self._curves[batch]] for batch in self._batches]
        shortest = min(len(column) for column in progress)
        if shortest < epochs:
            raise SimulationError(f"{name}: its profile has {shortest} epochs; it needs {epochs}")
        self.milestones = tuple(
            min(column[epoch] for column in progress) for epoch in range(epochs)
        )
        self._noise: dict[tuple[int, int], tuple[float, float]] = {}

    def noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """Return the gradient's squared norm and variance in an epoch (from 0) at a batch size."""
        key = batch, epoch
        found = self._noise.get(key)
        if found is None:
            low = self._between(batch, epoch, 2)
            found = self._noise[key] = low, self._between(batch, epoch, 3)
        return found

    def noise_table(self, batches: Floats) -> tuple[Floats, Floats]:
        """Return squared norms and variances for total batches, shape ``(epochs, batches)``."""
        grid = np.array(self._batches, dtype=np.float64)
        index = np.clip(np.searchsorted(grid, batches), 1, max(1, len(grid) - 1))
        part = np.zeros(len(batches))
        if len(grid) > 1:
            part = (batches - grid[index - 1]) / (grid[index] - grid[index - 1])
        rows = np.array([self._curves[batch][: self.epochs] for batch in self._batches])
        low, high = rows[index - 1], rows[np.minimum(index, len(grid) - 1)]
        mixed = low + part[:, None, None] * (high - low)
        return mixed[:, :, 2].T, mixed[:, :, 3].T

    def iteration(self, batch: int, epoch: int) -> float:
        """Return the iterations at a total batch until the end of an epoch (from 0)."""
        return self._between(batch, epoch, 1)

    def _between(self, batch: int, epoch: int, column: int) -> float:
        """Interpolate linearly between the two neighbouring files."""
        if not self.initial_batch <= batch <= self.largest_batch:
            raise SimulationError(f"{self.name}: no measurements for a total batch of {batch}")
        index = bisect_left(self._batches, batch)
        high = self._batches[index]
        above = self._curves[high][epoch][column]
        if high == batch:
            return above
        low = self._batches[index - 1]
        below = self._curves[low][epoch][column]
        return ((batch - low) * above + (high - batch) * below) / (high - low)


def read_type(app: str, device_type: str, files: FileReader) -> TypeProfile | None:
    """Read the profile of an application on a type; return None if it has none.

    Raises:
        TraceError: a file is malformed.
    """
    columns = ("local_bsz", "step_time", "sync_time")
    name = f"{app}/placements-{device_type}.csv"
    text = files(name)
    if text is None:
        return None
    other = f"{app}/scalability-{device_type}.csv"
    return TypeProfile(
        read_rows(text, name, required=("placement", *columns), optional=()),
        read_rows(
            files(other) or ",".join(("num_nodes", "num_replicas", *columns)),
            other,
            required=("num_nodes", "num_replicas", *columns),
            optional=(),
        ),
        name,
    )


def _read_validation(
    app: str, batch: int, files: FileReader
) -> dict[int, list[tuple[float, ...]]]:
    """Read rows of (progress, iteration, sqr, var) by total batch, which doubles by file."""
    curves: dict[int, list[tuple[float, ...]]] = {}
    while (text := files(f"{app}/validation-{batch}.csv")) is not None:
        curves[batch] = _read_curve(text, f"{app}/validation-{batch}.csv")
        batch *= 2
    if not curves:
        raise SimulationError(f"{app}: file not found: {app}/validation-{batch}.csv")
    return curves


def _read_curve(text: str, source: str) -> list[tuple[float, ...]]:
    columns = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
    return [
        (
            row.number("progress", minimum=0.0),
            row.number("iteration", minimum=0.0),
            row.number("grad_sqr", minimum=0.0),
            row.number("grad_var", minimum=0.0),
        )
        for row in read_rows(text, source, required=columns, optional=())
    ]


def _normal(placement: Placement) -> Placement:
    """Return the lexicographically smallest rotation."""
    filled = tuple(count for count in placement if count)
    return min(filled[index:] + filled[:index] for index in range(len(filled)))


def _curve(points: dict[int, tuple[float, float]]) -> _Curve:
    batches = tuple(sorted(points))
    return _Curve(
        batches, tuple(points[b][0] for b in batches), tuple(points[b][1] for b in batches)
    )
