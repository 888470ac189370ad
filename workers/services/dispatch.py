"""Directives for nodes, derived from their members, with all inputs of each."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.db.models import F, Q, QuerySet

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.node_isolation import hidden_from_jobs, visible_to
from scheduling.core.jobspec import ArchiveSource, GitSource, RoleSpec, parse_stored
from scheduling.enums import MemberStep
from scheduling.jobs.models import Job, JobSecret
from scheduling.runs.models import Attempt, Member
from scheduling.runs.queries.node_members import DirectiveKind, directive_of
from scheduling.runs.services.attempts import mark_preparing
from scheduling.secrets import UnreadableSecretError, unseal
from tessera import protocol
from tessera.isolation import OWN_NETWORK, SHARED_NETWORK
from workers.conf import WorkerSettings
from workers.services.checkpoints import last_saved
from workers.services.environment import AttemptGang, GangMember, job_environment
from workers.transports.base import Container, LastSaved, Preparation

log = logging.getLogger(__name__)

NEEDS_NODE: Final = (MemberStep.WAITING, MemberStep.PREPARING, MemberStep.STARTING)
OPEN: Final = (*NEEDS_NODE, MemberStep.PREPARED, MemberStep.RUNNING)
MOST_DIRECTIVES: Final = 256
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
    """An instruction for a node about one member, derived from its row; safe to repeat.

    Attributes:
        preparation: for ``prepare``.
        refusal: reason why the member cannot be prepared and started.
        grace_seconds, reason: for ``stop``.
        settings, settings_version: for ``tune``.
    """

    kind: DirectiveKind
    rank: MemberRef
    preparation: Preparation | None = None
    refusal: str = ""
    grace_seconds: float = 30.0
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_version: int = 0


def has_directives(*, node_ids: Collection[int], busy: Collection[int]) -> bool:
    """Whether ``claim_directives`` would find something; reads only."""
    return _waiting(node_ids, busy).exists()


def claim_directives(
    *, node_ids: Collection[int], busy: Collection[int], settings: WorkerSettings, now: datetime
) -> list[Directive]:
    """Derive the directives for these nodes from the steps of their members.

    The same directives are returned until reports of the nodes change the steps, so that the next
    service repeats a directive that was lost with its predecessor.

    Args:
        node_ids: nodes that accept directives.
        busy: members with a directive in progress.
        settings: of the workers.
        now: the instant that is written.
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
    inputs = _Inputs(list(preparing.values()), settings)
    graces = _graces([m.attempt for m in members if kinds[m.pk] in _LEAVING])
    directives = []
    for member in members:
        rank = rank_of(member)
        if kinds[member.pk] is not DirectiveKind.PREPARE:
            grace = graces.get(member.attempt_id, 0.0)
            directives.append(_directive(kinds[member.pk], member, rank, grace))
        elif member.pk in preparing:
            directives.append(_prepare(preparing[member.pk], rank, inputs))
    return directives


def _directive(kind: DirectiveKind, member: Member, rank: MemberRef, grace: float) -> Directive:
    """Any directive except *prepare*, which needs more inputs."""
    return Directive(
        kind=kind,
        rank=rank,
        grace_seconds=grace,
        reason=member.stop_cause,
        settings=member.settings or {},
        settings_version=member.settings_version,
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
        )
        .exclude(pk__in=list(busy))
    )


def _with_all(member_ids: Collection[int]) -> dict[int, Member]:
    """Members with all fields of a preparation."""
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
    """Grace periods of these attempts in seconds."""
    if not attempts:
        return {}
    specs = Attempt.objects.filter(pk__in=[attempt.pk for attempt in attempts])
    return {pk: float(grace) for pk, grace in specs.values_list("id", "job__spec__grace_seconds")}


def _prepare(member: Member, rank: MemberRef, inputs: "_Inputs") -> Directive:
    try:
        preparation = inputs.preparation(member, rank)
    except Exception as error:
        # One job with an invalid preparation must not block all others.
        log.exception("no preparation for %s", rank.run_id)
        # The owner reads it: of unexpected errors only the type is shown.
        foreseen = isinstance(error, (UnreadableSecretError, NoHostNetworkError))
        said = str(error) if foreseen else type(error).__name__
        refusal = f"its run cannot be put together: {said}"
        return Directive(kind=DirectiveKind.PREPARE, rank=rank, refusal=refusal)
    return Directive(kind=DirectiveKind.PREPARE, rank=rank, preparation=preparation)


