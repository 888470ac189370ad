"""Readiness of this process, and health of each part of the control plane."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from django.conf import settings
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse

from portal.broker import connection as broker
from portal.heartbeats import BEAT_DUTY
from portal.migration_rules import RELEASE
from scheduling.clusters.models import Node
from scheduling.rounds.models import Round
from scheduling.storage.bucket import (
    DENIED,
    NO_BUCKET,
    NO_CREDENTIALS,
    NOT_INSTALLED,
    UNREACHABLE,
)
from scheduling.storage.opening import open_storage
from tenants.clock import MOST_SKEW, database_now
from tenants.migration_history import database_refusal, missing_migrations, recorded_migrations
from workers.models import DutyLease, Heartbeat
from workers.services.disks import FRESH, DiskSpace
from workers.services.duties import is_in_force
from workers.services.node_leases import SERVICE_KIND
from workers.services.unattended import uncarried

INTERVALS: Final = 3
OK: Final = "ok"
UNKNOWN: Final = "unknown"
CACHE_KEY: Final = "tessera:failing-parts"
KEPT_SECONDS: Final = 10
STORAGE_FAULTS: Final = frozenset({DENIED, NO_BUCKET, NO_CREDENTIALS, NOT_INSTALLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPart:
    """The health of one part of the control plane.

    Attributes:
        name: database, broker, storage, rounds, nodes, beat, clock or disk.
        detail: a stable code: ``ok``, or the fault.
        since: start of that state; None if unknown.
        subjects: names of the affected hosts or nodes, for admins.
    """

    name: str
    detail: str = OK
    since: datetime | None = None
    subjects: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        return self.detail == OK


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """Measurements of a host from its newest heartbeats.

    Attributes:
        skew_seconds: clock of the host minus clock of the database; the largest of its processes.
        free_bytes: free space in the file system of the data directory; None if unknown.
        total_bytes: size of that file system; None if unknown.
    """

    name: str
    skew_seconds: float
    free_bytes: int | None
    total_bytes: int | None

    @property
    def is_skewed(self) -> bool:
        """Return whether the clock of the host differs too much to manage nodes."""
        return abs(self.skew_seconds) > MOST_SKEW.total_seconds()

    @property
    def is_almost_full(self) -> bool:
        """Return whether the data directory of the host is almost full."""
        if self.free_bytes is None or self.total_bytes is None:
            return False
        return DiskSpace(free_bytes=self.free_bytes, total_bytes=self.total_bytes).is_almost_full


def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Return 200 if this process can serve requests; with ``?strict=1`` if every part works."""
    found = parts()
    can_serve = all(part.is_ok for part in found if part.name == "database")
    works = all(part.is_ok for part in found)
    is_ready = works if request.GET.get("strict") == "1" else can_serve
    status = "ok" if works else ("degraded" if can_serve else "unavailable")
    return JsonResponse(
        {"status": status, "parts": {part.name: _as_json(part) for part in found}},
        status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
    )


def parts() -> tuple[HealthPart, ...]:
    broker = HealthPart(name="broker", detail=OK if _broker_answers() else "unreachable")
    storage = _storage()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        database = _database()
    except DatabaseError:
        return (HealthPart(name="database", detail="unreachable"), broker, storage, *_unknown())
    try:
        now = database_now()
        of_rows = (_rounds(now), _nodes(now), _beat(now), *_of_hosts(host_rows(now)))
    except DatabaseError:  # also if the schema is of another version and lacks a table or a column
        found = (
            database if not database.is_ok else HealthPart(name="database", detail="unreachable")
        )
        return (found, broker, storage, *_unknown())
    return (database, broker, storage, *of_rows)


def _unknown() -> Iterator[HealthPart]:
    names = ("rounds", "nodes", "beat", "clock", "disk")
    return (HealthPart(name=name, detail=UNKNOWN) for name in names)


