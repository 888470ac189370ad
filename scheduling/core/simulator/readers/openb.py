"""Pods of Alibaba's GPU cluster of 2023 (openb, ATC '23): whole and fractional devices."""

from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.readers import lines
from scheduling.core.simulator.tables import Row, read_rows
from scheduling.core.simulator.traces import Trace, TraceJob

COLUMNS: Final = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
_OPTIONAL: Final = ("cpu_milli", "memory_mib", "gpu_spec", "qos", "pod_phase", "scheduled_time")


def read_openb(text: str, source: str) -> Trace:
    """The pods that had devices; pods that were never scheduled have no known duration.

    A fraction of a device becomes a whole one here; the request is in ``gpu_milli``.

    Raises:
        TraceError: a column is missing or unknown, a value is out of bounds, or a name is
            repeated.
    """
    rows = read_rows(text, source, required=COLUMNS, optional=_OPTIONAL)
    return lines.read_jobs(rows, source, "openb", _job)


def _job(row: Row) -> TraceJob | str:
    count = row.whole("num_gpu", minimum=0, maximum=lines.MOST_DEVICES)
    created, deleted = lines.seconds(row, "creation_time"), lines.seconds(row, "deletion_time")
    milli = row.whole("gpu_milli", minimum=0, maximum=1000)
    started = lines.seconds(row, "scheduled_time") if row.has("scheduled_time") else None
    if deleted < (created if started is None else started):
        raise row.fault("deletion_time is before the pod was created or scheduled")
    if count == 0:
        return "asks for no device"
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
