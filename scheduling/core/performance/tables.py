"""Performance, interference and restart costs from measured tables, such as those of Gavel."""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policy_interface import PolicyJob, Shape

_WEIGHT = 0.3


class RestartCosts:
    """Restart seconds by application and type; observed values replace assumed ones."""

    def __init__(self, default: float = 30.0) -> None:
        """Assume ``default`` seconds.

        Raises:
            ValueError: it is negative.
        """
        if default < 0:
            raise ValueError(f"a restart cannot cost {default} s")
        self.default = default
        self._seen: dict[tuple[str | None, str | None], float] = {}

    def observe(self, application: str | None, device_type: str | None, seconds: float) -> None:
        """Add an observed restart; later ones weigh more, so that a change is followed."""
        for key in ((application, device_type), (application, None)):
            before = self._seen.get(key, seconds)
            self._seen[key] = before + _WEIGHT * (seconds - before)

    def seconds(self, application: str | None, device_type: str | None = None) -> float:
        """Return the expected seconds of the next restart."""
        known = self._seen.get((application, device_type), self._seen.get((application, None)))
        return self.default if known is None else known


def elasticflow_overhead(devices: int, *, restarts: bool) -> float:
    """Seconds that ElasticFlow's published simulator charges for a change to ``devices``."""
    large = devices >= 256
    fixed = (7.0 if large else 2.0) + ((47.0 if large else 27.0) if restarts else 0.0)
    return fixed + 2.0 * (log2(max(1, devices)) + 1.0)


class Interference:
    """Mean relative rates by pair of applications and type.

    A rate is relative to having the device alone: 1 means that the other one costs nothing.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def observe(
        self, first: str, other: str, device_type: str, rates: tuple[float, float]
    ) -> None:
        """Add both observed rates, relative to having the device alone.

        Raises:
            ValueError: a rate is negative.
        """
        if min(rates) < 0:
            raise ValueError(f"relative rates {rates} of {first} and {other} are below 0")
        for pair, (mine, theirs) in (((first, other), rates), ((other, first), rates[::-1])):
            sums = self._sums[(*pair, device_type)]
            sums[0] += 1.0
            sums[1] += mine
            sums[2] += theirs
            if first == other:
                break

    def add(self, other: "Interference") -> None:
        """Merge all observations of ``other``."""
        for key, sums in other._sums.items():
            mine = self._sums[key]
            for place, value in enumerate(sums):
                mine[place] += value

    def pair(
        self,
        first: str | None,
        other: str | None,
        device_type: str,
        *,
        utils: tuple[float | None, float | None] = (None, None),
    ) -> tuple[float, float]:
        """Both relative rates: measured, or from each one's utilisation, or half each."""
        if first is not None and other is not None:
            count, mine, theirs = self._sums.get((first, other, device_type), (0.0, 0.0, 0.0))
            if count:
                return mine / count, theirs / count
        return guessed(*utils)


def guessed(first: float | None, other: float | None) -> tuple[float, float]:
    """Expected relative rates of two jobs from their utilisations of a device.

    Up to a total utilisation of 1 they do not disturb each other; beyond that each loses in
    proportion.
    """
    if first is None or other is None:
        return 0.5, 0.5
    part = min(1.0, 1.0 / max(first + other, 1e-9))
    return part, part


#: Steps/s by number of devices.
Sizes = Mapping[int, float]

_GAVEL_KEY: Final = re.compile(r"\('(?P<name>.+)', (?P<scale>\d+)\)")
_SPREAD: Final = "_unconsolidated"


class TableError(ValueError):
    """A table cannot be read; the message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Measured rates.

    Attributes:
        rates: by application (and batch size, if it matters) and type.
        spread: the same for devices on more nodes than are needed.
        pairs: rates of two applications on one device, by type.
    """

    rates: Mapping[tuple[str, int | None], Mapping[str, Sizes]]
    spread: Mapping[tuple[str, int | None], Mapping[str, Sizes]] = field(default_factory=dict)
    pairs: Interference = field(default_factory=Interference)