class NoHostNetworkError(Exception):
    """A gang of several instances needs its nodes' network, and the admin does not allow it."""

    def __str__(self) -> str:
        return (
            "a gang with several instances needs the network of its nodes, and"
            " TESSERA_HOST_NETWORK=never is set here; use 1 instance"
        )


class _Inputs:
    """All inputs of several preparations, read in a few queries."""

    def __init__(self, members: Sequence[Member], settings: WorkerSettings) -> None:
        self._settings = settings
        attempts = {member.attempt_id: member.attempt for member in members}
        self._gangs = _gangs(attempts) if attempts else {}
        self._sealed = _sealed({a.job_id for a in attempts.values()}) if attempts else {}
        self._saved = last_saved(attempts.values())
        self._gpus, self._shares = _devices({m.node_id for m in members}) if members else ({}, {})

    def preparation(self, member: Member, rank: MemberRef) -> Preparation:
        gang = self._gangs[member.attempt_id]
        job, role = member.attempt.job, gang.spec.roles[member.role]
        has_container = self._has_container(member, role)
        network = self._network(member, gang, has_container=has_container)
        if network == OWN_NETWORK:
            gang = gang.alone()
        secrets = {
            name: unseal(sealed)
            for name, sealed in self._sealed.get((job.pk, member.role), {}).items()
        }
        login = secrets.pop(role.image_secret, "") if role.image_secret else ""
        container = self._container(member, role, rank, login) if has_container else None
        return Preparation(
            run=self._run(member, rank, gang, job, network),
            secrets=secrets,
            archive=self._archive(gang),
            container=container,
            last=self._last(member),
        )

    def _last(self, member: Member) -> LastSaved | None:
        """The checkpoint to copy to the member's node; None if it is there already."""
        last = self._saved.get(member.attempt_id)
        if self._gangs[member.attempt_id].spec.checkpoint_dir:
            return None  # all nodes have it
        return None if last is None or last.node_id == member.node_id else last

    def _has_container(self, member: Member, role: RoleSpec) -> bool:
        return role.image is not None and (
            member.node.has_docker or not self._settings.ignore_images
        )

    def _network(self, member: Member, gang: AttemptGang, *, has_container: bool) -> str:
        """The network of the run; only a gang of one rank can have its own.

        Raises:
            NoHostNetworkError: it needs the node's network, and jobs may not have it.
        """
        if len(gang.members) > 1:
            if not self._settings.host_network:
                raise NoHostNetworkError
            return SHARED_NETWORK
        own = not has_container or bool(member.node.inventory.get("firewall"))
        return OWN_NETWORK if own else SHARED_NETWORK

    def _run(
        self, member: Member, rank: MemberRef, gang: AttemptGang, job: Job, network: str
    ) -> protocol.RunSpec:
        me = gang.members[member.node_rank]
        spec, role = gang.spec, gang.spec.roles[member.role]
        ports = [port for numbers in me.ports.values() for port in numbers]
        if me.node_rank == gang.master.node_rank and network != OWN_NETWORK:
            ports.insert(0, gang.port)
        cpus, memory = self._share(member, role)
        source = spec.source
        return protocol.RunSpec(
            run_id=rank.run_id,
            job_id=str(job.pk),
            job_name=job.name,
            attempt=member.attempt.uid,
            role=member.role,
            rank=member.rank,
            command=role.command,
            env=job_environment(gang, me, has_gpus=bool(self._gpus_of(member))),
            devices=list(member.devices),
            cpus=cpus,
            memory_bytes=memory,
            limits_enforced=_enforces_limits(member.node),
            max_duration_seconds=job.max_duration_seconds,
            grace_seconds=spec.grace_seconds,
            lease_seconds=self._settings.run_lease,
            log_cap_bytes=self._settings.log_cap_bytes,
            ports=ports,
            installation=self._settings.installation,
            checkpoint_dir=spec.checkpoint_dir,
            isolation=member.least_isolation,
            uid=job.tenant.uid,
            visible_paths=visible_to(member.node.visible_paths, job.tenant_id),
            hidden_paths=hidden_from_jobs(member.node.visible_paths),
            network=network,
            job_network=member.node.job_network,
            disk_bytes=self._settings.disk_bytes,
            source_git=protocol.GitSource(url=source.url, ref=source.ref)
            if isinstance(source, GitSource)
            else None,
            source_archive=protocol.ArchiveSource(sha256=source.digest)
            if isinstance(source, ArchiveSource)
            else None,
        )

    def _container(self, member: Member, role: RoleSpec, rank: MemberRef, login: str) -> Container:
        tenant = member.attempt.job.virtual_cluster.tenant_id
        labels = {
            "tessera.installation": self._settings.installation,
            "tessera.job": str(rank.job_id),
            "tessera.attempt": str(rank.attempt_number),
            "tessera.role": rank.role,
            "tessera.rank": str(rank.rank),
        }
        return Container(
            image=role.image or "",
            gpus=self._gpus_of(member),
            labels=labels,
            login=login,
            tenant=f"{self._settings.installation}/{tenant}",
            local_images=self._settings.local_images,
        )

    def _archive(self, gang: AttemptGang) -> Path | None:
        source = gang.spec.source
        if not isinstance(source, ArchiveSource):
            return None
        return self._settings.archive(source.digest)

    def _gpus_of(self, member: Member) -> tuple[int, ...]:
        gpus = self._gpus.get(member.node_id, frozenset())
        return tuple(index for index in member.devices if index in gpus)

    def _share(self, member: Member, role: RoleSpec) -> tuple[float, int]:
        """Processors and memory: the request of the role, or the share of its devices."""
        shares = self._shares.get(member.node_id, {})
        mine = [shares[index] for index in member.devices if index in shares]
        # An instance with fewer devices than it asked for has as much less of the rest.
        part = len(member.devices) / role.devices
        cpus = role.cpus * part if role.cpus is not None else sum(cpus for cpus, _ in mine)
        memory = role.memory * part if role.memory is not None else sum(size for _, size in mine)
        return float(cpus), int(memory)