def failing_parts() -> tuple[HealthPart, ...]:
    """Return the failing parts for the banner of admins; the result is cached for 10 s."""
    found: tuple[HealthPart, ...] | None = cache.get(CACHE_KEY)
    if found is None:
        found = tuple(part for part in parts() if not part.is_ok)
        cache.set(CACHE_KEY, found, KEPT_SECONDS)
    return found


def host_rows(now: datetime) -> tuple[HostRow, ...]:
    """Return the newest measurements of each host with a live process."""
    rows = Heartbeat.objects.filter(at__gt=now - FRESH, skew_seconds__isnull=False)
    found: dict[str, HostRow] = {}
    measured = rows.order_by("at").values_list(
        "host", "skew_seconds", "disk_free_bytes", "disk_total_bytes"
    )
    for name, skew, free, total in measured:
        before = found.get(name)
        furthest = max((skew or 0.0, before.skew_seconds if before else 0.0), key=abs)
        found[name] = HostRow(name=name, skew_seconds=furthest, free_bytes=free, total_bytes=total)
    return tuple(found[name] for name in sorted(found))


def _broker_answers() -> bool:
    if not broker.has_broker():
        return False
    return broker.broker_responds()


def _storage() -> HealthPart:
    """Check the object store; a directory is covered by the part `disk`."""
    state = open_storage(settings.TESSERA.storage).state()
    if not state.reason:
        return HealthPart(name="storage")
    known = state.reason if state.reason in STORAGE_FAULTS else UNREACHABLE
    return HealthPart(name="storage", detail=known, since=state.since)


def _database() -> HealthPart:
    """Check whether this version can use the tables."""
    recorded = recorded_migrations(connection)
    if database_refusal(connection, recorded, release=RELEASE):
        return HealthPart(name="database", detail="other-version")
    if missing_migrations(recorded):
        return HealthPart(name="database", detail="not-migrated")
    return HealthPart(name="database")


def _rounds(now: datetime) -> HealthPart:
    newest = Round.objects.order_by("-number").values_list("committed_at", flat=True).first()
    limit = timedelta(seconds=max(INTERVALS * settings.TESSERA.round_seconds, 3.0))
    if newest is None:
        return HealthPart(name="rounds", detail="none-yet")
    if now - newest > limit:
        return HealthPart(name="rounds", detail="late", since=newest + limit)
    return HealthPart(name="rounds")


def _nodes(now: datetime) -> HealthPart:
    names = tuple(uncarried(now).order_by("name").values_list("name", flat=True))
    if names:
        return HealthPart(name="nodes", detail="not-carried", subjects=names)
    services = Heartbeat.objects.filter(kind=SERVICE_KIND, at__gt=now - FRESH)
    if not services.exists() and Node.objects.filter(removed_at=None).exists():
        return HealthPart(name="nodes", detail="no-node-service")
    return HealthPart(name="nodes")


def _beat(now: datetime) -> HealthPart:
    ends = DutyLease.objects.filter(name=BEAT_DUTY).values_list("expires_at", flat=True).first()
    if ends is None:
        return HealthPart(name="beat", detail="none-yet")
    if not is_in_force(ends, now):
        return HealthPart(name="beat", detail="no-beat", since=min(ends, now))
    return HealthPart(name="beat")


def _of_hosts(hosts: Iterable[HostRow]) -> Iterable[HealthPart]:
    skewed = tuple(host.name for host in hosts if host.is_skewed)
    full = tuple(host.name for host in hosts if host.is_almost_full)
    yield HealthPart(name="clock", detail="clock-skew" if skewed else OK, subjects=skewed)
    yield HealthPart(name="disk", detail="almost-full" if full else OK, subjects=full)


def _as_json(part: HealthPart) -> dict[str, Any]:
    since = part.since.isoformat() if part.since is not None else None
    return {"ok": part.is_ok, "detail": part.detail, "since": since}
