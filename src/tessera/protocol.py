"""The protocol between control plane and node: names, limits and message shapes.

Both sides import this module, and a node may have only Python 3.8, so it uses only the
standard library. Everything read from the other side is checked here: ``from_json`` refuses
unknown input with a ``ProtocolError`` that names the field.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from tessera.device_sharing import MPS
from tessera.inventory import Device, Interface, Inventory, NodeHello
from tessera.isolation import LEVELS, NETWORKS, NONE, SHARED_NETWORK, IsolationProbe, VisiblePath
from tessera.run_spec import (
    KNOWN_VERSIONS,
    MAX_COMMAND_BYTES,
    MAX_SECRET_BYTES,
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    SENT_VERSION,
    ArchiveSource,
    ContainerRef,
    GitSource,
    RunSpec,
    check_secrets,
    check_sha256,
    make_run_id,
    parse_run_id,
)
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
    "BATCH_FILE",
    "BLOB",
    "BLOBS_DIR",
    "CANCEL",
    "CAUSES",
    "CAUSE_DEVICE",
    "CAUSE_DISK",
    "CAUSE_EXITED",
    "CAUSE_LEASE",
    "CAUSE_LOST",
    "CAUSE_OOM",
    "CAUSE_START",
    "CAUSE_STOPPED",
    "CAUSE_TIMEOUT",
    "CHECKPOINTS_DIR",
    "COMMAND_FILE",
    "CONTAINER_ACCOUNT",
    "CONTAINER_BUNDLE",
    "CONTAINER_CHECKPOINTS",
    "CONTAINER_HOME",
    "CONTAINER_ROOT",
    "CONTROL_FILE",
    "DEVICES_FILE",
    "ENGINE_SOCKET_OPEN",
    "EVENT_GREW",
    "EVENT_RUN",
    "EXITED",
    "FAILURES",
    "GO",
    "GO_FILE",
    "HELLO",
    "HOME_DIR",
    "IMAGE",
    "JOB_BOUND_FILE",
    "JOB_DIR",
    "KNOWN_VERSIONS",
    "LISTENS_FILE",
    "LOG_DIR",
    "MAX_COMMAND_BYTES",
    "MAX_LINE_BYTES",
    "MAX_READ_BYTES",
    "MAX_SECRET_BYTES",
    "NODE",
    "NOTIFY_DIR",
    "OLDEST_VERSION",
    "OPERATIONS",
    "PHASES",
    "PHASE_FILE",
    "PLATFORM",
    "PREPARE",
    "PREPARED",
    "PREPARING",
    "PROBE",
    "PROTOCOL_VERSION",
    "PUT_SAVED",
    "RANK_FILE",
    "READ",
    "READ_SAVED",
    "REMOVE",
    "RENEW",
    "REPORTS_DIR",
    "REPORTS_FILE",
    "REPORTS_SOCKET",
    "REPORTS_TOKEN",
    "RESOURCE_LIMIT",
    "ROOT_DIR",
    "RUNNER_LOG_FILE",
    "RUNNING",
    "RUNS",
    "RUNS_DIR",
    "SAVED",
    "SECRETS_DIR",
    "SENT_VERSION",
    "SHARE",
    "SHARED_FILE",
    "STATE_FILE",
    "STOP",
    "STOP_FILE",
    "STREAM_LOG",
    "STREAM_REPORTS",
    "TELEMETRY",
    "TIMEOUT",
    "TRASH_DIR",
    "TUNE",
    "UNKNOWN",
    "USER",
    "WORK_DIR",
    "WRITER_FILE",
    "ArchiveSource",
    "ContainerRef",
    "Device",
    "ExitRecord",
    "GitSource",
    "Interface",
    "Inventory",
    "IsolationProbe",
    "Json",
    "NodeHello",
    "ProtocolError",
    "RunSpec",
    "RunStatus",
    "VisiblePath",
    "check_secrets",
    "check_sha256",
    "checkpoint_dir",
    "checkpoints_in",
    "checkpoints_of",
    "container_mounts",
    "decode_line",
    "encode_line",
    "job_environment",
    "make_run_id",
    "parse_run_id",
)

MAX_READ_BYTES = 512 << 10

# Operations
HELLO, PROBE, TELEMETRY = "hello", "probe", "telemetry"
STORAGES = "storages"
PREPARE, GO, CANCEL, STOP, REMOVE = "prepare", "go", "cancel", "stop", "remove"
RUNS, RENEW, READ, BLOB, TUNE = "runs", "renew", "read", "blob", "tune"
SHARE = "share"
SAVED, READ_SAVED, PUT_SAVED = "saved", "read-saved", "put-saved"
OPERATIONS = (
    *(HELLO, PROBE, TELEMETRY, PREPARE, GO, CANCEL, STOP, REMOVE),
    *(RUNS, RENEW, READ, BLOB, TUNE, SHARE),
    *(SAVED, READ_SAVED, PUT_SAVED, STORAGES),
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
CAUSE_START, CAUSE_DISK = "start-failed", "disk-limit"
CAUSE_DEVICE = "left-device"
CAUSES = (
    *(CAUSE_EXITED, CAUSE_STOPPED, CAUSE_TIMEOUT),
    *(CAUSE_LEASE, CAUSE_OOM, CAUSE_LOST, CAUSE_START, CAUSE_DISK, CAUSE_DEVICE),
)

# A warning of an inventory: the node's user may open the socket of an engine that runs as root, so
# a process of that user outside a sandbox can become root
ENGINE_SOCKET_OPEN = "engine-socket-open"

# Directories and files below the root ``~/.tessera``
ROOT_DIR = ".tessera"
RUNS_DIR, BLOBS_DIR, NOTIFY_DIR, TRASH_DIR = "runs", "blobs", "notify", "trash"
CHECKPOINTS_DIR = "checkpoints"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DEVICES_FILE = "devices.json"

# Files of a run directory
STATE_FILE, RUNNER_LOG_FILE, WRITER_FILE = "state", "runner.log", "writer"
GO_FILE, STOP_FILE = "go", "stop.json"
LOG_DIR, SECRETS_DIR, WORK_DIR, JOB_DIR, HOME_DIR = "log", "secrets", "work", "job", "home"
REPORTS_DIR = "reports"
REPORTS_FILE = "job/reports.jsonl"
REPORTS_SOCKET = "job/reports.sock"
REPORTS_TOKEN = "secrets/.reports-token"  # noqa: S105 - no name of a user's secret begins with a dot
CONTROL_FILE = "job/control.json"
BATCH_FILE = "job/batch.json"
LISTENS_FILE = "job/listens"
COMMAND_FILE = "job/command.sh"
RANK_FILE = "job/rank.sh"
"""The command of the user, where the command file starts it several times."""
PHASE_FILE, SHARED_FILE = "job/phase", "job/shared"
JOB_BOUND_FILE = "job/bound.json"

# Paths in a container for the files of a plain process's run directory
CONTAINER_ROOT = "/tessera"
CONTAINER_CHECKPOINTS = f"{CONTAINER_ROOT}/{CHECKPOINTS_DIR}"
CONTAINER_BUNDLE = "/tessera/node.pyz"
CONTAINER_HOME = f"{CONTAINER_ROOT}/{HOME_DIR}"
CONTAINER_ACCOUNT = "job"
"""Name of the job's user in a container, as in the sandbox of a plain job."""