def _gangs(attempts: Mapping[int, Attempt]) -> dict[int, AttemptGang]:
    peers: dict[int, list[GangMember]] = defaultdict(list)
    rows = (
        Member.objects.filter(attempt_id__in=list(attempts))
        .order_by("attempt_id", "node_rank")
        .values_list("attempt_id", "role", "rank", "node_rank", "node__host", "devices", "ports")
    )
    for attempt_id, role, rank, node_rank, host, devices, ports in rows:
        peers[attempt_id].append(
            GangMember(
                role=role,
                rank=rank,
                node_rank=node_rank,
                host=host,
                devices=tuple(devices),
                ports=ports,
            )
        )
    return {pk: _gang(attempt, peers[pk]) for pk, attempt in attempts.items()}


def _gang(attempt: Attempt, members: Iterable[GangMember]) -> AttemptGang:
    job = attempt.job
    return AttemptGang(
        spec=parse_stored(job.spec),
        job_id=job.pk,
        job_name=job.name,
        attempt_number=attempt.number,
        tenant=job.virtual_cluster.tenant.name,
        virtual_cluster=job.virtual_cluster.name,
        user=job.owner.username,
        port=attempt.port,
        members=tuple(members),
        layout=attempt.layout,
    )


def _sealed(job_ids: Collection[int]) -> dict[tuple[int, str], dict[str, bytes]]:
    found: dict[tuple[int, str], dict[str, bytes]] = defaultdict(dict)
    for row in JobSecret.objects.filter(job_id__in=list(job_ids)):
        found[row.job_id, row.role][row.name] = bytes(row.sealed)
    return found


def _devices(
    node_ids: Collection[int],
) -> tuple[dict[int, frozenset[int]], dict[int, dict[int, tuple[float, int]]]]:
    """By node: the indices of its GPUs, and each device's share of processors and memory."""
    gpus: dict[int, set[int]] = defaultdict(set)
    shares: dict[int, dict[int, tuple[float, int]]] = defaultdict(dict)
    for device in Device.objects.filter(node_id__in=list(node_ids), retired_at=None):
        shares[device.node_id][device.index] = (device.cpus, device.memory_bytes)
        if device.is_gpu:
            gpus[device.node_id].add(device.index)
    return {node: frozenset(found) for node, found in gpus.items()}, dict(shares)


def _enforces_limits(node: Node) -> bool:
    """Limits are enforced if the node can and its devices are real, not declared."""
    devices = node.inventory.get("devices", [])
    declared = bool(devices) and all(device.get("declared") for device in devices)
    return bool(node.inventory.get("cgroups")) and not declared
