"""Topology versions, appended one at a time, and only if every guarantee fits.

Every change of cells or guarantees (nodes, imports, virtual clusters) appends a version. The
version number is unique, so only one of two concurrent edits succeeds. Two edits that do not fit
together therefore cannot both be stored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from django.db import IntegrityError, transaction

from scheduling.clusters.models import Device, Topology
from scheduling.clusters.queries.isolation_fit import lost_places, missing_places, places_lost
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.cells import ClusterSpec, Feasibility, SpecError, feasible
from scheduling.core.messages import sentence
from scheduling.runs.models import Lease
from scheduling.topology.current import TopologyNow, current_topology
from tenants.errors import ConflictError, FieldError, InvalidError, StaleEditError
from tessera.messages import message_of

TRIES: Final = 4

T = TypeVar("T")

REMEDY_FOR_RULES: Final = sentence("guarantee-fewer-cells")
REMEDY_FOR_LOST_PLACES: Final = sentence("guarantee-whole-nodes")


class DoesNotFitError(ConflictError):
    """The guarantees do not fit into the cells; the message contains the level."""

    code = "does-not-fit"
    title = sentence("guarantees-do-not-fit")


class DevicesInUseError(ConflictError):
    """Jobs hold devices that would be removed."""

    code = "devices-in-use"
    title = sentence("devices-in-use")


class TopologyMovedError(Exception):
    """Another edit appended the next version; read and decide again."""


class _RolledBackError(Exception):
    """Rolls back a dry run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A topology version that was appended."""

    version: int
    spec: ClusterSpec


def in_turn(act: Callable[[], T], *, expected_version: int | None = None) -> T:
    """Run ``act`` in a transaction, and retry if another edit appended a version meanwhile.

    Args:
        act: reads, checks and writes; raises ``TopologyMovedError`` through ``append_version``.
        expected_version: version that an editor saw; if given, there is no retry.

    Raises:
        StaleEditError: the editor's version is outdated, or all retries failed.
    """
    for _ in range(TRIES):
        try:
            with transaction.atomic():
                return act()
        except TopologyMovedError:
            if expected_version is not None:
                break
    raise StaleEditError.of("topology", expected_version)


def rehearsed(act: Callable[[], T], *, dry_run: bool, expected_version: int | None = None) -> T:
    """Run ``act`` as ``in_turn`` does, and roll a dry run back when ``act`` returns.

    The result of a dry run is therefore exact, including its errors.
    """
    answers: list[T] = []

    def try_out() -> T:
        answers.append(act())
        raise _RolledBackError

    try:
        return in_turn(try_out if dry_run else act, expected_version=expected_version)
    except _RolledBackError:
        return answers[-1]


def append_version(
    *,
    before: int,
    spec: ClusterSpec,
    reason: str,
    user_id: int | None,
    now: datetime,
) -> Appended:
    """Store ``spec`` as the version after ``before``; call it inside ``in_turn``.

    Args:
        before: version that was read in this transaction.
        spec: cell types and physical cells; virtual clusters have rows of their own.
        reason: a short description of the change.
        user_id: ID of the editor; None for the system.
        now: time to store.

    Raises:
        TopologyMovedError: the version exists already.
    """
    stored = ClusterSpec(
        cell_types=spec.cell_types, physical=spec.physical, virtual_clusters={}, groups=spec.groups
    ).to_json()
    try:
        with transaction.atomic():
            Topology.objects.create(
                version=before + 1,
                spec=stored,
                reason=reason[:200],
                created_by_id=user_id,
                created_at=now,
            )
    except IntegrityError as error:
        raise TopologyMovedError(f"version {before + 1} exists") from error
    request_round_on_commit("topology")
    return Appended(version=before + 1, spec=spec)


def require_version(topology: TopologyNow, expected_version: int | None) -> None:
    """Check that the editor saw the newest version, if a version is given.

    Raises:
        StaleEditError: the version is outdated.
    """
    if expected_version is not None and expected_version != topology.version:
        raise StaleEditError.of("topology", expected_version)


def require_fit(spec: ClusterSpec, *, before: ClusterSpec, field: str = "cells") -> Feasibility:
    """Check that all guarantees of ``spec`` fit at the same time.

    Args:
        spec: the new specification.
        before: the current specification; a quota that does not fit in it is not an error.
        field: field name for the error.

    Raises:
        DoesNotFitError: a guarantee does not fit. The error contains the level with the needed and
            the existing number, or the nodes that two tenants would share without isolation.
        InvalidError: the specification itself is not valid.
    """
    try:
        answer = feasible(spec)
    except SpecError as error:
        raise refused(error) from error
    if not answer.ok:
        raise DoesNotFitError(
            sentence("witness", witness=message_of(answer.witness)),
            field=field,
            value=answer.field,
            remedy=sentence("guarantee-less"),
        )
    lost = lost_places(before, spec)
    if lost:
        raise DoesNotFitError(
            sentence("witness", witness=message_of(lost[0])),
            field=field,
            value=None,
            remedy=REMEDY_FOR_LOST_PLACES,
        )
    return answer


@contextmanager
def require_places(
    *, field: str, reason: str, user_id: int | None, now: datetime
) -> Iterator[None]:
    """Reject an edit of node access in the block if a quota would not fit any more.

    Call it inside ``in_turn``: it appends a version, so that of two concurrent edits the second is
    checked together with the first.

    Args:
        field: field name for the error.
        reason: a short description of the change.
        user_id: ID of the editor.
        now: time to store.

    Raises:
        DoesNotFitError: a quota does not fit; the error contains the virtual cluster and the
            nodes.
        TopologyMovedError: another edit changed cells or guarantees.
    """
    missing = missing_places(spec_in_force(current_topology()))
    yield
    lost = places_lost(spec_in_force(current_topology()), missing)
    if lost:
        raise DoesNotFitError(
            sentence("witness", witness=message_of(lost[0])),
            field=field,
            value=None,
            remedy=REMEDY_FOR_RULES,
        )
    touch_version(reason=reason, user_id=user_id, now=now)


def refused(error: SpecError) -> InvalidError:
    """Return an error of the cell engine as an error with field, value and remedy."""
    remedy = f"{error.remedy[:1].upper()}{error.remedy[1:]}" if error.remedy else ""
    return InvalidError(str(error), field=error.field, value=error.value, remedy=remedy)


def require_unused(gone: Iterable[int], *, field: str) -> None:
    """Check that no job holds any of these devices.

    Raises:
        DevicesInUseError: jobs hold devices; the error contains the devices and the number of
            jobs.
    """
    held = held_faults(gone, field=field)
    if held:
        raise DevicesInUseError(errors=held)


def held_faults(gone: Iterable[int], *, field: str) -> list[FieldError]:
    """Return the fault of removing devices that jobs hold; empty if none is held.

    Args:
        gone: primary keys of the devices.
        field: field name for the fault.
    """
    held = list(
        Lease.objects.filter(released_at=None, device_id__in=list(gone))
        .order_by("device__address")
        .values_list("device__address", "job_id")
    )
    if not held:
        return []
    jobs = {job_id for _, job_id in held}
    shown = ", ".join(address for address, _ in held[:5])
    return [
        FieldError(
            field=field,
            value=shown,
            message=sentence("jobs-hold-removed", n=len(jobs), devices=len(held), shown=shown),
            remedy=sentence("drain-or-stop-first"),
        )
    ]


def touch_version(*, reason: str, user_id: int | None, now: datetime) -> None:
    """Append a version with the same cells after a checked change of guarantees.

    Raises:
        TopologyMovedError: another edit changed cells or guarantees.
    """
    topology = current_topology()
    if topology.version:
        append_version(
            before=topology.version,
            spec=topology.spec,
            reason=reason,
            user_id=user_id,
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPlace:
    """The position of a device in the topology: node, index and names."""

    address: str
    node: str
    index: int
    chain: str
    device_type: str


def leaf_places(topology: TopologyNow) -> Mapping[tuple[str, int], LeafPlace]:
    """Return every leaf of the topology by node name and device index."""
    places = {}
    for (node, index), (name, leaf) in topology.cells.devices.items():
        chain = topology.cells.chains[name]
        places[node, index] = LeafPlace(
            address=chain.address[leaf],
            node=node,
            index=index,
            chain=name,
            device_type=chain.leaf_type,
        )
    return places


_PLACE: Final = ("address", "index", "chain", "device_type")
_NO_INDEX: Final = 1 << 20
"""Greater than every index of a device."""


def move_devices(wanted: Mapping[int, LeafPlace], rows: Mapping[int, Device]) -> None:
    """Store new leaves of devices in one step, so that devices can swap leaves.

    Args:
        wanted: new place by primary key of the device.
        rows: devices by primary key.
    """
    changed = [
        pk
        for pk, place in wanted.items()
        if tuple(getattr(rows[pk], name) for name in _PLACE)
        != tuple(getattr(place, name) for name in _PLACE)
    ]
    for number, pk in enumerate(changed):
        rows[pk].address, rows[pk].index = f"~{pk}", _NO_INDEX + number
    Device.objects.bulk_update((rows[pk] for pk in changed), ["address", "index"], batch_size=500)
    for pk in changed:
        for name in _PLACE:
            setattr(rows[pk], name, getattr(wanted[pk], name))
    Device.objects.bulk_update((rows[pk] for pk in changed), _PLACE, batch_size=500)


def retire_devices(devices: Iterable[Device], now: datetime) -> None:
    """Remove devices from the topology; rows and leases remain, and addresses become free."""
    gone = list(devices)
    for device in gone:
        device.address = f"{device.address[:200]}~{device.pk}"
        device.retired_at = now
    Device.objects.bulk_update(gone, ["address", "retired_at"], batch_size=500)
