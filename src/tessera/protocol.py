"""What the control plane and a node say to each other: names, limits and message shapes.

Both sides import this module, and a node may have no more than Python 3.8, so it is plain
standard library. Everything read from the other side is checked here: ``from_json`` refuses what
it does not understand with a ``ProtocolError`` that names the field.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import Dict, List, Optional, Tuple

from tessera.inventory import Device, Inventory, NodeHello
from tessera.wire import (
    FAILURES,
    IMAGE,
    MAX_LINE_BYTES,
    NODE,
    PLATFORM,
    RESOURCE_LIMIT,
    TIMEOUT,
    USER,
    Fields,
    Json,
    ProtocolError,
    decode_line,
    encode_line,
)

__all__ = (
    "BLOB",
    "BLOBS_DIR",
    "CANCEL",
    "CAUSES",
    "CAUSE_EXITED",
    "CAUSE_LEASE",
    "CAUSE_LOST",
    "CAUSE_OOM",
    "CAUSE_START",
    "CAUSE_STOPPED",
    "CAUSE_TIMEOUT",
    "COMMAND_FILE",
    "CONTAINER_BUNDLE",
    "CONTAINER_ROOT",
    "CONTROL_FILE",
    "DEVICES_FILE",
    "EVENT_GREW",
    "EVENT_RUN",
    "EXITED",
    "FAILURES",
    "GO",
    "GO_FILE",
    "HELLO",
    "IMAGE",
    "JOB_DIR",
    "LEASE_FILE",
    "LISTENS_FILE",
    "LOG_DIR",
    "MAX_COMMAND_BYTES",
    "MAX_LINE_BYTES",
    "MAX_READ_BYTES",
    "MAX_SECRET_BYTES",
    "NODE",
    "NOTIFY_DIR",
    "OPERATIONS",
    "PHASES",
    "PLATFORM",
    "PREPARE",
    "PREPARED",
    "PREPARE_LOCK_FILE",
    "PREPARING",
    "PROBE",
    "PROTOCOL_VERSION",
    "READ",
    "REMOVE",
    "RENEW",
    "REPORTS_FILE",
    "RESERVE_FILE",
    "RESOURCE_LIMIT",
    "ROOT_DIR",
    "RUNNER_LOG_FILE",
    "RUNNING",
    "RUNS",
    "RUNS_DIR",
    "SECRETS_DIR",
    "SPEC_FILE",
    "STATE_FILE",
    "STOP",
    "STOP_FILE",
    "STREAM_LOG",
    "STREAM_REPORTS",
    "TELEMETRY",
    "TIMEOUT",
    "TRASH_DIR",
    "UNKNOWN",
    "USER",
    "VERSIONS_FILE",
    "WORK_DIR",
    "ArchiveSource",
    "ContainerRef",
    "Device",
    "ExitRecord",
    "GitSource",
    "Inventory",
    "Json",
    "NodeHello",
    "ProtocolError",
    "RunSpec",
    "RunStatus",
    "check_secrets",
    "check_sha256",
    "container_mounts",
    "decode_line",
    "encode_line",
    "job_environment",
    "make_run_id",
    "parse_run_id",
)

PROTOCOL_VERSION = 1
MAX_READ_BYTES = 512 << 10
MAX_COMMAND_BYTES = 256 << 10
MAX_SECRET_BYTES = 64 << 10

# Operations
HELLO, PROBE, TELEMETRY = "hello", "probe", "telemetry"
PREPARE, GO, CANCEL, STOP, REMOVE = "prepare", "go", "cancel", "stop", "remove"
RUNS, RENEW, READ, BLOB = "runs", "renew", "read", "blob"
OPERATIONS = (
    *(HELLO, PROBE, TELEMETRY, PREPARE, GO, CANCEL, STOP, REMOVE),
    *(RUNS, RENEW, READ, BLOB),
)

# Events
EVENT_RUN, EVENT_GREW = "run", "grew"

# Streams of a run that can be read
STREAM_LOG, STREAM_REPORTS = "log", "reports"

# Phases of a run. ``unknown`` is a directory this version cannot judge.
PREPARING, PREPARED, RUNNING, EXITED = "preparing", "prepared", "running", "exited"
UNKNOWN = "unknown"
PHASES = (PREPARING, PREPARED, RUNNING, EXITED, UNKNOWN)

# Causes of an exit
CAUSE_EXITED, CAUSE_STOPPED, CAUSE_TIMEOUT = "exited", "stopped", "timeout"
CAUSE_LEASE, CAUSE_OOM, CAUSE_LOST = "lease-expired", "oom", "runner-lost"
CAUSE_START = "start-failed"
CAUSES = (
    *(CAUSE_EXITED, CAUSE_STOPPED, CAUSE_TIMEOUT),
    *(CAUSE_LEASE, CAUSE_OOM, CAUSE_LOST, CAUSE_START),
)

# Directories and files below the root ``~/.tessera``
ROOT_DIR = ".tessera"
RUNS_DIR, BLOBS_DIR, NOTIFY_DIR, TRASH_DIR = "runs", "blobs", "notify", "trash"
DEVICES_FILE = "devices.json"

# Files of a run directory
SPEC_FILE, STATE_FILE, RESERVE_FILE = "spec.json", "state.json", "state.reserve"
GO_FILE, STOP_FILE, LEASE_FILE = "go", "stop.json", "lease"
PREPARE_LOCK_FILE, RUNNER_LOG_FILE = "prepare.lock", "runner.log"
VERSIONS_FILE = "versions"
LOG_DIR, SECRETS_DIR, WORK_DIR, JOB_DIR = "log", "secrets", "work", "job"
REPORTS_FILE = "job/reports.jsonl"
CONTROL_FILE = "job/control.json"
LISTENS_FILE = "job/listens"
COMMAND_FILE = "job/command.sh"

# Where a container finds what a plain process finds in its run directory
CONTAINER_ROOT = "/tessera"
CONTAINER_BUNDLE = "/tessera/node.pyz"

_RUN_ID = re.compile(r"([0-9a-f]{8,64})\.([A-Za-z0-9_-]{1,63})\.(0|[1-9][0-9]{0,5})")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


def parse_run_id(run_id: object) -> Tuple[str, str, int]:
    """Split ``<attempt uid hex>.<role>.<rank>``; only such a name may become a path.

    Returns:
        Attempt, role and rank.

    Raises:
        ProtocolError: it is not such a name.
    """
    found = _RUN_ID.fullmatch(run_id) if isinstance(run_id, str) else None
    if found is None:
        raise ProtocolError("bad-run-id", f"not a run id: {str(run_id)[:100]!r}")
    return found.group(1), found.group(2), int(found.group(3))


def make_run_id(attempt: str, role: str, rank: int) -> str:
    """The run id of one member of an attempt, checked."""
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
    """

    name: str
    socket: str