@dataclass(frozen=True)
class ExitRecord:
    """The end of a run.

    Attributes:
        cause: one of ``CAUSES``.
        failure: one of ``FAILURES``; empty without a failure (code 0, or stopped on request).
        code: exit code of the job's main process, None after a signal.
        signal: number of that signal.
        at: seconds since the epoch, node's clock.
        message: text for people.
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
    """The status of a run.

    Attributes:
        protocol: version that wrote the run directory.
        runner_pid, runner_start: the runner and its start time in clock ticks since boot.
        pid, pgid, pid_start: the job's main process likewise (a container's: pid in the node).
        boot_id, hostname: node of its preparation; with another boot ID its processes are gone.
        started_at: seconds since the epoch.
        notice: reason of the notice (a stop's reason, ``timeout``, ``lease-expired``).
        warnings: codes, for instance ``limits-not-enforced``.
        log_end, reports_end: logical sizes of the two streams.
        installation: ID of the installation, from the spec.
        isolation: the level at which it runs; ``none`` before it runs.
        network: ``own`` or ``shared`` with the node.
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
    isolation: str = NONE
    network: str = SHARED_NETWORK

    def to_json(self) -> Json:
        """Return a JSON object without a deep copy, since every event of every run creates one."""
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
            isolation=take.choice("isolation", NONE, LEVELS),
            network=take.choice("network", SHARED_NETWORK, NETWORKS),
        )


