"""Whether this process is up, and whether the whole is able to do its work; both without login."""

from datetime import timedelta
from typing import Any, Final

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse

from portal import wiring
from scheduling.models import Round
from tenants.clock import database_now

INTERVALS: Final = 3


def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Database, broker, and a round within the last three intervals; 200 or 503."""
    checks: dict[str, Any] = {"database": _database(), "broker": _broker()}
    checks["rounds"] = _rounds() if checks["database"] == "ok" else "unknown"
    ready = all(value == "ok" for value in checks.values())
    return JsonResponse(
        {"status": "ok" if ready else "unavailable", "checks": checks},
        status=200 if ready else 503,
    )


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return "unreachable"
    return "ok"


def _broker() -> str:
    try:
        wiring.redis_client().ping()
    except (redis.RedisError, OSError, ValueError):
        return "unreachable"
    return "ok"


def _rounds() -> str:
    try:
        newest = Round.objects.order_by("-number").values_list("committed_at", flat=True).first()
    except DatabaseError:
        return "unknown"
    if newest is None:
        return "none yet"
    limit = timedelta(seconds=max(INTERVALS * settings.TESSERA.round_seconds, 3.0))
    return "ok" if database_now() - newest <= limit else "late"
