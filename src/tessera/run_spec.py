"""Specification of one member of an attempt for its node, checked field by field.

Part of the bundle for nodes: Python 3.8, standard library only. ``tessera.protocol`` re-exports
all names of this module.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Dict, List, Optional, Tuple

from tessera import job_networks
from tessera.device_sharing import GuestPlace
from tessera.isolation import (
    LEVELS,
    MAX_PATH_BYTES,
    MAX_VISIBLE_PATHS,
    NETWORKS,
    NONE,
    SHARED_NETWORK,
    VisiblePath,
    path_problem,
)
from tessera.storage import MAX_STORAGES, StorageMount, nested_pairs
from tessera.wire import USER, Fields, Json, ProtocolError

# A node takes earlier versions as well: an upgrade finds their runs prepared and running.
PROTOCOL_VERSION = 3
OLDEST_VERSION = 1
# The control plane sends the newest version that node programs of the previous release understand:
# in a rolling upgrade, a host of either release may continue the run.
SENT_VERSION = 3
KNOWN_VERSIONS = f"versions {OLDEST_VERSION} to {PROTOCOL_VERSION}"
MAX_COMMAND_BYTES = 256 << 10
MAX_SECRET_BYTES = 64 << 10
MAX_UID = (1 << 32) - 2

_RUN_ID = re.compile(r"([0-9a-f]{8,64})\.([A-Za-z0-9_-]{1,63})\.(0|[1-9][0-9]{0,5})")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


def parse_run_id(run_id: object) -> Tuple[str, str, int]:
    """Split ``<attempt uid hex>.<role>.<rank>``; only such a name may become a path.

    Returns:
        Attempt, role and rank.

    Raises:
        ProtocolError: the text is not a valid run id.
    """
    found = _RUN_ID.fullmatch(run_id) if isinstance(run_id, str) else None
    if found is None:
        raise ProtocolError("bad-run-id", f"not a run id: {str(run_id)[:100]!r}")
    return found.group(1), found.group(2), int(found.group(3))


def make_run_id(attempt: str, role: str, rank: int) -> str:
    """Build the run id of one member of an attempt, checked."""
    run_id = f"{attempt}.{role}.{rank}"
    parse_run_id(run_id)
    return run_id


@dataclass(frozen=True)
class GitSource:
    """A repository to clone into the working directory.

    Attributes:
        url: ``https://`` or ``ssh://`` (or ``user@host:path``).
        ref: branch, tag or commit; empty for the default branch.
    """

    url: str
    ref: str = ""


@dataclass(frozen=True)
class ArchiveSource:
    """An uploaded tar.gz or zip, stored on the node as a blob before ``prepare``."""

    sha256: str


@dataclass(frozen=True)
class ContainerRef:
    """A created container that the runner starts and follows.

    Attributes:
        name: name of the container (the run id).
        socket: path of the engine's unix socket on the node.
        network: name of the container with the network; empty on the node's network.
        hosts: IP addresses by additional host name, for the container with the network.
        own_user: it runs as the user of its image, not as that of the run.
    """

    name: str
    socket: str
    network: str = ""
    hosts: Dict[str, str] = field(default_factory=dict)
    own_user: bool = False


@dataclass(frozen=True)
class RunSpec:
    """Specification of one member of an attempt.

    Attributes:
        run_id: ``<attempt>.<role>.<rank>``, consistent with the fields of these names.
        command: shell text; it becomes a script file that ``/bin/sh`` runs.
        processes: processes that each run the command with an own rank; 0 to run it once.
        env: added to the job's environment.
        devices: numbers of the node's devices, for display and for declared CPU slots.
        gpus: those that are GPUs, by UUID, or by the driver's index where it reports no UUIDs.
        cpus: processors, 0 for no limit.
        memory_bytes: memory, 0 for no limit.
        limits_enforced: try to limit cpus and memory by cgroups.
        max_duration_seconds: time limit, after which the job ends with cause ``timeout``.
        grace_seconds: time between SIGTERM and SIGKILL.
        lease_seconds: lifetime of the run without a renewal.
        log_cap_bytes: retained bytes of the log; the oldest segments are deleted first.
        log_segment_bytes: size of one log segment.
        log_rate_bytes: output per second beyond which output is dropped, with a marker.
        ports: must be free when the run is prepared; from an own network they are published.
        bind_host: the node's address at which ports are published; all its addresses if empty.
        workdir: directory below the working directory in which the command starts.
        checkpoint_dir: a directory shared by nodes, for the job's checkpoints; or empty.
        installation: the control plane that owns the run; others ignore it.
        isolation: the minimum level at which the job may run (``tessera.isolation.LEVELS``).
        uid: the tenant's Unix user id for level ``user``; None if the tenant has none.
        visible_paths: visible paths of the node besides the job's own directories.
        hidden_paths: directories of the node to hide if a visible path contains them.
        network: ``own`` or ``shared`` with the node.
        job_network: choice of the own network of a plain job, one of
            ``job_networks.SETTINGS``; by its file if empty.
        disk_bytes: limit of run directory and checkpoints together, 0 for no limit.
        storage: storages that the job sees at their mount points.
        host_ipc: its container has the IPC namespace and the shared memory of the node.
        beside: the places of a guest, one for each of its devices; empty for any other run.
        protocol: version that wrote the spec.
    """

    run_id: str
    job_id: str
    job_name: str
    attempt: str
    role: str
    rank: int
    command: str
    env: Dict[str, str] = field(default_factory=dict)
    devices: List[int] = field(default_factory=list)
    cpus: float = 0.0
    memory_bytes: int = 0
    limits_enforced: bool = False
    max_duration_seconds: Optional[float] = None
    grace_seconds: float = 30.0
    lease_seconds: float = 1800.0
    log_cap_bytes: int = 64 << 20
    log_segment_bytes: int = 4 << 20
    log_rate_bytes: int = 16 << 20
    ports: List[int] = field(default_factory=list)
    bind_host: str = ""
    source_git: Optional[GitSource] = None
    source_archive: Optional[ArchiveSource] = None
    container: Optional[ContainerRef] = None
    workdir: str = ""
    installation: str = ""
    checkpoint_dir: str = ""
    isolation: str = NONE
    uid: Optional[int] = None
    visible_paths: List[VisiblePath] = field(default_factory=list)
    hidden_paths: List[str] = field(default_factory=list)
    network: str = SHARED_NETWORK
    job_network: str = ""
    disk_bytes: int = 0
    gpus: List[str] = field(default_factory=list)
    storage: List[StorageMount] = field(default_factory=list)
    host_ipc: bool = False
    beside: List[GuestPlace] = field(default_factory=list)
    processes: int = 0
    protocol: int = SENT_VERSION

    def to_json(self) -> Json:
        """Return a JSON object; the two sources become one field ``source``."""
        data = asdict(self)
        data.pop("source_git")
        data.pop("source_archive")
        data["visible_paths"] = [visible.to_json() for visible in self.visible_paths]
        data["source"] = None
        for name, default in _DEFAULTS.items():
            if data[name] == default:
                del data[name]  # earlier versions reject the field
        if self.container is not None:
            for name in ("network", "hosts", "own_user"):
                if not data["container"][name]:
                    del data["container"][name]
        if self.source_git is not None:
            data["source"] = {"kind": "git", **asdict(self.source_git)}
        elif self.source_archive is not None:
            data["source"] = {"kind": "archive", **asdict(self.source_archive)}
        return data

    @classmethod
    def from_json(cls, data: object) -> RunSpec:
        """Read and check a spec.

        Raises:
            ProtocolError: a field is missing, unknown, of a wrong type or out of range.
        """
        take = Fields(data, "run")
        version = take.integer("protocol", PROTOCOL_VERSION, 0, 1 << 30)
        if not OLDEST_VERSION <= version <= PROTOCOL_VERSION:
            raise take.refuse("protocol", f"this node supports versions {KNOWN_VERSIONS}")
        git, archive = _source(take)
        spec = cls(
            run_id=take.text("run_id", None, 256),
            job_id=take.text("job_id", None, 128),
            job_name=take.text("job_name", None, 1024),
            attempt=take.text("attempt", None, 64),
            role=take.text("role", None, 63),
            rank=take.integer("rank", None, 0, 999_999),
            command=take.text("command", None, MAX_COMMAND_BYTES),
            env=take.mapping("env", _ENV_NAME, 128 << 10),
            devices=take.integers("devices", 0, 4095),
            cpus=take.number("cpus", 0.0, 0.0, 65536.0),
            memory_bytes=take.integer("memory_bytes", 0, 0, 1 << 60),
            limits_enforced=take.boolean("limits_enforced", default=False),
            max_duration_seconds=take.optional_number("max_duration_seconds", 0.0, 1e10),
            grace_seconds=take.number("grace_seconds", 30.0, 0.0, 86_400.0),
            lease_seconds=take.number("lease_seconds", 1800.0, 0.05, 1e9),
            log_cap_bytes=take.integer("log_cap_bytes", 64 << 20, 4096, 1 << 50),
            log_segment_bytes=take.integer("log_segment_bytes", 4 << 20, 1024, 1 << 40),
            log_rate_bytes=take.integer("log_rate_bytes", 16 << 20, 1024, 1 << 50),
            ports=take.integers("ports", 1, 65535),
            bind_host=take.text("bind_host", "", 255),
            source_git=git,
            source_archive=archive,
            container=_container(take),
            workdir=take.text("workdir", "", 1024),
            installation=take.text("installation", "", 64),
            checkpoint_dir=take.text("checkpoint_dir", "", 255),
            isolation=take.choice("isolation", NONE, LEVELS),
            uid=take.optional_integer("uid", 1, MAX_UID),
            visible_paths=_visible_paths(take),
            hidden_paths=paths_of(take, "hidden_paths"),
            network=take.choice("network", SHARED_NETWORK, NETWORKS),
            job_network=take.choice("job_network", "", ("", *job_networks.SETTINGS)),
            disk_bytes=take.integer("disk_bytes", 0, 0, 1 << 60),
            gpus=take.texts("gpus", 4096, 128),
            storage=_storage(take),
            host_ipc=take.boolean("host_ipc", default=False),
            beside=_beside(take),
            processes=take.integer("processes", 0, 0, 4096),
            protocol=version,
        )
        take.finish()
        return _consistent(spec, take)


# Fields added after the first release of this version, each with the default that is omitted
_DEFAULTS: Dict[str, object] = {
    "checkpoint_dir": "",
    "isolation": NONE,
    "uid": None,
    "visible_paths": [],
    "hidden_paths": [],
    "network": SHARED_NETWORK,
    "job_network": "",
    "disk_bytes": 0,
    "gpus": [],
    "storage": [],
    "host_ipc": False,
    "beside": [],
    "processes": 0,
}


def _source(take: Fields) -> Tuple[Optional[GitSource], Optional[ArchiveSource]]:
    inner = take.inner("source")
    if inner is None:
        return None, None
    kind = inner.text("kind", None, 16)
    git: Optional[GitSource] = None
    archive: Optional[ArchiveSource] = None
    if kind == "git":
        git = GitSource(url=inner.text("url", None, 2048), ref=inner.text("ref", "", 256))
    elif kind == "archive":
        archive = ArchiveSource(sha256=check_sha256(inner.text("sha256", None, 64)))
    else:
        raise inner.refuse("kind", "must be git or archive")
    inner.finish()
    return git, archive


def _visible_paths(take: Fields) -> List[VisiblePath]:
    items = take.items("visible_paths", MAX_VISIBLE_PATHS)
    found = [VisiblePath.from_json(item) for item in items]
    if len({visible.path for visible in found}) < len(found):
        raise take.refuse("visible_paths", "must contain each path at most once")
    return found


def _storage(take: Fields) -> List[StorageMount]:
    found = [StorageMount.from_json(item) for item in take.items("storage", MAX_STORAGES)]
    if any(nested_pairs(one.mount for one in found)):
        raise take.refuse("storage", "must have mount points that do not contain each other")
    return found


def _beside(take: Fields) -> List[GuestPlace]:
    found = [GuestPlace.from_json(item) for item in take.items("beside", 8)]
    for place in found:
        parse_run_id(place.holder_run_id)
    return found


def paths_of(take: Fields, name: str) -> List[str]:
    """Take a list of paths that may be shown to jobs.

    Raises:
        ProtocolError: one of them must not be shown to jobs.
    """
    found = take.texts(name, MAX_VISIBLE_PATHS, MAX_PATH_BYTES)
    for path in found:
        problem = path_problem(path)
        if problem is not None:
            raise take.refuse(name, problem)
    return found


def _container(take: Fields) -> Optional[ContainerRef]:
    inner = take.inner("container")
    if inner is None:
        return None
    name, socket = inner.text("name", None, 200), inner.text("socket", None, 1024)
    if not _CONTAINER.fullmatch(name):
        raise inner.refuse("name", "not a container name")
    if not socket.startswith("/"):
        raise inner.refuse("socket", "must be an absolute path")
    network = inner.text("network", "", 200)
    if network and not _CONTAINER.fullmatch(network):
        raise inner.refuse("network", "not a container name")
    hosts = inner.mapping("hosts", _HOST_NAME, 64)
    own_user = inner.boolean("own_user", default=False)
    inner.finish()
    return ContainerRef(name=name, socket=socket, network=network, hosts=hosts, own_user=own_user)


def _consistent(spec: RunSpec, take: Fields) -> RunSpec:
    if parse_run_id(spec.run_id) != (spec.attempt, spec.role, spec.rank):
        raise take.refuse("run_id", "must be <attempt>.<role>.<rank>")
    if spec.workdir.startswith("/") or ".." in spec.workdir.split("/"):
        raise take.refuse("workdir", "must be inside the working directory")
    shared = spec.checkpoint_dir
    if shared and (not shared.startswith("/") or ".." in shared.split("/")):
        raise take.refuse("checkpoint_dir", "must be an absolute path")
    if not spec.command.strip():
        raise take.refuse("command", "must not be empty")
    if spec.beside and sorted(place.device for place in spec.beside) != sorted(spec.devices):
        raise take.refuse("beside", "must have one place for each device")
    if spec.processes and spec.processes != len(spec.devices):
        raise take.refuse("processes", "must be the number of devices")
    if spec.log_segment_bytes * 2 > spec.log_cap_bytes:
        raise take.refuse("log_segment_bytes", "must be at most half of log_cap_bytes")
    return spec


def check_sha256(value: object) -> str:
    """Return the value if it is a SHA-256 in lower-case hexadecimal.

    Raises:
        ProtocolError: the text is not a valid SHA-256.
    """
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ProtocolError("bad-sha256", "must be 64 lower-case hexadecimal digits", USER)
    return value


def check_secrets(data: object) -> Dict[str, str]:
    """Return checked secrets by name; an error never contains a value.

    Raises:
        ProtocolError: a name is not a valid file name, or a value is not text or is too long.
    """
    return Fields({"secrets": data}, "prepare").mapping("secrets", _SECRET_NAME, MAX_SECRET_BYTES)
