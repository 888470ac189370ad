"""Run times of jobs whose trace gives steps only: from the tables of the artefacts."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from scheduling.core.performance.tables import Sizes, TableError, Tables, interpolated, read_gavel
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.errors import SimulationError, TraceError
from scheduling.core.simulator.traces import FileReader, Trace, TraceJob

_GAVEL: Final = ("simulation_throughputs.json", "physical_cluster_throughputs.json")
_CRIUS: Final = "prof_database.json"
_CRIUS_KEY: Final = re.compile(r"(\d{1,4})_([A-Za-z0-9-]+)_\1_n_(\d{1,4})_d")
#: Seconds of a job at its requested size, by device type.
Seconds = Mapping[str, float]


def seconds_by_type(trace: Trace, cluster: SimCluster, files: FileReader) -> list[Seconds]:
    """Each job's run time on its requested devices; empty: not measured.

    Args:
        trace: the jobs; recorded durations hold on every type.
        cluster: the types that matter.
        files: finds the artefact's tables.

    Raises:
        SimulationError: a job has no duration, and its format has no table.
        TraceError: a table cannot be read.
    """
    untimed = next((job for job in trace.jobs if job.duration is None), None)
    rates: Mapping[tuple[str, int | None], Mapping[str, Sizes]] = {}
    if untimed is not None:
        rates = _tables(trace.format, untimed, files).rates
    found: list[Seconds] = []
    for job in trace.jobs:
        if job.duration is not None:
            found.append(dict.fromkeys(cluster.types, job.duration))
            continue
        sizes = rates.get((job.application, job.batch)) or rates.get((job.application, None), {})
        speeds = {kind: interpolated(sizes.get(kind, {}), job.devices) for kind in cluster.types}
        found.append({kind: (job.steps or 0.0) / rate for kind, rate in speeds.items() if rate})
    return found


def _tables(name: str, job: TraceJob, files: FileReader) -> Tables:
    """The tables of a format."""
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
            raise TraceError(place, 0, f"is no table of step times ({error})") from error
    raise SimulationError(
        f"{job.name}: has no duration; give --profiles a directory with {' or '.join(places)}"
    )


def _read_crius(document: Mapping[str, Any]) -> Tables:
    """Seconds of an iteration, by model and batch, then by nodes, type and devices of a node."""
    rates: dict[tuple[str, int | None], dict[str, dict[int, float]]] = {}
    for key, row in sorted(document["optimal"].items()):
        model, _mark, batch = key.rpartition("_")
        family, _mark, size = model.rpartition("_")
        if not batch.isdecimal() or not family:
            raise TableError(f"{key[:60]!r} is no model and batch size")
        kinds = rates.setdefault((f"{family}__{size}", int(batch)), {})
        for place, seconds in row.items():
            found = _CRIUS_KEY.fullmatch(place)
            if found is None or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
                raise TableError(f"{key}, {place[:60]!r} is no place with a time")
            devices = int(found[1]) * int(found[3])
            sizes = kinds.setdefault(found[2], {})
            sizes[devices] = max(sizes.get(devices, 0.0), 1.0 / seconds)
    return Tables(rates=rates)
