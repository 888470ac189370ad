"""Telemetry: a row for each node and minute, current values in Redis, and roll-ups."""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any, Final

import redis
from django.db import transaction

from scheduling.clusters.models import Device
from workers.models import NodeTelemetry
from workers.transports.base import NodeLoad
from workers.waking import has_redis, redis_client

log = logging.getLogger(__name__)

MINUTE: Final = 60
KEEP: Final = {60: timedelta(hours=24), 600: timedelta(days=30), 3600: timedelta(days=365)}
ROLL_UPS: Final = ((60, 600), (600, 3600))
MOST_ROWS: Final = 20_000
REDIS_KEY: Final = "tessera:telemetry"
STALE: Final = timedelta(minutes=3)


def device_numbers(*, node_id: int) -> dict[str, int]:
    """Return the numbers of a node's GPUs by UUID."""
    rows = Device.objects.filter(node_id=node_id, retired_at=None).exclude(uuid="")
    return dict(rows.values_list("uuid", "index"))


def numbered(reading: NodeLoad, numbers: Mapping[str, int]) -> NodeLoad:
    """Return a reading by the numbers of the devices instead of the indices of the driver.

    A GPU without a number is omitted: it has no leaf cell yet.
    """
    devices = tuple(
        replace(device, index=numbers[device.uuid]) if device.uuid else device
        for device in reading.devices
        if not device.uuid or device.uuid in numbers
    )
    return replace(reading, devices=devices)


def as_json(reading: NodeLoad) -> dict[str, Any]:
    """Return a reading as arrays by device number, the format of rows and pages."""
    return {
        "utilisation": _by_index(reading, lambda device: device.utilisation),
        "memory_bytes": _by_index(reading, lambda device: device.memory_bytes),
        "temperature": _by_index(reading, lambda device: device.temperature),
        "power": _by_index(reading, lambda device: device.power),
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


def keep_current(*, node_id: int, at: datetime, reading: Mapping[str, Any]) -> None:
    """Cache a node's newest reading; without Redis the minute's row is used."""
    if not has_redis():
        return
    try:
        redis_client().hset(REDIS_KEY, str(node_id), json.dumps({"at": at.timestamp(), **reading}))
    except redis.RedisError as error:
        log.warning("the newest telemetry is not cached: %s", error)


def current_readings(*, node_ids: Collection[int], now: datetime) -> dict[int, dict[str, Any]]:
    """Return the newest readings by node, in the format of ``as_json``, with ``at``.

    Nodes without a reading for three minutes are omitted.
    """
    found = _from_redis(node_ids)
    missing = [node_id for node_id in node_ids if node_id not in found]
    rows = NodeTelemetry.objects.filter(
        node_id__in=missing, span_seconds=60, at__gt=now - STALE
    ).order_by("at")
    for row in rows:
        found[row.node_id] = {"at": row.at, **_reading_of(row)}
    return {node_id: one for node_id, one in found.items() if one["at"] > now - STALE}


def _from_redis(node_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    if not node_ids or not has_redis():
        return {}
    ids = list(node_ids)
    try:
        values = redis_client().hmget(REDIS_KEY, [str(node_id) for node_id in ids])
    except redis.RedisError as error:
        log.warning("the newest telemetry cannot be read: %s", error)
        return {}
    found: dict[int, dict[str, Any]] = {}
    for node_id, value in zip(ids, values, strict=True):
        if value is not None:
            reading = json.loads(value)
            found[node_id] = {**reading, "at": datetime.fromtimestamp(reading["at"], UTC)}
    return found


def roll_up(*, now: datetime) -> int:
    """Average complete spans into the next longer spans; return the number of written rows."""
    return sum(_roll_up(short, long, now) for short, long in ROLL_UPS)


def prune(*, now: datetime) -> int:
    """Delete rows whose retention has ended; return their number."""
    deleted = 0
    for span, age in KEEP.items():
        count, _ = NodeTelemetry.objects.filter(span_seconds=span, at__lt=now - age).delete()
        deleted += count
    return deleted


@transaction.atomic
def _roll_up(short: int, long: int, now: datetime) -> int:
    until = floored(now, long)
    # One day back is enough: after a longer outage, retention has deleted the short rows.
    since = until - timedelta(days=1)
    done = set(
        NodeTelemetry.objects.filter(span_seconds=long, at__gte=since).values_list("node_id", "at")
    )
    groups: dict[tuple[int, datetime], list[NodeTelemetry]] = {}
    rows = NodeTelemetry.objects.filter(span_seconds=short, at__gte=since, at__lt=until)
    for row in rows.order_by("node_id", "at")[:MOST_ROWS]:
        key = (row.node_id, floored(row.at, long))
        if key not in done:
            groups.setdefault(key, []).append(row)
    NodeTelemetry.objects.bulk_create(
        (_rolled(node_id, at, long, found) for (node_id, at), found in groups.items()),
        ignore_conflicts=True,
    )
    return len(groups)


def _rolled(node_id: int, at: datetime, span: int, rows: list[NodeTelemetry]) -> NodeTelemetry:
    averages = _average([_reading_of(row) for row in rows])
    samples = sum(row.samples for row in rows)
    return NodeTelemetry(node_id=node_id, at=at, span_seconds=span, samples=samples, **averages)


def _reading_of(row: NodeTelemetry) -> dict[str, Any]:
    return {
        "utilisation": row.utilisation,
        "memory_bytes": row.memory_bytes,
        "temperature": row.temperature,
        "cpu_load": row.cpu_load,
        "memory_used_bytes": row.memory_used_bytes,
    }


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


def floored(at: datetime, seconds: int) -> datetime:
    """Return the beginning of the span of ``seconds`` that contains ``at``."""
    stamp = int(at.timestamp())
    return datetime.fromtimestamp(stamp - stamp % seconds, UTC)
