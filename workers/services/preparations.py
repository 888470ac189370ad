"""Inputs of the preparations of runs: specification, secrets, container and last checkpoint."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from django.db.models import OuterRef, Subquery

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.node_isolation import hidden_from_jobs, visible_to
from scheduling.common.storages import is_mounted_by_engine, storage_rules
from scheduling.core.jobspec import (
    ArchiveSource,
    ContainerSettings,
    GitSource,
    Ipc,
    JobSpec,
    RoleSpec,
    parse_stored,
)
from scheduling.core.storages import StorageRule
from scheduling.jobs.models import CHECKPOINT, Job, JobEvent, JobSecret
from scheduling.runs.models import Attempt, Member
from scheduling.secrets import unseal
from tessera import protocol
from tessera.inventory import BY_CDI_INDEX, BY_DEVICE_REQUEST
from tessera.isolation import OWN_NETWORK, SHARED_NETWORK, VisiblePath
from tessera.storage import StorageMount, is_nfs
from workers.conf import WorkerSettings
from workers.services.environment import AttemptGang, GangMember, job_environment
from workers.services.gang_networks import DataAddress, NodeNetwork, data_addresses
from workers.transports.base import Container, LastSaved, Preparation


class NoHostNetworkError(Exception):
    """A gang of several instances needs its nodes' network, and the admin does not allow it."""

    def __str__(self) -> str:
        return (
            "a gang with several instances needs the network of its nodes, and"
            " TESSERA_HOST_NETWORK=never is set here; use 1 instance"
        )


class HostIpcError(Exception):
    """A container is to use the IPC namespace of a node that other tenants may use."""

    def __str__(self) -> str:
        return (
            "container.ipc: host needs a node that is dedicated to the tenant alone, and its node"
            " is not any more"
        )


class DeviceGoneError(Exception):
    """A device of the member has left its node since the decision."""

    def __init__(self, number: int) -> None:
        super().__init__(f"device {number} has left its node")