@dataclass(frozen=True)
class RunSpec:
    """One member of an attempt, as the node needs to know it.

    Attributes:
        run_id: ``<attempt>.<role>.<rank>``, consistent with the three fields of that name.
        command: shell text; it becomes a script file that ``/bin/sh`` runs.
        env: added to the job's environment.
        devices: indices of the node's devices.
        cpus: processors, 0 for no limit.
        memory_bytes: memory, 0 for no limit.
        limits_enforced: try to hold the job to cpus and memory by cgroups.
        max_duration_seconds: running time after which the job is ended with cause ``timeout``.
        grace_seconds: between SIGTERM and SIGKILL.
        lease_seconds: how long the run goes on without a renewal.
        log_cap_bytes: how much of the log is kept; the oldest segments go first.
        log_segment_bytes: size of one log segment.
        log_rate_bytes: output per second beyond which output is dropped, with a marker.
        ports: must be free on ``bind_host`` when the run is prepared.
        workdir: directory below the working directory in which the command starts.
        installation: the control plane that owns the run; others leave it alone.
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
    protocol: int = PROTOCOL_VERSION

    def to_json(self) -> Json:
        """A JSON object; the two sources become one field ``source``."""
        data = asdict(self)
        data.pop("source_git")
        data.pop("source_archive")
        data["source"] = None
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
        if version != PROTOCOL_VERSION:
            raise take.refuse("protocol", f"this node speaks version {PROTOCOL_VERSION}")
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
        )
        take.finish()
        return _consistent(spec, take)


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


def _container(take: Fields) -> Optional[ContainerRef]:
    inner = take.inner("container")
    if inner is None:
        return None
    name, socket = inner.text("name", None, 200), inner.text("socket", None, 1024)
    if not _CONTAINER.fullmatch(name):
        raise inner.refuse("name", "not a container name")
    if not socket.startswith("/"):
        raise inner.refuse("socket", "must be an absolute path")
    inner.finish()
    return ContainerRef(name=name, socket=socket)


def _consistent(spec: RunSpec, take: Fields) -> RunSpec:
    if parse_run_id(spec.run_id) != (spec.attempt, spec.role, spec.rank):
        raise take.refuse("run_id", "must be <attempt>.<role>.<rank>")
    if spec.workdir.startswith("/") or ".." in spec.workdir.split("/"):
        raise take.refuse("workdir", "must stay below the working directory")
    if not spec.command.strip():
        raise take.refuse("command", "must not be empty")
    if spec.log_segment_bytes * 2 > spec.log_cap_bytes:
        raise take.refuse("log_segment_bytes", "must be at most half of log_cap_bytes")
    return spec


def check_sha256(value: object) -> str:
    """The value, if it is a SHA-256 in lower-case hexadecimal.

    Raises:
        ProtocolError: it is not.
    """
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ProtocolError("bad-sha256", "must be 64 lower-case hexadecimal digits", USER)
    return value


def check_secrets(data: object) -> Dict[str, str]:
    """Secrets by name, checked; an error never holds a value.

    Raises:
        ProtocolError: a name may not be a file name, or a value is no text or too long.
    """
    return Fields({"secrets": data}, "prepare").mapping("secrets", _SECRET_NAME, MAX_SECRET_BYTES)


@dataclass(frozen=True)
class ExitRecord:
    """How a run ended.

    Attributes:
        cause: one of ``CAUSES``.
        failure: one of ``FAILURES``; empty when nobody failed (code 0, or stopped on request).
        code: exit code of the job's main process, None when a signal ended it.
        signal: number of that signal.
        at: seconds since the epoch, node's clock.
        message: a sentence for people.
    """

    cause: str
    failure: str
    at: float
    code: Optional[int] = None
    signal: Optional[int] = None
    message: str = ""

    @classmethod
    def from_json(cls, data: object) -> ExitRecord:
        """Read an exit record; unknown fields are ignored."""
        take = Fields(data, "exit")
        return cls(
            cause=take.choice("cause", None, CAUSES),
            failure=take.choice("failure", "", ("", *FAILURES)),
            at=take.number("at", 0.0, 0.0, 1e12),
            code=take.optional_integer("code", -(1 << 31), 1 << 32),
            signal=take.optional_integer("signal", 1, 128),
            message=take.text("message", "", 4000),
        )


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        protocol: version that wrote the run directory.
        runner_pid, runner_start: the runner and its start time in clock ticks since boot.
        pid, pgid, pid_start: the job's main process likewise (a container's: pid in the node).
        boot_id, hostname: where it was prepared; another boot id means that nothing of it runs.
        started_at: seconds since the epoch.
        notice: why the job was asked to end (a stop's reason, ``timeout``, ``lease-expired``).
        warnings: codes, for instance ``limits-not-enforced``.
        log_end, reports_end: logical sizes of the two streams.
        installation: as the spec names it.
    """

    run_id: str
    phase: str
    protocol: int = PROTOCOL_VERSION
    runner_pid: Optional[int] = None
    runner_start: Optional[int] = None
    pid: Optional[int] = None
    pgid: Optional[int] = None
    pid_start: Optional[int] = None
    boot_id: str = ""
    hostname: str = ""
    started_at: Optional[float] = None
    notice: str = ""
    exit: Optional[ExitRecord] = None
    log_end: int = 0
    reports_end: int = 0
    warnings: List[str] = field(default_factory=list)
    installation: str = ""

    def to_json(self) -> Json:
        """A JSON object; made for every news of every run, so nothing is copied deeply."""
        data = dict(vars(self))
        data["exit"] = None if self.exit is None else dict(vars(self.exit))
        return data

    @classmethod
    def from_json(cls, data: object) -> RunStatus:
        """Read a status, also one written by another version: unknown fields are ignored.

        Raises:
            ProtocolError: a field is of a wrong type or out of range.
        """
        take = Fields(data, "status")
        run_id = take.text("run_id", None, 256)
        parse_run_id(run_id)
        record = take.raw("exit")
        return cls(
            run_id=run_id,
            phase=take.choice("phase", None, PHASES),
            protocol=take.integer("protocol", 0, 0, 1 << 30),
            runner_pid=take.optional_integer("runner_pid", 1, 1 << 31),
            runner_start=take.optional_integer("runner_start", 0, 1 << 62),
            pid=take.optional_integer("pid", 1, 1 << 31),
            pgid=take.optional_integer("pgid", 1, 1 << 31),
            pid_start=take.optional_integer("pid_start", 0, 1 << 62),
            boot_id=take.text("boot_id", "", 128),
            hostname=take.text("hostname", "", 255),
            started_at=take.optional_number("started_at", 0.0, 1e12),
            notice=take.text("notice", "", 200),
            exit=None if record is None else ExitRecord.from_json(record),
            log_end=take.integer("log_end", 0, 0, 1 << 62),
            reports_end=take.integer("reports_end", 0, 0, 1 << 62),
            warnings=take.texts("warnings", 100, 200),
            installation=take.text("installation", "", 64),
        )


