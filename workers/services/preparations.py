"""Inputs of the preparations of runs: specification, secrets, container and last checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scheduling.clusters.models import Node
from scheduling.clusters.queries.node_isolation import hidden_from_jobs, visible_to
from scheduling.clusters.services.registry_logins import registry_of, sealed_logins
from scheduling.common.storages import is_mounted_by_engine, storage_rules
from scheduling.core.jobspec import (
    ArchiveSource,
    ContainerSettings,
    GitSource,
    Ipc,
    JobSpec,
    Processes,
    RoleSpec,
    demand,
)
from scheduling.core.storages import StorageRule
from scheduling.jobs.models import Job
from scheduling.jobs.services.archives import archive_name
from scheduling.runs.models import Member
from scheduling.secrets import unseal
from tessera import protocol
from tessera.device_sharing import SLOT
from tessera.hardware import ASCEND, vendor_of
from tessera.inventory import BY_CDI_INDEX, BY_DEVICE_REQUEST
from tessera.isolation import OWN_NETWORK, SHARED_NETWORK, VisiblePath
from tessera.storage import StorageMount, is_nfs
from workers.conf import WorkerSettings
from workers.services.device_orders import guest_places
from workers.services.environment import AttemptGang, GangMember, job_environment
from workers.services.preparation_inputs import (
    GpuNames,
    last_saved,
    read_devices,
    read_gangs,
    read_sealed_secrets,
)
from workers.transports.base import Container, LastSaved, Preparation


class NoHostNetworkError(Exception):
    """A gang of several instances needs its nodes' network, and the admin does not allow it."""

    def __str__(self) -> str:
        return (
            "a gang with several instances needs the network of its nodes, and"
            " TESSERA_HOST_NETWORK=never is set here; use 1 instance"
        )


class HostIpcError(Exception):
    """A container requests the IPC namespace of a node that other tenants may use."""

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
        self._gangs = read_gangs(attempts) if attempts else {}
        self._sealed = (
            read_sealed_secrets({a.job_id for a in attempts.values()}) if attempts else {}
        )
        images = {a.job.tenant_id for a in attempts.values() if _has_image(self._gangs[a.pk].spec)}
        self._logins = sealed_logins(images) if images else {}
        self._saved = last_saved(attempts.values())
        self._storages = {rule.name: rule for rule in storage_rules()} if members else {}
        self._places = guest_places(members)
        self._gpus, self._shares = (
            read_devices({m.node_id for m in members}) if members else ({}, {})
        )

    def of(self, member: Member) -> Preparation:
        """Return the inputs with which the node of a member prepares its run.

        Raises:
            NoHostNetworkError: the gang needs its nodes' network, and jobs may not have it.
            HostIpcError: the container needs a node of one tenant.
            DeviceGoneError: the node does not have one of the member's devices any more.
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
        login = (
            secrets.pop(role.image_secret, "") if role.image_secret else self._login_of(job, role)
        )
        container = None
        if has_container:
            settings = role.container
            if network == OWN_NETWORK:  # RDMA would bypass the firewall rules
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
            return None  # a shared directory: no transfer is needed
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
        cpus, memory = self._share(member, role, spec)
        places = self._places.get(member.pk, [])
        if any(place.mode == SLOT for place in places):  # a CPU slot uses memory of the node
            memory = sum(place.most for place in places)
        rules = self._rules_of(job, spec)
        return protocol.RunSpec(
            run_id=protocol.make_run_id(member.attempt.uid, member.role, member.rank),
            job_id=str(job.pk),
            job_name=job.name,
            attempt=member.attempt.uid,
            role=member.role,
            rank=member.rank,
            command=role.command,
            processes=me.processes if role.processes is Processes.PER_DEVICE else 0,
            env=job_environment(
                gang,
                me,
                self._gpus_of(member),
                gpu_access=_gpu_access(member.node) if has_container else "",
                vendor=_vendor(member.node),
            ),
            devices=list(member.devices),
            gpus=list(self._names_of(member)),
            cpus=cpus,
            memory_bytes=memory,
            limits_enforced=_enforces_limits(member.node),
            max_duration_seconds=job.max_duration_seconds,
            grace_seconds=spec.grace_seconds,
            lease_seconds=self._settings.run_lease,
            log_cap_bytes=self._settings.log_cap_bytes,
            ports=_ports_of(me, gang, network),
            installation=self._settings.installation,
            checkpoint_dir=_checkpoint_directory(spec, rules),
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
            beside=places,
            storage=_mounts_of(spec, rules, member.node, has_container=has_container),
            source_git=_git_source(spec),
            source_archive=_archive_source(spec),
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

    def _login_of(self, job: Job, role: RoleSpec) -> str:
        """Return the login of the job's tenant at the registry of its image; empty if none.

        Raises:
            UnreadableSecretError: its password cannot be decrypted.
        """
        host, _ = registry_of(role.image or "")
        username, sealed = self._logins.get((job.tenant_id, host), ("", b""))
        return f"{username}:{unseal(sealed)}" if sealed else ""

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
        return self._settings.storage.local_path(archive_name(source.digest))

    def _gpus_of(self, member: Member) -> tuple[str, ...]:
        """Return the names of the member's GPUs for its engine, or for a plain process."""
        # Ascend's library reads only indices.
        if _gpu_access(member.node) == BY_CDI_INDEX or _vendor(member.node) == ASCEND:
            return tuple(str(gpu.driver_index) for gpu in self._own(member))
        return self._names_of(member)

    def _names_of(self, member: Member) -> tuple[str, ...]:
        """Return the UUIDs of the member's GPUs, or indices if the node does not know them all."""
        own = self._own(member)
        has_uuids = all(gpu.uuid for gpu in own)
        return tuple(gpu.uuid if has_uuids else str(gpu.driver_index) for gpu in own)

    def _own(self, member: Member) -> list[GpuNames]:
        gpus, known = self._gpus.get(member.node_id, {}), self._shares.get(member.node_id, {})
        for number in member.devices:
            if number not in known:
                raise DeviceGoneError(number)
        return [gpus[number] for number in member.devices if number in gpus]

    def _share(self, member: Member, role: RoleSpec, spec: JobSpec) -> tuple[float, int]:
        """Return CPUs and memory: as requested by the role, or the share of its devices.

        An instance shares the CPUs and the memory of its devices with its companions.
        """
        if not role.devices:
            return float(role.cpus or 0.0), int(role.memory or 0)
        companions = demand(spec).companion_load(member.node_rank)
        shares = self._shares.get(member.node_id, {})
        mine = [shares[index] for index in member.devices if index in shares]
        # An instance with fewer devices than requested gets CPUs and memory in proportion.
        part = len(member.devices) / role.devices
        cpus = role.cpus * part if role.cpus is not None else _rest(mine, 0, companions[0])
        memory = role.memory * part if role.memory is not None else _rest(mine, 1, companions[1])
        return float(cpus), int(memory)