def checkpoint_dir(node_root: str, spec: RunSpec) -> str:
    """Return the path of a job's checkpoints on a node, equal for all its attempts.

    Args:
        node_root: the node's directory ``~/.tessera``.
        spec: a run of the job.
    """
    if spec.checkpoint_dir:
        return checkpoints_in(spec.checkpoint_dir, spec.installation, spec.job_id)
    return checkpoints_of(node_root, spec.installation, spec.job_id)


def checkpoints_in(top: str, installation: str, job_id: str) -> str:
    """Return a job's own directory in a directory for many jobs."""
    plain = (
        name if _PLAIN_NAME.fullmatch(name) else hashlib.sha256(name.encode("utf-8")).hexdigest()
        for name in (installation or "local", job_id)
    )
    return "/".join((top, *plain))


def checkpoints_of(node_root: str, installation: str, job_id: str) -> str:
    """Return the job's own checkpoint directory without a directory shared between nodes."""
    return checkpoints_in(f"{node_root}/{CHECKPOINTS_DIR}", installation, job_id)


def job_environment(spec: RunSpec, root: str, bundle: str, checkpoints: str) -> Dict[str, str]:
    """Return a job's environment variables in addition to those of the node for all jobs.

    Args:
        spec: the run.
        root: the run directory as the job sees it (``CONTAINER_ROOT`` in a container).
        bundle: the zipapp as the job sees it, so that ``import tessera.train`` works.
        checkpoints: the job's directory for them as the job sees it; it may have to create it.
    """
    python_path = spec.env.get("PYTHONPATH", "")
    shared = {"TESSERA_JOB_PHASE": f"{root}/{PHASE_FILE}"} if spec.devices else {}
    for place in spec.beside:
        shared["TESSERA_JOB_BOUND"] = f"{root}/{JOB_BOUND_FILE}"
        if place.mode == MPS:  # MPS enforces a memory limit on the only device of the job
            shared["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={2 * place.floor >> 20}M"
            shared["CUDA_MPS_CLIENT_PRIORITY"] = "1"
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
        "TESSERA_JOB_BATCH": f"{root}/{BATCH_FILE}",
        "TESSERA_JOB_CHECKPOINT_DIR": checkpoints,
        **shared,
        "PYTHONPATH": os.pathsep.join(filter(None, (python_path, bundle))),
    }


def container_mounts(run_dir: str, bundle: str, checkpoints: str) -> List[Tuple[str, str, bool]]:
    """Return a container's mounts of run and job: (path on the node, path inside, read-only)."""
    return [
        (f"{run_dir}/{WORK_DIR}", f"{CONTAINER_ROOT}/{WORK_DIR}", False),
        (f"{run_dir}/{JOB_DIR}", f"{CONTAINER_ROOT}/{JOB_DIR}", False),
        (f"{run_dir}/{HOME_DIR}", CONTAINER_HOME, False),
        (f"{run_dir}/{SECRETS_DIR}", f"{CONTAINER_ROOT}/{SECRETS_DIR}", True),
        (checkpoints, CONTAINER_CHECKPOINTS, False),
        (bundle, CONTAINER_BUNDLE, True),
    ]
