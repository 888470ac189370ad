"""Readers of logs of production clusters, and of the workloads that papers derived from them."""

from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from scheduling.core.workloads.tables import (
    MOST_DEVICES,
    MOST_SECONDS,
    Row,
    read_jobs,
    read_rows,
)
from scheduling.core.workloads.traces import Trace, TraceJob

PHILLY_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
_PHILLY_START: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (the list's wall clock has no zone)

ITP_COLUMNS: Final = ("job_id", "submission_time", "duration", "num_gpu")
ITP_OTHER_COLUMNS: Final = ("job_id", "submit_time", "duration", "num_gpu", "ddl")
_ITP_MODEL: Final = ("model_name", "batch_size")
_ITP_OPTIONAL: Final = (*_ITP_MODEL, "num_iteration", "deadline")
_ITP_OTHER_OPTIONAL: Final = (
    *_ITP_MODEL,
    "iteration",
    "real_iteration",
    "real_duration",
    "best_effort",
)

OPENB_COLUMNS: Final = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
_OPENB_OPTIONAL: Final = (
    "cpu_milli",
    "memory_mib",
    "gpu_spec",
    "qos",
    "pod_phase",
    "scheduled_time",
)

CHRONUS_COLUMNS: Final = (
    "job_id",
    "user",
    "num_gpu",
    "submit_time",
    "duration",
    "expect_time_list",
    "job_type",
)
_CHRONUS_OPTIONAL: Final = (
    "iterations",
    "model_name",
    "interval",
    "expect_value_list",
    "best_effort",
)
_CHRONUS_TYPES: Final = ("strict", "soft", "best")

MURI_COLUMNS: Final = (
    "job_id",
    "num_gpu",
    "submit_time",
    "duration",
    "iterations",
    "model_name",
    "batch_size",
    "iteration_time",
)
_MURI_STAGES: Final = ("resource_time_0", "resource_time_1", "resource_time_2")
_MILLI: Final = 1e-3


def read_philly(text: str, source: str) -> Trace:
    """Read jobs of Microsoft's Philly clusters (ATC '19), in the form of the Pollux artefact.

    A virtual cluster is a tenant, and time 0 is the earliest timestamp. The list has no names: a
    job gets its name from its virtual cluster and its line.

    Raises:
        TraceError: a column is missing or unknown, or a value is out of bounds.
    """
    rows = read_rows(text, source, required=PHILLY_COLUMNS, optional=("gpu_time",))
    trace = read_jobs(rows, source, "philly", _philly_job)
    first = min((job.submitted for job in trace.jobs), default=0.0)
    moved = tuple(replace(job, submitted=job.submitted - first) for job in trace.jobs)
    return replace(trace, jobs=moved)


def _philly_job(row: Row) -> TraceJob:
    stamp, tenant = row.text("timestamp"), row.text("cluster")
    try:
        submitted = (datetime.fromisoformat(stamp) - _PHILLY_START).total_seconds()
    except (TypeError, ValueError):
        raise row.fault(
            f"timestamp is {stamp[:40]!r}; use a time such as 2017-10-09 07:01:55"
        ) from None
    return TraceJob(
        name=f"{tenant}-{row.line}",
        submitted=submitted,
        devices=row.devices("num_gpus"),
        duration=row.seconds("duration"),
        tenant=tenant,
    )


def read_itp(text: str, source: str) -> Trace:
    """Read jobs of Microsoft's ITP clusters, in the form published by ElasticFlow (ASPLOS '23).

    The plain files hold size and duration; those with deadlines also name a model, and spell the
    same columns in two ways. Times are in seconds from the trace's start.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    header = text.partition("\n")[0]
    other = "submit_time" in header and "submission_time" not in header
    rows = read_rows(
        text,
        source,
        required=ITP_OTHER_COLUMNS if other else ITP_COLUMNS,
        optional=_ITP_OTHER_OPTIONAL if other else _ITP_OPTIONAL,
    )
    return read_jobs(rows, source, "itp", _itp_other_job if other else _itp_job)


def _itp_job(row: Row) -> TraceJob:
    return TraceJob(
        name=row.text("job_id"),
        submitted=row.seconds("submission_time"),
        devices=row.devices("num_gpu"),
        duration=row.seconds("duration"),
        steps=row.steps("num_iteration"),
        application=row.text("model_name") if row.has("model_name") else "",
        batch=row.batch("batch_size"),
        deadline=row.optional_seconds("deadline"),
    )


def _itp_other_job(row: Row) -> TraceJob:
    best_effort = row.has("best_effort") and row.whole("best_effort", minimum=0, maximum=1) == 1
    return TraceJob(
        name=row.text("job_id"),
        submitted=row.seconds("submit_time"),
        devices=row.devices("num_gpu"),
        duration=row.seconds("duration"),
        steps=row.steps("iteration"),
        application=row.text("model_name") if row.has("model_name") else "",
        batch=row.batch("batch_size"),
        deadline=None if best_effort else row.seconds("ddl"),
    )


def read_openb(text: str, source: str) -> Trace:
    """Read pods of Alibaba's GPU cluster of 2023 (openb, ATC '23): whole and fractional devices.

    Pods without devices, and pods that were never scheduled, are left out. A fraction of a device
    is rounded up to a device; the request is in ``gpu_milli``.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or a name is
            repeated.
    """
    rows = read_rows(text, source, required=OPENB_COLUMNS, optional=_OPENB_OPTIONAL)
    return read_jobs(rows, source, "openb", _openb_job)


def _openb_job(row: Row) -> TraceJob | str:
    count = row.whole("num_gpu", minimum=0, maximum=MOST_DEVICES)
    created, deleted = row.seconds("creation_time"), row.seconds("deletion_time")
    milli = row.whole("gpu_milli", minimum=0, maximum=1000)
    started = row.seconds("scheduled_time") if row.has("scheduled_time") else None
    if deleted < (created if started is None else started):
        raise row.fault("deletion_time is before the pod was created or scheduled")
    if count == 0:
        return "requests no devices"
    if started is None and "scheduled_time" in row.cells:
        return "was never scheduled"
    kinds = row.text("gpu_spec").split("|") if row.has("gpu_spec") else ()
    return TraceJob(
        name=row.text("name"),
        submitted=created,
        devices=count,
        duration=deleted - (created if started is None else started),
        types=tuple(kind.strip() for kind in kinds if kind.strip()),
        extra=MappingProxyType(
            {"gpu_milli": milli, "qos": row.cells.get("qos", "")[:40]},
        ),
    )


def read_chronus(text: str, source: str) -> Trace:
    """Read jobs with deadlines of Chronus (SoCC '21), derived from Philly, strict and soft.

    ``user`` is a tenant; expected times count from the submission; jobs without devices are left
    out. A soft job's deadline is the first of its times, after which its value falls; all of them
    are in ``expected`` with their ``values``.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    rows = read_rows(text, source, required=CHRONUS_COLUMNS, optional=_CHRONUS_OPTIONAL)
    return read_jobs(rows, source, "chronus", _chronus_job)


def _chronus_job(row: Row) -> TraceJob | str:
    if row.whole("num_gpu", minimum=0, maximum=MOST_DEVICES) == 0:
        return "requests no devices"
    kind = row.text("job_type")
    if kind not in _CHRONUS_TYPES:
        raise row.fault(f"job_type is {kind[:40]!r}; use {', '.join(_CHRONUS_TYPES)}")
    submitted = row.seconds("submit_time")
    expected = _chronus_numbers(row, "expect_time_list") if kind != "best" else ()
    values = _chronus_numbers(row, "expect_value_list") if row.has("expect_value_list") else ()
    return TraceJob(
        name=row.text("job_id"),
        submitted=submitted,
        devices=row.devices("num_gpu"),
        duration=row.seconds("duration"),
        steps=row.steps("iterations"),
        application=row.text("model_name") if row.has("model_name") else "",
        tenant=row.text("user"),
        deadline=submitted + expected[0] if expected else None,
        extra=MappingProxyType({"job_type": kind, "expected": expected, "values": values}),
    )


def _chronus_numbers(row: Row, column: str) -> tuple[float, ...]:
    """Parse numbers separated by dashes."""
    cells = row.text(column).split("-")
    return tuple(
        Row(row.source, row.line, {column: cell}).number(column, minimum=0.0, maximum=MOST_SECONDS)
        for cell in cells
    )


def read_muri(text: str, source: str) -> Trace:
    """Read jobs of Muri (SIGCOMM '22), derived from Philly; times of the file are in ms.

    The step's time on each resource is in ``stages``, in seconds.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or an id is repeated.
    """
    rows = read_rows(
        text, source, required=MURI_COLUMNS, optional=(*_MURI_STAGES, "interval", "priority")
    )
    return read_jobs(rows, source, "muri", _muri_job)


def _muri_job(row: Row) -> TraceJob:
    stages = [row.seconds(column, unit=_MILLI) for column in _MURI_STAGES if row.has(column)]
    return TraceJob(
        name=row.text("job_id"),
        submitted=row.seconds("submit_time", unit=_MILLI),
        devices=row.devices("num_gpu"),
        duration=row.seconds("duration", unit=_MILLI),
        steps=row.steps("iterations"),
        application=row.text("model_name"),
        batch=row.batch("batch_size"),
        extra=MappingProxyType({"stages": tuple(stages)}),
    )
