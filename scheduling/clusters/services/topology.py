"""Versions of the cluster's shape: appended one at a time, and only when every promise fits.

Whatever changes what is there or what is promised (nodes, imports, virtual clusters) appends a
version. The unique number lets one of two editors win, so that two edits that fit each by itself
cannot both be stored when they do not fit together.
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
from scheduling.common.on_commit import want_round
from scheduling.core.cells import ClusterSpec, Feasibility, SpecError, feasible
from scheduling.core.messages import sentence
from scheduling.runs.models import Lease
from scheduling.topology.current import TopologyNow, current_topology
from tenants.errors import ConflictError, FieldError, InvalidError, StaleEditError
from tessera.messages import message_of

TRIES: Final = 4

T = TypeVar("T")

REMEDY_FOR_RULES: Final = (
    "Promise fewer cells to this virtual cluster, choose a lower level or other nodes, or raise"
    " the isolation level of nodes."
)
REMEDY_FOR_LOST_PLACES: Final = sentence("guarantee-whole-nodes")


class DoesNotFitError(ConflictError):
    """What is promised does not fit into what is there; the message says at which level."""

    code = "does-not-fit"
    title = sentence("guarantees-do-not-fit")


class DevicesInUseError(ConflictError):
    """Jobs hold devices that would vanish."""

    code = "devices-in-use"
    title = sentence("devices-in-use")


class TopologyMovedError(Exception):
    """Somebody else appended the next version; read again and decide again."""


class _RolledBackError(Exception):
    """Takes a dry run out of its transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A version that was appended."""

    version: int
    spec: ClusterSpec


def in_turn(act: Callable[[], T], *, expected_version: int | None = None) -> T:
    """Run ``act`` in a transaction; again when somebody else appended a version meanwhile.

    Args:
        act: reads, checks and writes; raises ``TopologyMovedError`` through ``append_version``.
        expected_version: the version an editor saw; then there is no second try.

    Raises:
        StaleEditError: the editor's version is not the newest one any more, or others were
            faster every time.
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
    """Like ``in_turn``; a dry run is rolled back as soon as ``act`` has answered.

    So the answer of a dry run is what would happen, refusals included.
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
        before: the version that was read in this transaction.
        spec: cell types and physical cells; virtual clusters have rows of their own.
        reason: what changed, in a few words.
        user_id: who changed it; None for the system.
        now: the instant that is written.

    Raises:
        TopologyMovedError: there is such a version already.
    """
    stored = ClusterSpec(
        cell_types=spec.cell_types, physical=spec.physical, virtual_clusters={}
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
    want_round("topology")
    return Appended(version=before + 1, spec=spec)


def require_version(topology: TopologyNow, expected_version: int | None) -> None:
    """Go on if the editor saw the newest version (or did not say which).

    Raises:
        StaleEditError: the topology has moved on.
    """
    if expected_version is not None and expected_version != topology.version:
        raise StaleEditError.of("topology", expected_version)


def require_fit(spec: ClusterSpec, *, before: ClusterSpec, field: str = "cells") -> Feasibility:
    """Go on if every promise of ``spec`` can be kept at once.

    Args:
        spec: wanted.
        before: in force now; a quota without a place in it makes no edit fail.
        field: named by the error.

    Raises:
        DoesNotFitError: with the level, how many it needs and how many there are; or with the
            nodes that two tenants would have to share, and do not isolate jobs.
        InvalidError: the specification itself is wrong.
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
            f"{lost[0]}.", field=field, value=None, remedy=REMEDY_FOR_LOST_PLACES
        )
    return answer


@contextmanager
def places_kept(*, field: str, reason: str, user_id: int | None, now: datetime) -> Iterator[None]:
    """Refuse what the block writes about who may use which nodes, if a quota loses its place.

    Call it inside ``in_turn``: it appends a version, so that of two such edits at once, which fit
    each by itself, the second is judged with the first.

    Args:
        field: named by the error.
        reason: what changes, in a few words.
        user_id: who changes it.
        now: the instant that is written.

    Raises:
        DoesNotFitError: with the virtual cluster and the nodes.
        TopologyMovedError: somebody else changed the cells or a promise meanwhile.
    """
    missing = missing_places(spec_in_force(current_topology()))
    yield
    lost = places_lost(spec_in_force(current_topology()), missing)
    if lost:
        raise DoesNotFitError(f"{lost[0]}.", field=field, value=None, remedy=REMEDY_FOR_RULES)
    touch_version(reason=reason, user_id=user_id, now=now)


def refused(error: SpecError) -> InvalidError:
    """A refusal of the cell engine as an error with field, value and remedy."""
    remedy = f"{error.remedy[:1].upper()}{error.remedy[1:]}" if error.remedy else ""
    return InvalidError(str(error), field=error.field, value=error.value, remedy=remedy)


def require_unused(gone: Iterable[int], *, field: str) -> None:
    """Go on if no job holds any of these devices.

    Raises:
        DevicesInUseError: with the devices and the number of jobs.
    """
    held = held_faults(gone, field=field)
    if held:
        raise DevicesInUseError(errors=held)


def held_faults(gone: Iterable[int], *, field: str) -> list[FieldError]:
    """The fault of removing these devices while jobs hold some of them; empty if none is held.

    Args:
        gone: primary keys of the devices.
        field: named by the fault.
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
            message=f"{len(jobs)} {'job holds' if len(jobs) == 1 else 'jobs hold'} "
            f"{len(held)} of the devices that would vanish ({shown}).",
            remedy=sentence("drain-or-stop-first"),
        )
    ]


def touch_version(*, reason: str, user_id: int | None, now: datetime) -> None:
    """Append a version with the same cells: what is promised has changed, and was checked.

    Raises:
        TopologyMovedError: somebody else changed the cells or a promise meanwhile.
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
    """Where the topology has a device: its node, its index there, and the names around it."""

    address: str
    node: str
    index: int
    chain: str
    device_type: str


def leaf_places(topology: TopologyNow) -> Mapping[tuple[str, int], LeafPlace]:
    """Every leaf of the topology by node name and device index."""
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


def move_devices(wanted: Mapping[int, LeafPlace], rows: Mapping[int, Device]) -> None:
    """Give devices their new addresses at once, also where they change places.

    Args:
        wanted: new place by row of the device.
        rows: those rows.
    """
    changed = [
        pk
        for pk, place in wanted.items()
        if (rows[pk].address, rows[pk].chain, rows[pk].device_type)
        != (place.address, place.chain, place.device_type)
    ]
    for pk in changed:
        rows[pk].address = f"~{pk}"
    Device.objects.bulk_update((rows[pk] for pk in changed), ["address"], batch_size=500)
    for pk in changed:
        place = wanted[pk]
        rows[pk].address, rows[pk].chain = place.address, place.chain
        rows[pk].device_type = place.device_type
    Device.objects.bulk_update(
        (rows[pk] for pk in changed), ["address", "chain", "device_type"], batch_size=500
    )


def retire_devices(devices: Iterable[Device], now: datetime) -> None:
    """Take devices out of the topology; rows and leases stay, addresses become free."""
    gone = list(devices)
    for device in gone:
        device.address = f"{device.address[:200]}~{device.pk}"
        device.retired_at = now
    Device.objects.bulk_update(gone, ["address", "retired_at"], batch_size=500)