class StorageNotAllowedError(Exception):
    """A storage of the job was deleted, or the job may not use it any more."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"storage {name} was deleted, or this job may not use it any more; submit the job"
            " without it, or ask a cluster admin for access"
        )


class Preparations:
    """Builder of the preparations of several members, whose inputs are read in a few queries."""

    def __init__(self, members: Sequence[Member], settings: WorkerSettings) -> None:
        self._settings = settings
        attempts = {member.attempt_id: member.attempt for member in members}
        self._gangs = _gangs(attempts) if attempts else {}
        self._sealed = _sealed({a.job_id for a in attempts.values()}) if attempts else {}
        self._saved = last_saved(attempts.values())
        self._storages = {rule.name: rule for rule in storage_rules()} if members else {}
        self._gpus, self._shares = _devices({m.node_id for m in members}) if members else ({}, {})

    def of(self, member: Member) -> Preparation:
        """Return all that the node of a member needs to prepare its run.

        Raises:
            NoHostNetworkError: the gang needs its nodes' network, and jobs may not have it.
            HostIpcError: the container needs a node of one tenant.
            DeviceGoneError: the node has no longer one of the member's devices.
            StorageNotAllowedError: a storage of the job is not available to it any more.
            UnreadableSecretError: a secret cannot be decrypted.
        """
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
        container = None
        if has_container:
            settings = role.container
            if network == OWN_NETWORK:  # RDMA would bypass its rules
                settings = replace(settings, rdma=False)
            container = self._container(member, role, login, settings)
        return Preparation(
            run=self._run(member, gang, job, network, has_container=has_container),
            secrets=secrets,
            archive=self._archive(gang),
            container=container,
            last=self._last(member),
        )

    def _last(self, member: Member) -> LastSaved | None:
        """Return the checkpoint to copy to the member's node; None if it is there already."""
        last = self._saved.get(member.attempt_id)
        if self._gangs[member.attempt_id].spec.checkpoint_dir:
            return None  # all nodes have it
        return None if last is None or last.node_id == member.node_id else last

    def _has_container(self, member: Member, role: RoleSpec) -> bool:
        return role.image is not None and (
            member.node.has_docker or not self._settings.ignore_images
        )

    def _network(self, member: Member, gang: AttemptGang, *, has_container: bool) -> str:
        """Choose the network of the run; only a gang of one rank can have its own.

        Raises:
            NoHostNetworkError: the gang needs the node's network, and jobs may not use it.
        """
        if len(gang.members) > 1:
            if not self._settings.host_network:
                raise NoHostNetworkError
            return SHARED_NETWORK
        own = not has_container or bool(member.node.inventory.get("firewall"))
        return OWN_NETWORK if own else SHARED_NETWORK

    def _run(
        self, member: Member, gang: AttemptGang, job: Job, network: str, *, has_container: bool
    ) -> protocol.RunSpec:
        me = gang.members[member.node_rank]
        spec, role = gang.spec, gang.spec.roles[member.role]
        ports = [port for numbers in me.ports.values() for port in numbers]
        if me.node_rank == gang.master.node_rank and network != OWN_NETWORK:
            ports.insert(0, gang.port)
        cpus, memory = self._share(member, role)
        source = spec.source
        rules = self._rules_of(job, spec)
        checkpoints = _checkpoint_directory(spec, rules)
        return protocol.RunSpec(
            run_id=protocol.make_run_id(member.attempt.uid, member.role, member.rank),
            job_id=str(job.pk),
            job_name=job.name,
            attempt=member.attempt.uid,
            role=member.role,
            rank=member.rank,
            command=role.command,
            env=job_environment(
                gang,
                me,
                self._gpus_of(member),
                gpu_access=_gpu_access(member.node) if has_container else "",
            ),
            devices=list(member.devices),
            gpus=self._uuids_of(member),
            cpus=cpus,
            memory_bytes=memory,
            limits_enforced=_enforces_limits(member.node),
            max_duration_seconds=job.max_duration_seconds,
            grace_seconds=spec.grace_seconds,
            lease_seconds=self._settings.run_lease,
            log_cap_bytes=self._settings.log_cap_bytes,
            ports=ports,
            installation=self._settings.installation,
            checkpoint_dir=checkpoints,
            isolation=member.least_isolation,
            uid=job.tenant.uid,
            visible_paths=[
                *visible_to(member.node.visible_paths, job.tenant_id),
                *_checkpoint_paths(rules),
            ],
            hidden_paths=[
                *hidden_from_jobs(member.node.visible_paths),
                *_storages_of_others(member.node, self._storages, rules),
            ],
            network=network,
            job_network=member.node.job_network,
            disk_bytes=self._settings.disk_bytes,
            host_ipc=has_container and role.container.ipc is Ipc.HOST,
            storage=_mounts_of(spec, rules, member.node, has_container=has_container),
            source_git=protocol.GitSource(url=source.url, ref=source.ref)
            if isinstance(source, GitSource)
            else None,
            source_archive=protocol.ArchiveSource(sha256=source.digest)
            if isinstance(source, ArchiveSource)
            else None,
        )

    def _rules_of(self, job: Job, spec: JobSpec) -> dict[str, StorageRule]:
        """Return the rules of a job's storages by name.

        Raises:
            StorageNotAllowedError: one was deleted, or the job may not use it any more.
        """
        found = {}
        for name in spec.storage_names:
            rule = self._storages.get(name)
            if rule is None or not rule.serves(job.tenant_id, job.virtual_cluster_id):
                raise StorageNotAllowedError(name)
            if rule.checkpoints != (name == spec.checkpoint_dir):
                raise StorageNotAllowedError(name)
            found[name] = rule
        return found

    def _container(
        self, member: Member, role: RoleSpec, login: str, settings: ContainerSettings
    ) -> Container:
        attempt = member.attempt
        tenant = attempt.job.virtual_cluster.tenant_id
        if settings.ipc is Ipc.HOST and member.node.dedicated_to != [tenant]:
            raise HostIpcError
        labels = {
            "tessera.installation": self._settings.installation,
            "tessera.job": str(attempt.job_id),
            "tessera.attempt": str(attempt.number),
            "tessera.role": member.role,
            "tessera.rank": str(member.rank),
        }
        return Container(
            image=role.image or "",
            gpus=self._gpus_of(member),
            gpu_access=_gpu_access(member.node),
            labels=labels,
            login=login,
            tenant=f"{self._settings.installation}/{tenant}",
            local_images=self._settings.local_images,
            mirrors=self._settings.registry_mirrors,
            settings=settings,
        )

    def _archive(self, gang: AttemptGang) -> Path | None:
        source = gang.spec.source
        if not isinstance(source, ArchiveSource):
            return None
        return self._settings.archive(source.digest)

    def _gpus_of(self, member: Member) -> tuple[str, ...]:
        """Return the UUIDs of the member's GPUs, or their indices where the node has no other."""
        uuids = self._uuids_of(member)
        if uuids and _gpu_access(member.node) != BY_CDI_INDEX:
            return tuple(uuids)
        return tuple(str(gpu.driver_index) for gpu in self._own(member))

    def _uuids_of(self, member: Member) -> list[str]:
        """Return the UUIDs of the member's GPUs; empty if the node does not know all of them."""
        uuids = [gpu.uuid for gpu in self._own(member)]
        return uuids if all(uuids) else []

    def _own(self, member: Member) -> list["_Gpu"]:
        gpus, known = self._gpus.get(member.node_id, {}), self._shares.get(member.node_id, {})
        for number in member.devices:
            if number not in known:
                raise DeviceGoneError(number)
        return [gpus[number] for number in member.devices if number in gpus]

    def _share(self, member: Member, role: RoleSpec) -> tuple[float, int]:
        """Return processors and memory: the request of the role, or the share of its devices."""
        shares = self._shares.get(member.node_id, {})
        mine = [shares[index] for index in member.devices if index in shares]
        # An instance with fewer devices than it asked for has as much less of the rest.
        part = len(member.devices) / role.devices
        cpus = role.cpus * part if role.cpus is not None else sum(cpus for cpus, _ in mine)
        memory = role.memory * part if role.memory is not None else sum(size for _, size in mine)
        return float(cpus), int(memory)


