"""Utilisation and memory of a job's devices, rank by rank, in a bounded number of points."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import attrgetter, or_
from statistics import fmean
from typing import Final

from django.db.models import Min, Q, QuerySet
from django.db.models.functions import ExtractHour

from scheduling.clusters.models import Device
from scheduling.jobs.queries.events import require_visible_job
from scheduling.runs.models import Member
from tenants.viewers import Viewer
from workers.models import NodeTelemetry
from workers.services.telemetry import KEEP, floored

#: Maximum points of a device. Jobs older than half a year get one a day, for at most a year.
MOST_POINTS: Final = 180
MOST_ATTEMPTS: Final = 20
MOST_RANKS: Final = 64
USUAL_RANKS: Final = 8
_MINUTE: Final = 60
_HOUR: Final = 3600
#: Hours between two points, so that all days have points at the same times.
_STRIDES: Final = (1, 2, 3, 4, 6, 8, 12, 24)
_AT: Final = attrgetter("at")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoint:
    """Averages of a device over the ``span_seconds`` from ``at`` on.

    Attributes:
        utilisation: share of the time in which it was busy, 0 to 1; None if unknown.
        memory_bytes: memory in use; None if unknown.
    """

    at: datetime
    utilisation: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCurve:
    """One device of a rank over the job's life.

    Attributes:
        index: index of the device on its node, in the newest attempt with this device.
        device_type: empty for a device that has left the cluster.
        is_gpu: False for a declared CPU slot, whose load is processor time.
        memory_bytes: memory of the device; None if unknown.
        points: oldest first.
    """

    node_id: int
    node: str
    index: int
    device_type: str
    is_gpu: bool
    memory_bytes: int | None
    points: tuple[DevicePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCurves:
    """The devices of one rank of one role."""

    role: str
    rank: int
    devices: tuple[DeviceCurve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCurves:
    """Some ranks of a job on one time axis.

    Attributes:
        since, until: the axis; both None before the first run of the job.
        span_seconds: span of a point: a minute, ten or an hour.
        first: number of ranks before these; ``total``: of all ranks.
    """

    since: datetime | None = None
    until: datetime | None = None
    span_seconds: int = _MINUTE
    first: int = 0
    total: int = 0
    ranks: tuple[RankCurves, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """The span in which a rank held devices of a node."""

    name: tuple[str, int]
    attempt: int
    node_id: int
    node: str
    devices: tuple[int, ...]
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    at: datetime
    seconds: int
    utilisation: Sequence[float | None]
    memory: Sequence[int | None]


def device_curves(
    viewer: Viewer, job_id: int, *, now: datetime, first: int = 0, most: int = USUAL_RANKS
) -> JobCurves:
    """Return curves of up to ``most`` ranks over the newest 20 attempts, in five queries.

    Only spans within the time of a rank are included: load before and after belongs to other jobs.
    A device that several jobs share is shown as a whole.

    Raises:
        NotFoundError: the job does not exist, or the viewer may not see it.
    """
    require_visible_job(viewer, job_id)
    begun = Member.objects.filter(attempt__job_id=job_id).exclude(started_at=None)
    names = list(
        begun.order_by()
        .values_list("role", "rank")
        .annotate(place=Min("node_rank"))
        .order_by("place", "role", "rank")
        .values_list("role", "rank")
    )
    chosen = names[first : first + min(most, MOST_RANKS)]
    if not chosen:
        return JobCurves(first=first, total=len(names))
    held = _held(begun.filter(_any(Q(role=role, rank=rank) for role, rank in chosen)), now)
    since, until = min(one.since for one in held), max(one.until for one in held)
    span = _span(since, until, now)
    readings = _readings(held, span, since=since, until=until)
    known = _known_devices({one.node_id for one in held})
    return JobCurves(
        since=since,
        until=until,
        span_seconds=span,
        first=first,
        total=len(names),
        ranks=tuple(
            RankCurves(role=name[0], rank=name[1], devices=_curves(parts, readings, known, span))
            for name in chosen
            if (parts := [one for one in held if one.name == name])
        ),
    )


def _held(members: QuerySet[Member], now: datetime) -> list[_Held]:
    """Return the held devices of the newest attempts, oldest first."""
    rows = members.select_related("attempt", "node").order_by("-attempt__number")
    newest: int | None = None
    found = []
    for row in rows[: MOST_ATTEMPTS * MOST_RANKS]:
        newest = row.attempt.number if newest is None else newest
        if row.attempt.number <= newest - MOST_ATTEMPTS or row.started_at is None:
            continue
        found.append(
            _Held(
                name=(row.role, row.rank),
                attempt=row.attempt.number,
                node_id=row.node_id,
                node=row.node.name,
                devices=tuple(row.devices),
                since=row.started_at,
                until=max(row.started_at, row.exited_at or row.attempt.ended_at or now),
            )
        )
    return found[::-1]


def _span(since: datetime, until: datetime, now: datetime) -> int:
    """Return the shortest span with rows since ``since`` and few enough points."""
    for span, age in KEEP.items():
        points = (until - since).total_seconds() / span
        if points <= MOST_POINTS and since > now - age:
            return span
    return _HOUR


def _readings(
    held: Sequence[_Held], span: int, *, since: datetime, until: datetime
) -> Mapping[int, list[_Reading]]:
    rows = NodeTelemetry.objects.annotate(hour=ExtractHour("at", tzinfo=UTC))
    asked = _any(_asked(held, span, since=since, until=until))
    found: dict[int, list[_Reading]] = defaultdict(list)
    for node_id, at, seconds, utilisation, memory in (
        rows.filter(asked)
        .order_by("at")
        .values_list("node_id", "at", "span_seconds", "utilisation", "memory_bytes")
    ):
        found[node_id].append(
            _Reading(at=at, seconds=seconds, utilisation=utilisation, memory=memory)
        )
    return found


def _asked(held: Sequence[_Held], span: int, *, since: datetime, until: datetime) -> Iterable[Q]:
    by_attempt: dict[int, list[_Held]] = defaultdict(list)
    for one in held:
        by_attempt[one.attempt].append(one)
    hours = Q()
    wanted = (until - since).total_seconds() / _HOUR / MOST_POINTS
    if span == _HOUR and wanted > 1:
        stride = next((each for each in _STRIDES if each >= wanted), _STRIDES[-1])
        hours = Q(hour__in=range(0, 24, stride))
    # Rows of minutes are merged into longer spans later, so the end is read from minutes.
    tail = until - timedelta(seconds=2 * span)
    for parts in by_attempt.values():
        nodes = Q(node__in={one.node_id for one in parts})
        begin, end = min(one.since for one in parts), max(one.until for one in parts)
        yield nodes & hours & Q(span_seconds=span, at__gte=begin, at__lt=end)
        if span > _MINUTE and end > tail:
            yield nodes & Q(span_seconds=_MINUTE, at__gte=max(begin, tail), at__lt=end)


def _known_devices(nodes: set[int]) -> Mapping[tuple[int, int], tuple[str, bool, int]]:
    rows = Device.objects.filter(node__in=nodes, retired_at=None)
    return {
        (node_id, index): (device_type, is_gpu, memory)
        for node_id, index, device_type, is_gpu, memory in rows.values_list(
            "node_id", "index", "device_type", "is_gpu", "memory_bytes"
        )
    }


def _curves(
    parts: Sequence[_Held],
    readings: Mapping[int, list[_Reading]],
    known: Mapping[tuple[int, int], tuple[str, bool, int]],
    span: int,
) -> tuple[DeviceCurve, ...]:
    """Return one curve per position among a rank's devices, over all attempts."""
    spans = [_spans(one, readings.get(one.node_id, ()), span) for one in parts]
    found = []
    for place in range(max(len(one.devices) for one in parts)):
        having = [
            (one, told) for one, told in zip(parts, spans, strict=True) if place < len(one.devices)
        ]
        last, _ = having[-1]
        index = last.devices[place]
        device_type, is_gpu, memory = known.get((last.node_id, index), ("", True, 0))
        points = (point for one, told in having for point in _points(told, one.devices[place]))
        found.append(
            DeviceCurve(
                node_id=last.node_id,
                node=last.node,
                index=index,
                device_type=device_type,
                is_gpu=is_gpu,
                memory_bytes=memory or None,
                points=tuple(points),
            )
        )
    return tuple(found)


