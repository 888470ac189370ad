"""Run times of a trace's jobs by device type: recorded, or from tables of measured rates."""

import json
import re
from collections.abc import Mapping
from math import isfinite, log2
from typing import Any, Final, TypeAlias

from scheduling.core.workloads.clusters import SimCluster
from scheduling.core.workloads.traces import (
    FileReader,
    SimulationError,
    Trace,
    TraceError,
    TraceJob,
)

_GAVEL: Final = ("simulation_throughputs.json", "physical_cluster_throughputs.json")
_CRIUS: Final = "prof_database.json"
_CRIUS_KEY: Final = re.compile(r"(\d{1,4})_([A-Za-z0-9-]+)_\1_n_(\d{1,4})_d")
#: Value in Crius' table for a failed measurement.
_FAILED: Final = -1.0
_GAVEL_KEY: Final = re.compile(r"\('(?P<name>.+)', (?P<scale>\d+)\)")
#: Suffix of types whose devices are on more nodes than necessary.
_GAVEL_SPREAD: Final = "_unconsolidated"
#: Seconds of a job at its requested size, by device type.
Seconds: TypeAlias = Mapping[str, float]
#: Steps/s by number of devices.
Sizes: TypeAlias = Mapping[int, float]
#: Measured rates by application (and batch size, if it matters) and type.
Rates: TypeAlias = Mapping[tuple[str, int | None], Mapping[str, Sizes]]


class TableError(ValueError):
    """A table of rates cannot be read; the message names the place."""


def seconds_by_type(trace: Trace, cluster: SimCluster, files: FileReader) -> list[Seconds]:
    """Return each job's run time on its requested devices; empty if not measured.

    Args:
        trace: the jobs; recorded durations hold on every type.
        cluster: the cluster with the relevant types.
        files: finds the artefact's tables.

    Raises:
        SimulationError: a job has no duration, and its format has no table.
        TraceError: a table cannot be read.
    """
    untimed = next((job for job in trace.jobs if job.duration is None), None)
    rates: Rates = {}
    if untimed is not None:
        rates = _rates(trace.format, untimed, files)
    found: list[Seconds] = []
    for job in trace.jobs:
        if job.duration is not None:
            found.append(dict.fromkeys(cluster.types, job.duration))
            continue
        sizes = rates.get((job.application, job.batch)) or rates.get((job.application, None), {})
        speeds = {kind: interpolated(sizes.get(kind, {}), job.devices) for kind in cluster.types}
        found.append({kind: (job.steps or 0.0) / rate for kind, rate in speeds.items() if rate})
    return found


def rates_by_size(trace: Trace, files: FileReader) -> list[Mapping[str, Sizes]]:
    """Return each job's measured steps/s by type and number of devices; empty if not measured.

    Raises:
        SimulationError: the trace's format has no table of rates.
        TraceError: the table cannot be read.
    """
    rates = _rates(trace.format, trace.jobs[0], files) if trace.jobs else {}
    return [rates.get((job.application, job.batch)) or {} for job in trace.jobs]


def interpolated(sizes: Sizes, devices: int) -> float:
    """Interpolate the rate at a size; return 0 beyond the largest measured size.

    Between two measured sizes the rate is linear in the logarithm of the size.
    """
    if devices in sizes:
        return sizes[devices]
    below = max((n for n in sizes if n < devices), default=None)
    above = min((n for n in sizes if n > devices), default=None)
    if below is None or above is None:
        return 0.0
    part = (log2(devices) - log2(below)) / (log2(above) - log2(below))
    return sizes[below] + part * (sizes[above] - sizes[below])


def _rates(name: str, job: TraceJob, files: FileReader) -> Rates:
    """Return the measured rates that belong to a format."""
    readers = {"gavel": (_GAVEL, read_gavel), "crius": ((_CRIUS,), _read_crius)}
    if name not in readers or job.steps is None:
        raise SimulationError(f"{job.name}: has no duration; the rules events need one")
    places, read = readers[name]
    for place in places:
        text = files(place)
        if text is None:
            continue
        try:
            document = json.loads(text)
            return read(document)
        except json.JSONDecodeError as error:
            raise TraceError(place, error.lineno, f"is no JSON ({error.msg})") from error
        except (TableError, AttributeError, TypeError, RecursionError) as error:
            raise TraceError(place, 0, f"is not a table of step times ({error})") from error
    raise SimulationError(
        f"{job.name}: has no duration; give --profiles a directory with {' or '.join(places)}"
    )


def read_gavel(document: Mapping[str, Any]) -> Rates:
    """Read Gavel's throughputs of jobs alone, by type, job and number of devices.

    Raises:
        TableError: the document is malformed.
    """
    rates: dict[tuple[str, int | None], dict[str, dict[int, float]]] = {}
    for kind, entries in sorted(document.items()):
        if kind.endswith(_GAVEL_SPREAD):
            continue
        for key, row in sorted(entries.items()):
            found = _GAVEL_KEY.fullmatch(key)
            if found is None:
                raise TableError(f"{kind}: {key!r} is not a job and a number of devices")
            alone = _rate(row.get("null"), f"{kind}, {key}")
            if alone > 0:
                kinds = rates.setdefault((found["name"], None), {})
                kinds.setdefault(kind, {})[int(found["scale"])] = alone
    return rates


def _rate(cell: Any, place: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = -1.0
    if not isfinite(value) or value < 0:
        raise TableError(f"{place}: {cell!r} is not a valid rate")
    return value


def _read_crius(document: Mapping[str, Any]) -> Rates:
    """Read seconds of an iteration, by model and batch, then nodes, type and node size."""
    rates: dict[tuple[str, int | None], dict[str, dict[int, float]]] = {}
    for key, row in sorted(document["optimal"].items()):
        model, _mark, batch = key.rpartition("_")
        family, _mark, size = model.rpartition("_")
        if not batch.isdecimal() or not family:
            raise TableError(f"{key[:60]!r} is not a model and batch size")
        kinds = rates.setdefault((f"{family}__{size}", int(batch)), {})
        for place, seconds in row.items():
            if seconds == _FAILED:
                continue
            found = _CRIUS_KEY.fullmatch(place)
            if found is None or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
                raise TableError(f"{key}, {place[:60]!r} is not a placement with a time")
            devices = int(found[1]) * int(found[3])
            sizes = kinds.setdefault(found[2], {})
            sizes[devices] = max(sizes.get(devices, 0.0), 1.0 / seconds)
    return rates
