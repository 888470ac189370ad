"""Jobs under the rules without rounds before their start: run times, requests and estimates."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import exp, isfinite, log2
from typing import Any, Final, TypeAlias

import numpy as np

from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.policy_interface import (
    NO_FACTS,
    Alloc,
    JobPhase,
    Kind,
    Part,
    PolicyJob,
    Scale,
    Terms,
)
from scheduling.core.simulator.cellular import assigned
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.rules.event_jobs import EventJob
from scheduling.core.simulator.traces import (
    FileReader,
    SimulationError,
    Trace,
    TraceError,
    TraceJob,
)
from scheduling.core.simulator.worlds import Setup

_GAVEL: Final = ("simulation_throughputs.json", "physical_cluster_throughputs.json")
_CRIUS: Final = "prof_database.json"
_CRIUS_KEY: Final = re.compile(r"(\d{1,4})_([A-Za-z0-9-]+)_\1_n_(\d{1,4})_d")
#: Stands in Crius' table for a measurement that failed.
_FAILED: Final = -1.0
_GAVEL_KEY: Final = re.compile(r"\('(?P<name>.+)', (?P<scale>\d+)\)")
#: Ends the names of types whose devices are on more nodes than are needed.
_GAVEL_SPREAD: Final = "_unconsolidated"
#: Seconds of a job at its requested size, by device type.
Seconds = Mapping[str, float]
#: Steps/s by number of devices.
Sizes: TypeAlias = Mapping[int, float]
#: Measured rates by application (and batch size, if it matters) and type.
Rates: TypeAlias = Mapping[tuple[str, int | None], Mapping[str, Sizes]]
_MOST_DEVICES: Final = 64

_NOISE_STREAM: Final = 1_000_003


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


class Asking:
    """Cached demands of jobs; jobs with equal requests share one demand."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[str, ...], str, int | None], tuple[Demand, Alloc]] = {}

    def of(self, job: TraceJob) -> tuple[Demand, Alloc]:
        """Return a job's demand, and the allocation that meets it."""
        key = job.devices, job.types, job.wish, job.batch
        if key not in self._known:
            member = MemberDemand(
                role="worker",
                count=job.devices,
                devices=1,
                device_types=job.types,
                within=Within.RACK,
            )
            part = Part(
                n=job.devices,
                type=job.types[0] if job.types else job.wish or None,
                level=Within.RACK.value,
            )
            self._known[key] = Demand(members=(member,)), Alloc(parts=(part,), batch=job.batch)
        return self._known[key]


def waiting_view(
    index: int, job: TraceJob, tenant: int, asking: Asking, estimate: float | None
) -> PolicyJob:
    """Build the policy's view of a job before its first start."""
    demand, asked = asking.of(job)
    scale = None
    if job.kind is not Kind.RIGID:
        scale = job.scale or Scale(minimum=1, maximum=max(_MOST_DEVICES, job.devices))
    return PolicyJob(
        id=index,
        owner=0,
        priority=job.priority,
        job_class=JobClass.GUARANTEED,
        submitted=job.submitted,
        demand=demand,
        phase=JobPhase.QUEUED,
        since=job.submitted,
        terms=Terms(
            tenant=tenant,
            kind=job.kind,
            scale=scale,
            deadline=job.deadline,
            estimate=estimate,
            application=job.application or None,
            batch=job.batch,
        ),
        facts=NO_FACTS,
        asked=asked,
    )


def why_never(
    job: TraceJob, seconds: Mapping[str, float], capacity: Mapping[str, int]
) -> str | None:
    """Describe the reason why a job can never run even alone; return None if it can.

    Args:
        job: the job with its demand.
        seconds: run time of the job by type.
        capacity: all devices that it could use, by type.
    """
    if not seconds:
        return "no measurements on these device types"
    kinds = [kind for kind in job.types or capacity if kind in capacity]
    if not kinds:
        return f"the cluster has no {' or '.join(job.types)[:60]}"
    least = 1 if job.kind is not Kind.RIGID else job.devices
    most = max(capacity[kind] for kind in kinds)
    if least > most:
        return f"asks for {job.devices} devices, of which there are {most} of one type"
    return None


def virtual_clusters(setup: Setup) -> list[str]:
    """Return the virtual cluster of each job, or its tenant if there are none."""
    if setup.shares:
        return assigned(setup.trace, setup.shares, setup.cluster, setup.seed)
    return [job.tenant for job in setup.trace.jobs]


def event_jobs(setup: Setup, vcs: list[str]) -> Iterator[EventJob]:
    """Yield the jobs with their run times and their owners' declarations."""
    names = sorted(setup.shares or set(vcs))
    tenants = {name: number for number, name in enumerate(names, start=1)}
    seconds = seconds_by_type(setup.trace, setup.cluster, setup.files)
    noise = setup.conditions.estimate_noise
    stream = np.random.default_rng([setup.seed, _NOISE_STREAM])
    asking = Asking()
    for index, job in enumerate(setup.trace.jobs):
        if job.wish and job.wish not in seconds[index]:
            job = replace(job, wish="")  # noqa: PLW2901
        wrong = exp(noise * float(stream.standard_normal())) if noise else 1.0
        estimate = job.estimate
        if setup.knowledge.size_aware and estimate is None and seconds[index]:
            estimate = max(1.0, min(seconds[index].values()) * wrong)
        view = waiting_view(index, job, tenants[vcs[index]], asking, estimate)
        yield EventJob(index, job, seconds[index], view, wrong)