class TableModel:
    """The performance of jobs whose application is in a table.

    Between two measured sizes the rate is interpolated over the logarithm of the size; beyond the
    largest one a job cannot run.
    """

    def __init__(
        self, tables: Tables, restarts: RestartCosts | None = None, *, node_devices: int = 8
    ) -> None:
        """Answer from ``tables``; on more nodes than are needed, devices count as spread."""
        self._tables = tables
        self._node_devices = node_devices
        self._restarts = restarts or RestartCosts()

    def goodputs(self, jobs: Sequence[PolicyJob], shapes: Sequence[Shape]) -> NDArray[np.float64]:
        """Rates of all jobs on all shapes."""
        found = [[self.rate(job, shape) for shape in shapes] for job in jobs]
        return np.array(found, dtype=np.float64).reshape(len(jobs), len(shapes))

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Steps/s; 0 where nothing was measured."""
        sizes = self._sizes(
            job, shape.type, batch, spread=shape.nodes > max(1, shape.devices // 8)
        )
        return interpolated(sizes, shape.devices)

    def speed(self, job: PolicyJob, device_type: str) -> float:
        """Steps/s of the smallest measured size, per device."""
        sizes = self._sizes(job, device_type, None)
        return sizes[min(sizes)] / min(sizes) if sizes else 0.0

    def profiled(self, job: PolicyJob) -> Mapping[str, int]:
        """All that was measured counts as known."""
        kinds = self._tables.rates.get(self._key(job, None), {})
        return {kind: max(sizes) for kind, sizes in sorted(kinds.items()) if sizes}

    def most_devices(self, job: PolicyJob, device_type: str) -> int:
        """The largest measured size."""
        return max(self._sizes(job, device_type, None), default=0)

    def restart_seconds(self, job: PolicyJob, device_type: str | None = None) -> float:
        return self._restarts.seconds(job.terms.application, device_type)

    def pair(self, job: PolicyJob, other: PolicyJob, device_type: str) -> tuple[float, float]:
        """Return both rates on shared devices."""
        return self._tables.pairs.pair(
            job.terms.application,
            other.terms.application,
            device_type,
            utils=(job.facts.util, other.facts.util),
        )

    def _key(self, job: PolicyJob, batch: int | None) -> tuple[str, int | None]:
        exact = (job.terms.application or "", batch if batch is not None else job.terms.batch)
        return exact if exact in self._tables.rates else (exact[0], None)

    def _sizes(
        self, job: PolicyJob, device_type: str, batch: int | None, *, spread: bool = False
    ) -> Sizes:
        key = self._key(job, batch)
        if spread and device_type in self._tables.spread.get(key, {}):
            return self._tables.spread[key][device_type]
        return self._tables.rates.get(key, {}).get(device_type, {})


def read_gavel(document: Mapping[str, Any]) -> Tables:
    """Gavel's throughputs: by type, job and number of devices, alone and in pairs.

    Raises:
        TableError: it is not such a document.
    """
    rates: dict[tuple[str, int | None], dict[str, dict[int, float]]] = {}
    spread: dict[tuple[str, int | None], dict[str, dict[int, float]]] = {}
    pairs = Interference()
    for kind, entries in sorted(document.items()):
        table = spread if kind.endswith(_SPREAD) else rates
        for key, row in sorted(entries.items()):
            name, scale = _gavel_key(key, kind)
            alone = _positive(row.get("null"), f"{kind}, {key}")
            if alone > 0:
                table.setdefault((name, None), {}).setdefault(kind.removesuffix(_SPREAD), {})[
                    scale
                ] = alone
            if table is rates and scale == 1:
                _read_pairs(pairs, entries, kind, key, alone)
    return Tables(rates=rates, spread=spread, pairs=pairs)


def read_elasticflow(name: str, device_type: str, text: str) -> Tables:
    """One of ElasticFlow's files: rows of batch sizes, columns of numbers of devices.

    Raises:
        TableError: a cell is not a number; the message names file and line.
    """
    rates: dict[tuple[str, int | None], dict[str, dict[int, float]]] = {}
    lines = csv.DictReader(text.splitlines())
    for row in lines:
        place = f"{name}.csv, line {lines.line_num}"
        batch = _whole(row.pop("global_batch_size", None), place)
        sizes = {
            _whole(column, place): _positive(cell, place) for column, cell in row.items() if cell
        }
        rates[name, batch] = {device_type: {n: rate for n, rate in sizes.items() if rate > 0}}
    return Tables(rates=rates)


def merged(tables: Sequence[Tables]) -> Tables:
    """All tables as one; where two speak of one application, each has its own types."""
    rates: dict[tuple[str, int | None], dict[str, Sizes]] = {}
    spread: dict[tuple[str, int | None], dict[str, Sizes]] = {}
    pairs = Interference()
    for table in tables:
        pairs.add(table.pairs)
        for whole, part in ((rates, table.rates), (spread, table.spread)):
            for key, kinds in part.items():
                whole.setdefault(key, {}).update(kinds)
    return Tables(rates=rates, spread=spread, pairs=pairs)


def _read_pairs(
    pairs: Interference, entries: Mapping[str, Any], kind: str, key: str, alone: float
) -> None:
    for other, both in sorted(entries[key].items()):
        theirs = entries.get(other, {}).get("null", 0.0) if other != "null" else 0.0
        if other < key or not theirs or alone <= 0:
            continue
        place = f"{kind}, {key} with {other}"
        relative = (_positive(both[0], place) / alone, _positive(both[1], place) / theirs)
        pairs.observe(_gavel_key(key, kind)[0], _gavel_key(other, kind)[0], kind, relative)


def _gavel_key(key: str, place: str) -> tuple[str, int]:
    found = _GAVEL_KEY.fullmatch(key)
    if found is None:
        raise TableError(f"{place}: {key!r} is not a job and a number of devices")
    return found["name"], int(found["scale"])


def interpolated(sizes: Sizes, devices: int) -> float:
    """The rate at a size: measured, between two that were, or 0 beyond the largest."""
    if devices in sizes:
        return sizes[devices]
    below = max((n for n in sizes if n < devices), default=None)
    above = min((n for n in sizes if n > devices), default=None)
    if below is None or above is None:
        return 0.0
    part = (log2(devices) - log2(below)) / (log2(above) - log2(below))
    return sizes[below] + part * (sizes[above] - sizes[below])


def _positive(cell: Any, place: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        raise TableError(f"{place}: {cell!r} is not a rate") from None
    if not isfinite(value) or value < 0:
        raise TableError(f"{place}: {cell!r} is not a rate")
    return value


def _whole(cell: Any, place: str) -> int:
    try:
        value = int(cell)
    except (TypeError, ValueError):
        raise TableError(f"{place}: {cell!r} is not a whole number") from None
    if value < 1:
        raise TableError(f"{place}: {cell!r} is below 1")
    return value
