"""Telemetry: a row for each node and minute, current values in Redis, and roll-ups."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any, Final

from django.db import transaction

from workers.models import NodeTelemetry
from workers.transports.base import NodeLoad

MINUTE: Final = 60
KEEP: Final = {60: timedelta(hours=24), 600: timedelta(days=30), 3600: timedelta(days=365)}
ROLL_UPS: Final = ((60, 600), (600, 3600))
MOST_ROWS: Final = 20_000


def as_json(reading: NodeLoad) -> dict[str, Any]:
    """A reading as arrays by device index, the format of rows and pages."""
    return {
        "utilisation": _by_index(reading, lambda device: device.utilisation),
        "memory_bytes": _by_index(reading, lambda device: device.memory_bytes),
        "temperature": _by_index(reading, lambda device: device.temperature),
        "cpu_load": reading.load,
        "memory_used_bytes": reading.memory_used_bytes,
    }


def keep_minute(*, node_id: int, readings: Sequence[NodeLoad], at: datetime) -> None:
    """Store the average of one minute's readings, unless the minute exists."""
    if not readings:
        return
    NodeTelemetry.objects.get_or_create(
        node_id=node_id,
        span_seconds=MINUTE,
        at=at.replace(second=0, microsecond=0),
        defaults={"samples": len(readings), **_average([as_json(r) for r in readings])},
    )


def roll_up(*, now: datetime) -> int:
    """Average complete spans into the next longer ones; returns how many rows were written."""
    return sum(_roll_up(short, long, now) for short, long in ROLL_UPS)


def prune(*, now: datetime) -> int:
    """Delete rows beyond their span's retention; returns how many."""
    deleted = 0
    for span, age in KEEP.items():
        count, _ = NodeTelemetry.objects.filter(span_seconds=span, at__lt=now - age).delete()
        deleted += count
    return deleted


@transaction.atomic
def _roll_up(short: int, long: int, now: datetime) -> int:
    until = _floor(now, long)
    # A day back is enough: after a longer outage retention has deleted the short rows anyway.
    since = until - timedelta(days=1)
    done = set(
        NodeTelemetry.objects.filter(span_seconds=long, at__gte=since).values_list("node_id", "at")
    )
    groups: dict[tuple[int, datetime], list[NodeTelemetry]] = {}
    rows = NodeTelemetry.objects.filter(span_seconds=short, at__gte=since, at__lt=until)
    for row in rows.order_by("node_id", "at")[:MOST_ROWS]:
        key = (row.node_id, _floor(row.at, long))
        if key not in done:
            groups.setdefault(key, []).append(row)
    NodeTelemetry.objects.bulk_create(
        (_rolled(node_id, at, long, found) for (node_id, at), found in groups.items()),
        ignore_conflicts=True,
    )
    return len(groups)


def _rolled(node_id: int, at: datetime, span: int, rows: list[NodeTelemetry]) -> NodeTelemetry:
    averages = _average(
        [
            {
                "utilisation": row.utilisation,
                "memory_bytes": row.memory_bytes,
                "temperature": row.temperature,
                "cpu_load": row.cpu_load,
                "memory_used_bytes": row.memory_used_bytes,
            }
            for row in rows
        ]
    )
    samples = sum(row.samples for row in rows)
    return NodeTelemetry(node_id=node_id, at=at, span_seconds=span, samples=samples, **averages)


def _average(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    memory = _mean(reading["memory_used_bytes"] for reading in readings)
    return {
        "utilisation": _means([reading["utilisation"] for reading in readings]),
        "memory_bytes": [
            None if value is None else int(value)
            for value in _means([reading["memory_bytes"] for reading in readings])
        ],
        "temperature": _means([reading["temperature"] for reading in readings]),
        "cpu_load": _mean(reading["cpu_load"] for reading in readings),
        "memory_used_bytes": None if memory is None else int(memory),
    }


def _means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    width = max((len(row) for row in rows), default=0)
    return [_mean(row[index] for row in rows if index < len(row)) for index in range(width)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None


def _by_index(reading: NodeLoad, take: Callable[[Any], float | None]) -> list[float | None]:
    width = max((device.index + 1 for device in reading.devices), default=0)
    found: list[float | None] = [None] * width
    for device in reading.devices:
        found[device.index] = take(device)
    return found


def _floor(at: datetime, seconds: int) -> datetime:
    stamp = int(at.timestamp())
    return datetime.fromtimestamp(stamp - stamp % seconds, UTC)