def _rest(shares: Sequence[tuple[float, int]], kind: int, companions: float) -> float:
    """Return the CPUs or memory of the devices minus those of companions; 0 if not declared."""
    return max(sum(share[kind] for share in shares) - companions, 0)


def _has_image(spec: JobSpec) -> bool:
    return any(role.image for role in spec.roles.values())


def _ports_of(me: GangMember, gang: AttemptGang, network: str) -> list[int]:
    """Return the ports of a member; the master also gets that of the gang, in a shared network."""
    ports = [port for numbers in me.ports.values() for port in numbers]
    if me.node_rank == gang.master.node_rank and network != OWN_NETWORK:
        ports.insert(0, gang.port)
    return ports


def _git_source(spec: JobSpec) -> protocol.GitSource | None:
    source = spec.source
    if not isinstance(source, GitSource):
        return None
    return protocol.GitSource(url=source.url, ref=source.ref)


def _archive_source(spec: JobSpec) -> protocol.ArchiveSource | None:
    source = spec.source
    return (
        protocol.ArchiveSource(sha256=source.digest) if isinstance(source, ArchiveSource) else None
    )


def _checkpoint_directory(spec: JobSpec, rules: Mapping[str, StorageRule]) -> str:
    """Return the shared directory for checkpoints; empty if they are stored on the node."""
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


def _gpu_access(node: Node) -> str:
    """Return the method by which the node's engine gives GPUs to containers."""
    return str(node.inventory.get("gpu_access") or BY_DEVICE_REQUEST)


def _vendor(node: Node) -> str:
    """Return the vendor of the node's GPUs."""
    return vendor_of(str(node.inventory.get("reader") or ""))


def _enforces_limits(node: Node) -> bool:
    """Return whether the node enforces limits: it has control groups and real devices."""
    devices = node.inventory.get("devices", [])
    declared = bool(devices) and all(device.get("declared") for device in devices)
    return bool(node.inventory.get("cgroups")) and not declared