def job_environment(spec: RunSpec, root: str, bundle: str) -> Dict[str, str]:
    """What a job finds in its environment beyond what the node grants everybody.

    Args:
        spec: the run.
        root: the run directory as the job sees it (``CONTAINER_ROOT`` in a container).
        bundle: the zipapp as the job sees it, so that ``import tessera.train`` works.
    """
    python_path = spec.env.get("PYTHONPATH", "")
    return {
        **spec.env,
        "TESSERA_JOB_ID": spec.job_id,
        "TESSERA_JOB_NAME": spec.job_name,
        "TESSERA_JOB_ATTEMPT": spec.attempt,
        "TESSERA_JOB_ROLE": spec.role,
        "TESSERA_JOB_RANK": str(spec.rank),
        "TESSERA_JOB_RUN_ID": spec.run_id,
        "TESSERA_JOB_RUN_DIR": root,
        "TESSERA_JOB_SECRETS_DIR": f"{root}/{SECRETS_DIR}",
        "TESSERA_JOB_REPORTS": f"{root}/{REPORTS_FILE}",
        "TESSERA_JOB_CONTROL": f"{root}/{CONTROL_FILE}",
        "PYTHONPATH": os.pathsep.join(filter(None, (python_path, bundle))),
    }


def container_mounts(run_dir: str, bundle: str) -> List[Tuple[str, str, bool]]:
    """What of a run directory a container gets: (path on the node, path inside, read-only)."""
    return [
        (f"{run_dir}/{WORK_DIR}", f"{CONTAINER_ROOT}/{WORK_DIR}", False),
        (f"{run_dir}/{JOB_DIR}", f"{CONTAINER_ROOT}/{JOB_DIR}", False),
        (f"{run_dir}/{SECRETS_DIR}", f"{CONTAINER_ROOT}/{SECRETS_DIR}", True),
        (bundle, CONTAINER_BUNDLE, True),
    ]
