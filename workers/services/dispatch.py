"""Directives for nodes, derived from their members."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from scheduling.clusters.models import Node
from scheduling.enums import LeaseKind, MemberStep
from scheduling.runs.models import Attempt, Lease, Member
from scheduling.runs.queries.node_members import DirectiveKind, directive_of
from scheduling.runs.services.attempts import mark_preparing
from scheduling.runs.services.guests import GUEST_GRACE_SECONDS
from scheduling.secrets import UnreadableSecretError
from tessera import protocol
from tessera.device_sharing import DeviceOrder
from workers.conf import WorkerSettings
from workers.services.device_orders import device_orders
from workers.services.preparations import (
    DeviceGoneError,
    HostIpcError,
    NoHostNetworkError,
    Preparations,
    StorageNotAllowedError,
)
from workers.transports.base import Preparation

log = logging.getLogger(__name__)

NEEDS_NODE: Final = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.STARTING)
OPEN: Final = (*NEEDS_NODE, MemberStep.PREPARED, MemberStep.RUNNING)
MOST_DIRECTIVES: Final = 256
_FORESEEN: Final = (
    UnreadableSecretError,
    NoHostNetworkError,
    HostIpcError,
    DeviceGoneError,
    StorageNotAllowedError,
)
_LEAVING: Final = (DirectiveKind.CANCEL, DirectiveKind.STOP)
_NAMES: Final = (
    "node_id",
    "role",
    "rank",
    "node_rank",
    "attempt__uid",
    "attempt__number",
    "attempt__devices",
    "attempt__job__devices",
)
_UNREAD: Final = (
    "attempt__demand",
    *(
        f"attempt__job__{name}"
        for name in ("labels", "note", "source_text", "warnings", "demand", "terms", "reason",
                     "reason_text", "failures", "excluded_nodes", "end_message")
    ),
    "attempt__job__virtual_cluster__policy_state",
    "attempt__job__owner__password",
)  # fmt: skip
"""Fields that are costly to read and unused in a preparation."""
_TOLD: Final = (
    "step", "stop_asked_at", "stop_cause", "settings", "settings_version", "settings_told",
    "share_version", "share_told",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRef:
    """A member with all its identifiers.

    Attributes:
        gang_devices: devices of the whole attempt.
    """

    member_id: int
    node_id: int
    run_id: str
    job_id: int
    attempt_id: int
    attempt_number: int
    role: str
    rank: int
    node_rank: int
    gang_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """An instruction for a node about one member, derived from its row; idempotent.

    Attributes:
        preparation: inputs of ``prepare``.
        refusal: reason why the member cannot be prepared and started.
        grace_seconds, reason: parameters of ``stop``.
        settings, settings_version: parameters of ``tune``.
        devices, share_version: parameters of ``share``.
    """

    kind: DirectiveKind
    rank: MemberRef
    preparation: Preparation | None = None
    refusal: str = ""
    grace_seconds: float = 30.0
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_version: int = 0
    devices: Sequence[DeviceOrder] = ()
    share_version: int = 0


def has_directives(*, node_ids: Collection[int], busy: Collection[int]) -> bool:
    """Return whether ``claim_directives`` would return directives; reads only."""
    return _waiting(node_ids, busy).exists()


def is_to_leave(member_id: int) -> bool:
    """Return whether the member has been notified to leave."""
    return not Member.objects.filter(pk=member_id, stop_asked_at=None).exists()


def claim_directives(
    *, node_ids: Collection[int], busy: Collection[int], settings: WorkerSettings, now: datetime
) -> list[Directive]:
    """Derive the directives for these nodes from the steps of their members.

    The function returns the same directives until reports of nodes change the steps. So the next
    service repeats directives that were lost with its predecessor.

    Args:
        node_ids: nodes that accept directives.
        busy: members with a directive in progress.
        settings: settings of the workers.
        now: time to store.
    """
    members = list(
        _waiting(node_ids, busy)
        .select_related("attempt__job")
        .only(*_NAMES, *_TOLD)
        .order_by("attempt_id", "node_rank")[:MOST_DIRECTIVES]
    )
    kinds = {member.pk: directive_of(member) for member in members}
    to_prepare = [pk for pk, kind in kinds.items() if kind is DirectiveKind.PREPARE]
    wanted = mark_preparing(member_ids=to_prepare, now=now) if to_prepare else set()
    preparing = _with_all(wanted)
    preparations = Preparations(list(preparing.values()), settings)
    graces = _graces([m.attempt for m in members if kinds[m.pk] in _LEAVING])
    orders = device_orders(pk for pk, kind in kinds.items() if kind is DirectiveKind.SHARE)
    directives = []
    for member in members:
        rank = rank_of(member)
        if kinds[member.pk] is not DirectiveKind.PREPARE:
            grace = graces.get(member.attempt_id, 0.0)
            found = _directive(kinds[member.pk], member, rank, grace)
            directives.append(replace(found, devices=orders.get(member.pk, ())))
        elif member.pk in preparing:
            directives.append(_prepare(preparing[member.pk], rank, preparations))
    return directives


def _directive(kind: DirectiveKind, member: Member, rank: MemberRef, grace: float) -> Directive:
    """Build any directive except *prepare*, which needs more inputs."""
    return Directive(
        kind=kind,
        rank=rank,
        grace_seconds=grace,
        reason=member.stop_cause,
        settings=member.settings or {},
        settings_version=member.settings_version,
        share_version=member.share_version,
    )


def rank_of(member: Member) -> MemberRef:
    """Return the identifiers of ``member``; its attempt and job must have been fetched."""
    attempt = member.attempt
    return MemberRef(
        member_id=member.pk,
        node_id=member.node_id,
        run_id=protocol.make_run_id(attempt.uid, member.role, member.rank),
        job_id=attempt.job_id,
        attempt_id=attempt.pk,
        attempt_number=attempt.number,
        role=member.role,
        rank=member.rank,
        node_rank=member.node_rank,
        gang_devices=attempt.devices or attempt.job.devices,
    )


def _waiting(node_ids: Collection[int], busy: Collection[int]) -> QuerySet[Member]:
    return (
        Member.objects.filter(node_id__in=list(node_ids), step__in=OPEN, removed_at=None)
        .filter(
            Q(step__in=NEEDS_NODE)
            | Q(stop_asked_at__isnull=False)
            | Q(step=MemberStep.RUNNING, settings_version__gt=F("settings_told"))
            | Q(step=MemberStep.RUNNING, share_version__gt=F("share_told"))
        )
        .exclude(
            Q(step=MemberStep.STARTING, stop_asked_at=None)
            & (Q(Exists(_guests_of_others())) | Q(Exists(_unordered_places())))
        )
        .exclude(pk__in=list(busy))
    )


def _guests_of_others() -> QuerySet[Lease]:
    """Return guests of earlier holders on the devices of a member, which waits for their end."""
    mine = Lease.objects.filter(
        member=OuterRef(OuterRef("pk")), released_at=None, kind=LeaseKind.USING
    )
    there = Lease.objects.filter(
        device_id__in=mine.values("device_id"), released_at=None, kind=LeaseKind.GUEST
    )
    return there.exclude(beside=OuterRef("pk"))


def _unordered_places() -> QuerySet[Lease]:
    """Return places of a guest of which the coordinator does not know yet.

    The node refuses a guest beside a run that does not coordinate its device.
    """
    mine = Lease.objects.filter(member=OuterRef("pk"), released_at=None, kind=LeaseKind.GUEST)
    return mine.filter(
        beside__step=MemberStep.RUNNING, beside__share_version__gt=F("beside__share_told")
    )


def _with_all(member_ids: Collection[int]) -> dict[int, Member]:
    """Load members with all fields that a preparation needs."""
    if not member_ids:
        return {}
    found = Member.objects.filter(pk__in=list(member_ids)).select_related(
        "attempt__job__virtual_cluster__tenant", "attempt__job__owner", "attempt__job__tenant"
    )
    members = {member.pk: member for member in found.defer(*_UNREAD)}
    # Its inventory is long, and the members of a node need it only once.
    nodes = Node.objects.in_bulk({member.node_id for member in members.values()})
    for member in members.values():
        member.node = nodes[member.node_id]
    return members


def _graces(attempts: Sequence[Attempt]) -> dict[int, float]:
    """Return the grace periods of these attempts in seconds; those of guests are short."""
    if not attempts:
        return {}
    specs = Attempt.objects.filter(pk__in=[attempt.pk for attempt in attempts])
    return {
        pk: min(float(grace), GUEST_GRACE_SECONDS)
        if is_guest and not is_peer and promoted_at is None
        else float(grace)
        for pk, grace, is_guest, is_peer, promoted_at in specs.values_list(
            "id", "job__spec__grace_seconds", "is_guest", "is_peer", "promoted_at"
        )
    }


def _prepare(member: Member, rank: MemberRef, preparations: Preparations) -> Directive:
    try:
        preparation = preparations.of(member)
    except Exception as error:
        # One job with an invalid preparation must not block all others.
        log.exception("the preparation of %s failed", rank.run_id)
        # The owner reads it: of unexpected errors only the type is shown.
        foreseen = isinstance(error, _FORESEEN)
        said = str(error) if foreseen else type(error).__name__
        refusal = f"its run cannot be put together: {said}"
        return Directive(kind=DirectiveKind.PREPARE, rank=rank, refusal=refusal)
    return Directive(kind=DirectiveKind.PREPARE, rank=rank, preparation=preparation)