def _spans(
    one: _Held, readings: Sequence[_Reading], span: int
) -> list[tuple[datetime, list[_Reading]]]:
    """Return readings of a node while a rank held devices on it; minutes at the end are merged.

    Called once for all of the rank's devices: most readings belong to other attempts.
    """
    begin, end = (bisect_left(readings, at, key=_AT) for at in (one.since, one.until))
    within = [
        each
        for each in readings[begin:end]
        if each.at + timedelta(seconds=each.seconds) <= one.until
    ]
    folded = {each.at for each in within if each.seconds == span}
    groups: dict[datetime, list[_Reading]] = defaultdict(list)
    for each in within:
        start = each.at if each.seconds == span else floored(each.at, span)
        if each.seconds == span or start not in folded:
            groups[max(start, one.since)].append(each)
    return sorted(groups.items())


def _points(
    spans: Iterable[tuple[datetime, Sequence[_Reading]]], index: int
) -> Iterable[DevicePoint]:
    for at, told in spans:
        busy = _told(each.utilisation[index : index + 1] for each in told)
        memory = _told(each.memory[index : index + 1] for each in told)
        if busy or memory:
            yield DevicePoint(
                at=at,
                utilisation=round(fmean(busy), 3) if busy else None,
                memory_bytes=int(fmean(memory)) if memory else None,
            )


def _told(values: Iterable[Sequence[float | None]]) -> list[float]:
    return [value for some in values for value in some if value is not None]


def _any(conditions: Iterable[Q]) -> Q:
    return reduce(or_, conditions)