def _checkpoint_directory(spec: JobSpec, rules: Mapping[str, StorageRule]) -> str:
    """Return the directory for checkpoints that all nodes share; empty for one of the node."""
    rule = rules.get(spec.checkpoint_dir)
    return spec.checkpoint_dir if rule is None else rule.source


def _mounts_of(
    spec: JobSpec, rules: Mapping[str, StorageRule], node: Node, *, has_container: bool
) -> list[StorageMount]:
    return [
        StorageMount(
            name=request.name,
            source=rule.source,
            mount=request.mount or rule.mount,
            writable=rule.writable and request.read_only is False,
            by_engine=has_container and is_mounted_by_engine(node, rule.source),
        )
        for request in spec.storage or ()
        for rule in [rules[request.name]]
    ]


def _storages_of_others(
    node: Node, storages: Mapping[str, StorageRule], rules: Mapping[str, StorageRule]
) -> list[str]:
    """Return the directories on a node of storages that a job does not use.

    A visible path of the node may contain them.
    """
    own = {rule.source for rule in rules.values()}
    others = sorted({rule.source for rule in storages.values()} - own)
    places = [
        str(node.storages.get(source, {}).get("path", "")) if is_nfs(source) else source
        for source in others
    ]
    return [place for place in places if place]


def _checkpoint_paths(rules: Mapping[str, StorageRule]) -> list[VisiblePath]:
    return [
        VisiblePath(rule.source, checkpoints=True) for rule in rules.values() if rule.checkpoints
    ]


def _gangs(attempts: Mapping[int, Attempt]) -> dict[int, AttemptGang]:
    peers: dict[int, list[GangMember]] = defaultdict(list)
    nodes: dict[int, dict[int, NodeNetwork]] = defaultdict(dict)
    places: dict[int, list[int]] = defaultdict(list)
    adapters: dict[int, Sequence[str]] = {}
    rows = (
        Member.objects.filter(attempt_id__in=list(attempts))
        .order_by("attempt_id", "node_rank")
        .values_list(
            "attempt_id", "role", "rank", "node_rank", "devices", "ports", "node_id", "node__host",
            "node__data_interface", "node__inventory__interfaces", "node__inventory__infiniband",
        )
    )  # fmt: skip
    for attempt_id, role, rank, node_rank, devices, ports, node_id, host, chosen, *found in rows:
        interfaces, infiniband = found
        places[attempt_id].append(node_id)
        adapters[node_id] = infiniband or ()
        nodes[attempt_id][node_id] = NodeNetwork(
            host=host,
            chosen=chosen,
            interfaces=tuple(
                (one["name"], one["address"], one["speed"]) for one in interfaces or ()
            ),
        )
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
    for attempt_id, members in peers.items():
        if len(nodes[attempt_id]) > 1:
            addresses = data_addresses(nodes[attempt_id])
            peers[attempt_id] = [
                _in_network(member, addresses.get(node_id), adapters[node_id])
                for member, node_id in zip(members, places[attempt_id], strict=True)
            ]
    return {pk: _gang(attempt, peers[pk]) for pk, attempt in attempts.items()}


