"""The validated job specification as value objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.jobspec.containers import NO_SETTINGS, ContainerSettings
from scheduling.core.jobspec.elastic import Elastic
from scheduling.core.jobspec.parallel import Parallel
from scheduling.core.jobspec.requirements import NO_REQUIREMENTS, Requirements
from scheduling.core.jobspec.sharing import Sharing
from scheduling.core.jobspec.watching import (
    Notify,
    idle_policy_document,
    log_metric_documents,
    log_rule_documents,
)
from scheduling.core.lifecycle import FailureClass
from scheduling.core.watching.idleness import IdlePolicy
from scheduling.core.watching.log_metrics import LogMetric
from scheduling.core.watching.log_rules import LogRuleSpec

SCHEMA_VERSION: Final = 1
REDACTED: Final = "(redacted)"
WITHOUT_LIMIT: Final = -1


class JobClass(StrEnum):
    """Whether a job runs on the guarantee of its virtual cluster or on idle devices."""

    GUARANTEED = "guaranteed"
    OPPORTUNISTIC = "opportunistic"


class Within(StrEnum):
    """The cell level that must contain all devices of one instance.

    ``RACK`` and ``POOL`` must contain all instances.
    """

    DEVICE = "device"
    PCIE = "pcie"
    NVLINK = "nvlink"
    NUMA = "numa"
    SOCKET = "socket"
    NODE = "node"
    RACK = "rack"
    POOL = "pool"

    @property
    def is_above_node(self) -> bool:
        """Whether the level contains several nodes."""
        return self in (Within.RACK, Within.POOL)


class Processes(StrEnum):
    """Processes that Tessera starts for one instance."""

    PER_INSTANCE = "per-instance"
    PER_DEVICE = "per-device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Completion rule of one role: numbers of instances that end the whole job.

    Attributes:
        min_failed: number of failed instances at which the job fails; -1 for never.
        min_succeeded: number of succeeded instances at which the job succeeds; -1 for all.
    """

    min_failed: int = 1
    min_succeeded: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """One role of the gang.

    Attributes:
        command: script for the shell of the node or image, unchanged.
        instances: number of instances of the role.
        devices: devices of each instance.
        processes: whether each instance runs its command once, or once for each device.
        device_types: accepted device types in order of preference; empty for any.
        within: cell that must contain an instance's devices.
        pinned_cell: pinned cell of the virtual cluster that contains all of them, or None.
        cpus: processors of each instance; None for the share of its devices.
        memory: bytes of each instance; None for the share of its devices.
        requires: minimum properties of its GPUs and their driver.
        image: container image; None for a plain process.
        image_secret: name in ``secrets`` of the registry's credentials; not passed to the job.
        container: settings of the container; the defaults without an image.
        env: environment variables.
        secrets: values by name; the job gets each as a file that only it can read.
        ports: number of ports of each instance, by label.
        completion: rule by which instances of the role end the job.
    """

    command: str
    instances: int = 1
    devices: int = 1
    processes: Processes = Processes.PER_INSTANCE
    device_types: tuple[str, ...] = ()
    within: Within = Within.NODE
    pinned_cell: str | None = None
    cpus: float | None = None
    memory: int | None = None
    requires: Requirements = NO_REQUIREMENTS
    image: str | None = None
    image_secret: str | None = None
    container: ContainerSettings = NO_SETTINGS
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    ports: Mapping[str, int] = field(default_factory=dict)
    completion: Completion = Completion()

    def __post_init__(self) -> None:
        for name in ("env", "secrets", "ports"):
            object.__setattr__(self, name, frozen(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """Source code that is fetched on the node.

    Attributes:
        url: ``https://``, ``ssh://`` or ``user@host:path``.
        ref: branch, tag or commit; empty for the default branch.
    """

    url: str
    ref: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSource:
    """Source code that was uploaded before: the SHA-256 of the archive, in hexadecimal."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequest:
    """A storage that the job mounts.

    Attributes:
        mount: directory in the job; empty for the default of the storage until the submit.
        read_only: None for the default of the storage until the submit.
    """

    name: str
    mount: str = ""
    read_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Maximum number of retries after failures of each class; -1 for no limit."""

    user: int = 0
    resource_limit: int = 0
    node: int = 3
    image: int = 2
    preempted: int = -1
    timeout: int = 0
    platform: int = 3

    def of(self, failure: FailureClass) -> int:
        """Return the number of retries after a failure of this class."""
        return int(getattr(self, failure.value.replace("-", "_")))

    def allows(self, failure: FailureClass, *, used: int) -> bool:
        """Return whether another attempt is allowed after ``used`` retries for the same class."""
        granted = self.of(failure)
        return granted == WITHOUT_LIMIT or used < granted


@dataclass(frozen=True, slots=True, kw_only=True)
class Compat:
    """The conventions of another system that the job's environment follows as well.

    Attributes:
        format: name of the system; ``openpai`` sets the ``PAI_*`` variables, ``slurm`` the
            ``SLURM_*`` variables.
        role_names: names in the other system of roles that had to be renamed.
    """

    format: str
    role_names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "role_names", frozen(self.role_names))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInstance:
    """Position of a job that is one instance of a job without a gang; see ``parts.split``.

    Attributes:
        rank: rank within the submitted role.
        size: number of instances of the submitted role.
        group: common identifier of all instances of one submit.
    """

    rank: int = 0
    size: int = 1
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A validated job. Create it with ``parse``, and store it with ``to_json``.

    Attributes:
        name: display name; any printable text.
        virtual_cluster: name of the virtual cluster in which it runs.
        roles: the members of the gang by role, ordered by name. Ranks count through the roles in
            this order, so that a document without order (JSON) always means an equal job.
        priority: a priority class by name or a number in 0..1000; None for the default.
        job_class: guaranteed or opportunistic.
        max_duration: time limit of an attempt in seconds; None if the job sets none.
        not_before: earliest start, UTC.
        held: whether it is on hold until a user releases it.
        after: IDs of jobs that must have succeeded first.
        retries: maximum numbers of retries by class of failure.
        grace_seconds: grace period of an eviction.
        source: code that is fetched into the working directory.
        gang: whether all members are placed together; otherwise each instance is a job.
        part: position of this instance, if it was split from a job without a gang.
        compat: conventions of another system.
        elastic: sizes at which it may run; None for the requested size only.
        parallel: hybrid parallelism of its training; None for none.
        checkpoint_dir: checkpoint directory that all nodes share, as a path or the name of a
            storage; empty for one of the node.
        storage: storages that it mounts; None until the submit adds those of the virtual cluster.
        deadline: deadline for policies that support deadlines, in UTC.
        notify: mail settings; None for the owner's settings for all jobs.
        idle_policy: action if its devices are idle; None for that of the virtual cluster.
        log_rules: actions on lines of its log, in addition to the rules for all jobs.
        sharing: guests on its devices, or its wish to be a guest; None for the defaults.
        metrics: numbers in its log.
    """

    name: str
    virtual_cluster: str
    roles: Mapping[str, RoleSpec]
    note: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: str | int | None = None
    job_class: JobClass = JobClass.GUARANTEED
    max_duration: int | None = None
    not_before: datetime | None = None
    held: bool = False
    after: tuple[int, ...] = ()
    retries: Retries = Retries()
    grace_seconds: int = 30
    source: GitSource | ArchiveSource | None = None
    gang: bool = True
    part: JobInstance | None = None
    compat: Compat | None = None
    elastic: Elastic | None = None
    parallel: Parallel | None = None
    checkpoint_dir: str = ""
    storage: tuple[StorageRequest, ...] | None = None
    deadline: datetime | None = None
    notify: Notify | None = None
    idle_policy: IdlePolicy | None = None
    log_rules: tuple[LogRuleSpec, ...] = ()
    sharing: Sharing | None = None
    metrics: tuple[LogMetric, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", frozen(self.roles))
        object.__setattr__(self, "labels", frozen(self.labels))

    @property
    def storage_names(self) -> tuple[str, ...]:
        """Names of all storages that it uses, also of that for its checkpoints."""
        named = self.checkpoint_dir and not self.checkpoint_dir.startswith("/")
        own = (self.checkpoint_dir,) if named else ()
        return tuple(sorted({request.name for request in self.storage or ()} | {*own}))

    def secrets(self) -> dict[str, dict[str, str]]:
        """Return the secrets by role and name, to be stored separately from the specification."""
        return {name: dict(role.secrets) for name, role in self.roles.items() if role.secrets}

    def with_secrets(self, secrets: Mapping[str, Mapping[str, str]]) -> "JobSpec":
        """Return the job with the values that ``secrets()`` extracted."""
        roles = {
            name: replace(role, secrets={**role.secrets, **secrets.get(name, {})})
            for name, role in self.roles.items()
        }
        return replace(self, roles=roles)

    def redacted(self) -> "JobSpec":
        """Return the job with a placeholder for the value of every secret."""
        return self.with_secrets(
            {
                name: dict.fromkeys(role.secrets, REDACTED)
                for name, role in self.roles.items()
                if role.secrets
            }
        )

    def to_json(self, *, include_secrets: bool = False) -> dict[str, Any]:
        """Build the canonical document: units resolved, defaults explicit, ``None`` omitted.

        Args:
            include_secrets: write the values of secrets; otherwise a placeholder, which ``parse``
                rejects and ``parse_stored`` accepts.
        """
        spec = self if include_secrets else self.redacted()
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "name": spec.name,
            "note": spec.note or None,
            "labels": dict(spec.labels) or None,
            "virtual_cluster": spec.virtual_cluster,
            "priority": spec.priority,
            "class": spec.job_class.value,
            "roles": {name: _role_document(role) for name, role in spec.roles.items()},
            "gang": spec.gang,
            "part": _part_document(spec.part),
            "max_duration": spec.max_duration,
            "not_before": _instant(spec.not_before),
            "held": spec.held,
            "after": list(spec.after) or None,
            "retries": {failure.value: spec.retries.of(failure) for failure in FailureClass},
            "grace_seconds": spec.grace_seconds,
            "source": _source_document(spec.source),
            "compat": _compat_document(spec.compat),
            "elastic": spec.elastic.to_json() if spec.elastic else None,
            "parallel": spec.parallel.to_json() if spec.parallel else None,
            "checkpoint_dir": spec.checkpoint_dir or None,
            "storage": _storage_document(spec.storage),
            "deadline": _instant(spec.deadline),
            "notify": spec.notify.to_json() if spec.notify else None,
            "idle_policy": idle_policy_document(spec.idle_policy) if spec.idle_policy else None,
            "log_rules": log_rule_documents(spec.log_rules),
            "sharing": spec.sharing.to_json() if spec.sharing else None,
            "metrics": log_metric_documents(spec.metrics),
        }
        return {key: value for key, value in document.items() if value is not None}


def frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a read-only copy of ``mapping``, ordered by key."""
    return MappingProxyType(dict(sorted(mapping.items())))


def _role_document(role: RoleSpec) -> dict[str, Any]:
    document = {
        "instances": role.instances,
        "devices": role.devices,
        "processes": None if role.processes is Processes.PER_INSTANCE else role.processes.value,
        "device_types": list(role.device_types) or None,
        "within": role.within.value,
        "pinned_cell": role.pinned_cell,
        "cpus": role.cpus,
        "memory": role.memory,
        "command": role.command,
        "image": role.image,
        "image_secret": role.image_secret,
        "requires": role.requires.to_json() or None,
        "container": role.container.to_json() or None,
        "env": dict(role.env) or None,
        "secrets": dict(role.secrets) or None,
        "ports": dict(role.ports) or None,
        "completion": {
            "min_failed": role.completion.min_failed,
            "min_succeeded": role.completion.min_succeeded,
        },
    }
    return {key: value for key, value in document.items() if value is not None}


def _source_document(source: GitSource | ArchiveSource | None) -> dict[str, Any] | None:
    if isinstance(source, GitSource):
        return {"git": {"url": source.url, **({"ref": source.ref} if source.ref else {})}}
    return {"archive": source.digest} if source else None


def _part_document(part: JobInstance | None) -> dict[str, Any] | None:
    if part is None:
        return None
    group = {"group": part.group} if part.group else {}
    return {"rank": part.rank, "size": part.size, **group}


def _compat_document(compat: Compat | None) -> dict[str, Any] | None:
    if compat is None:
        return None
    names = {"role_names": dict(compat.role_names)} if compat.role_names else {}
    return {"format": compat.format, **names}


def _storage_document(storage: tuple[StorageRequest, ...] | None) -> list[dict[str, Any]] | None:
    if storage is None:
        return None
    return [
        {
            "name": request.name,
            **({"mount": request.mount} if request.mount else {}),
            **({} if request.read_only is None else {"read_only": request.read_only}),
        }
        for request in storage
    ]


def _instant(moment: datetime | None) -> str | None:
    return moment.isoformat().replace("+00:00", "Z") if moment else None
