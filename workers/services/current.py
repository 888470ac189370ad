"""Current readings of nodes: cached in Redis if available, else the newest minute's row."""

import json
import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import redis

from workers.models import NodeTelemetry
from workers.waking import has_redis, redis_client

log = logging.getLogger(__name__)

KEY: Final = "tessera:telemetry"
STALE: Final = timedelta(minutes=3)


def keep_current(*, node_id: int, at: datetime, reading: Mapping[str, Any]) -> None:
    """Cache a node's newest reading; without Redis the minute's row is used."""
    if not has_redis():
        return
    try:
        redis_client().hset(KEY, str(node_id), json.dumps({"at": at.timestamp(), **reading}))
    except redis.RedisError as error:
        log.warning("the newest telemetry is not kept: %s", error)


def current_readings(*, node_ids: Collection[int], now: datetime) -> dict[int, dict[str, Any]]:
    """Newest readings by node, as ``services.telemetry.as_json`` shapes them, with ``at``.

    A node without a reading for three minutes is left out.
    """
    found = _from_redis(node_ids)
    missing = [node_id for node_id in node_ids if node_id not in found]
    rows = NodeTelemetry.objects.filter(
        node_id__in=missing, span_seconds=60, at__gt=now - STALE
    ).order_by("at")
    for row in rows:
        found[row.node_id] = {
            "at": row.at,
            "utilisation": row.utilisation,
            "memory_bytes": row.memory_bytes,
            "temperature": row.temperature,
            "cpu_load": row.cpu_load,
            "memory_used_bytes": row.memory_used_bytes,
        }
    return {node_id: one for node_id, one in found.items() if one["at"] > now - STALE}


def _from_redis(node_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    if not node_ids or not has_redis():
        return {}
    ids = list(node_ids)
    try:
        values = redis_client().hmget(KEY, [str(node_id) for node_id in ids])
    except redis.RedisError as error:
        log.warning("the newest telemetry cannot be read: %s", error)
        return {}
    found: dict[int, dict[str, Any]] = {}
    for node_id, value in zip(ids, values, strict=True):
        if value is not None:
            reading = json.loads(value)
            found[node_id] = {**reading, "at": datetime.fromtimestamp(reading["at"], UTC)}
    return found