def _in_network(
    member: GangMember, place: DataAddress | None, adapters: Sequence[str]
) -> GangMember:
    """Return a member of a gang on several nodes with its address in the network of the gang."""
    if place is None:
        return replace(member, adapters=adapters)
    return replace(
        member,
        host=place.address,
        node_host=member.host,
        interface=place.interface,
        adapters=adapters,
    )


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


class _Gpu(NamedTuple):
    """The names of a GPU for drivers: its UUID, and the index that the driver has for it now."""

    uuid: str
    driver_index: int


def _devices(
    node_ids: Collection[int],
) -> tuple[dict[int, dict[int, _Gpu]], dict[int, dict[int, tuple[float, int]]]]:
    """Return by node the names of its GPUs, and each device's share of processors and memory."""
    gpus: dict[int, dict[int, _Gpu]] = defaultdict(dict)
    shares: dict[int, dict[int, tuple[float, int]]] = defaultdict(dict)
    for device in Device.objects.filter(node_id__in=list(node_ids), retired_at=None):
        shares[device.node_id][device.index] = (device.cpus, device.memory_bytes)
        if device.is_gpu:
            index = device.index if device.driver_index is None else device.driver_index
            gpus[device.node_id][device.index] = _Gpu(device.uuid, index)
    return dict(gpus), dict(shares)


def _gpu_access(node: Node) -> str:
    """Return how the node's engine gives GPUs to containers."""
    return str(node.inventory.get("gpu_access") or BY_DEVICE_REQUEST)


def _enforces_limits(node: Node) -> bool:
    """Return whether the node enforces limits: it can, and its devices are real, not declared."""
    devices = node.inventory.get("devices", [])
    declared = bool(devices) and all(device.get("declared") for device in devices)
    return bool(node.inventory.get("cgroups")) and not declared


def last_saved(attempts: Iterable[Attempt]) -> Mapping[int, LastSaved]:
    """Return the last reported checkpoints before these attempts, by attempt.

    The first process of a gang saves, so a checkpoint is on the node of its first member.
    """
    again = {attempt.pk: attempt for attempt in attempts if attempt.number > 1}
    if not again:
        return {}
    told = JobEvent.objects.filter(
        job=OuterRef("job"), kind=CHECKPOINT, attempt__lt=OuterRef("number")
    ).order_by("-id")
    newest = dict(
        Attempt.objects.filter(pk__in=list(again))
        .annotate(told=Subquery(told.values("id")[:1]))
        .filter(told__isnull=False)
        .values_list("pk", "told")
    )
    events = JobEvent.objects.in_bulk(list(newest.values()))
    nodes = _first_nodes(events.values())
    found = {}
    for pk, event_id in newest.items():
        event = events[event_id]
        where = nodes.get((event.job_id, event.attempt))
        step, sha256 = event.detail.get("step"), event.detail.get("sha256")
        if where is None or not isinstance(step, int) or not isinstance(sha256, str):
            continue
        found[pk] = LastSaved(node_id=where[0], node=where[1], step=step, sha256=sha256)
    return found


def _first_nodes(
    events: Iterable[JobEvent],
) -> Mapping[tuple[int, int | None], tuple[int, str]]:
    """Return row and name of the first member's node, by the job and attempt of the event."""
    members = Member.objects.filter(
        node_rank=0,
        attempt__job__in={event.job_id for event in events},
        attempt__number__in={event.attempt for event in events},
    ).values_list("attempt__job_id", "attempt__number", "node_id", "node__name")
    return {(job, number): (node_id, name) for job, number, node_id, name in members}
