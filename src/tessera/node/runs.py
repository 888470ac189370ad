"""Run directories: the only storage of the state of all runs on this node.

A run starts at most once because its ``go`` file is created with ``O_EXCL``. The process that
starts or supervises it holds a lock on that file for life, so a free lock proves that no such
process exists, even after kills, and no pid has to be trusted for it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import traceback
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Tuple

from tessera import protocol
from tessera.node import logs, removal, state, system, version1
from tessera.node.directories import SECRETS_SECONDS, Directories
from tessera.protocol import ExitRecord, Json, ProtocolError, RunSpec, RunStatus

STARTED, CANCELLED = b"started\n", b"cancelled\n"
DECIDING_SECONDS = 0.25
STARTING_SECONDS = 2.0
SLOT_MARGIN, CUT_TEXT = 64, 500
NEVER_STARTED = "the run's starter ended before the job was running"
RUNNER_GONE = "the runner ended without an exit record"
NODE_RESTARTED = "the node was restarted"


def disk_error(error: OSError) -> ProtocolError:
    """Convert an operating system's error to an error of the protocol."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = "disk-full" if full else "os-error"
    return ProtocolError(code, f"{error.strerror or error}", protocol.NODE)


def try_lock(path: str) -> Optional[int]:
    """Lock an existing file; None if it is missing or locked by another process."""
    try:
        descriptor = system.open_regular(path, write=True)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Loss:
    """A run without a runner, before its end is recorded.

    Attributes:
        seen_at: first time without processes, by the monotonic clock; None before.
        killed_at: kill of its last process, seconds since the epoch; None if none ran.
        is_writer_killed: whether its log writer was killed, and with it the rest of the log.
    """

    def __init__(self) -> None:
        self.seen_at: Optional[float] = None
        self.killed_at: Optional[float] = None
        self.is_writer_killed = False


class Run:
    """One run directory.

    Attributes:
        run_id: checked ID of the run.
        path: the directory.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        protocol.parse_run_id(run_id)
        self.store = store
        self.run_id = run_id
        self.path = os.path.join(store.runs, run_id)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def unknown(self) -> ProtocolError:
        """Build the error for a run that does not exist."""
        return ProtocolError("unknown-run", f"no run {self.run_id} on this node")

    def spec(self) -> RunSpec:
        """Return the spec as it was prepared.

        Raises:
            ProtocolError: the spec is missing, or this version cannot read it.
        """
        found = self.stored_spec()
        if found is None:
            raise self.unknown()
        return RunSpec.from_json(found)

    def stored_spec(self) -> Optional[Json]:
        """Return the spec unchecked; None if it cannot be read."""
        return state.load_spec(self.file(protocol.STATE_FILE)) or version1.load_spec(self.path)

    # -- state -----------------------------------------------------------------------------------

    def recorded(self) -> RunStatus:
        """Return the status in the state file, without the sizes of the streams.

        Raises:
            ProtocolError: the run does not exist.
        """
        loaded = state.load(self.file(protocol.STATE_FILE))
        found = loaded.found or version1.load(self.path)
        if found is not None:
            try:
                status = RunStatus.from_json(found)
            except ProtocolError:
                return self._unreadable(found)
            return status if status.run_id == self.run_id else self._unreadable(found)
        if not self.exists():
            raise self.unknown()
        if loaded.written or version1.is_here(self.path):
            return self._unreadable({})
        return RunStatus(run_id=self.run_id, phase=protocol.PREPARING)

    def _unreadable(self, found: Json) -> RunStatus:
        version = found.get("protocol")
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            version = 0
        return RunStatus(run_id=self.run_id, phase=protocol.UNKNOWN, protocol=version)

    def status(self) -> RunStatus:
        """Return the status in the state file, with the sizes of the streams."""
        return self.sized(self.recorded())

    def sized(self, status: RunStatus) -> RunStatus:
        """Add the sizes of the streams to a recorded status; after the end no log grows."""
        log_end = status.log_end if status.phase == protocol.EXITED else 0
        log_end = log_end or logs.log_end(self.file(protocol.LOG_DIR))
        return replace(status, log_end=log_end, reports_end=self.reports_end())

    def record(self, status: RunStatus, *, durable: bool = False) -> None:
        """Write the state; this also works on a full disk."""
        content = status_text(status)
        path = self.file(protocol.STATE_FILE)
        if state.write(path, content, durable=durable):
            return
        if version1.is_here(self.path):
            version1.write(self.path, content, durable=durable)
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | system.SAFE_OPEN, 0o600)
        try:
            state.begin(descriptor, content, b"", [])
        finally:
            os.close(descriptor)

    # -- the code that it depends on -------------------------------------------------------------

    def versions(self) -> List[str]:
        """Return the versions of the code that the run depends on."""
        return state.versions(self.file(protocol.STATE_FILE)) or version1.versions(self.path)

    def note_version(self, version: str) -> None:
        if version1.is_here(self.path):
            version1.note_version(self.path, version)
        else:
            state.note_version(self.file(protocol.STATE_FILE), version)

    # -- streams ---------------------------------------------------------------------------------

    def reports_end(self) -> int:
        """Return the logical size of the stored reports; of old runs, the job file's size."""
        if self.stores_reports():
            return logs.log_end(self.file(protocol.REPORTS_DIR))
        return system.regular_size(self.file(protocol.REPORTS_FILE)) or 0

    def stores_reports(self) -> bool:
        """Return whether the log writer stores the reports; older versions read the job's file."""
        return os.path.isdir(self.file(protocol.REPORTS_DIR))

    def read(self, stream: str, offset: int, limit: int) -> Tuple[int, bytes, int]:
        """Read from a stream: the offset of the bytes, the bytes, and the stream's size."""
        if stream == protocol.STREAM_LOG or self.stores_reports():
            is_log = stream == protocol.STREAM_LOG
            directory = self.file(protocol.LOG_DIR if is_log else protocol.REPORTS_DIR)
            start, content = logs.read_log(directory, offset, limit)
            return start, content, max(logs.log_end(directory), start + len(content))
        content = self._read_reports(offset, limit)
        return offset, content, max(self.reports_end(), offset + len(content) if content else 0)

    def _read_reports(self, offset: int, limit: int) -> bytes:
        try:
            descriptor = system.open_regular(self.file(protocol.REPORTS_FILE), any_owner=True)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)

    # -- going and stopping ----------------------------------------------------------------------

    def claim(self, content: bytes = STARTED, *, seen: Optional[RunStatus] = None) -> int:
        """Claim the start of the run, which is possible once.

        Args:
            content: purpose of the claim.
            seen: the status just read; it is read again after the claim.

        Returns:
            The locked descriptor of the ``go`` file; the lock lives as long as any copy of it.

        Raises:
            FileExistsError: the start is claimed already.
            ProtocolError: the run is not prepared.
        """
        status = seen or self.recorded()
        if status.phase != protocol.PREPARED:
            raise ProtocolError("not-prepared", f"the run is {status.phase}")
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | system.SAFE_OPEN
        try:
            descriptor = os.open(self.file(protocol.GO_FILE), flags, 0o600)
        except FileNotFoundError:
            raise self.unknown() from None  # discarded meanwhile
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if the job locked it
            still = self.recorded().phase == protocol.PREPARED
            system.write_all(descriptor, content)
        except BaseException:
            system.remove_quietly(self.file(protocol.GO_FILE))  # the start was not decided
            os.close(descriptor)
            raise
        if not still:
            os.close(descriptor)
            raise ProtocolError("not-prepared", "the run was cancelled before it started")
        return descriptor

    def claimed(self) -> bool:
        """Return whether the start of the run is claimed."""
        return os.path.lexists(self.file(protocol.GO_FILE))

    def cancelled(self) -> bool:
        """Return whether the run was cancelled before it could start.

        If a claim was created but not written, the call waits for at most ``DECIDING_SECONDS``:
        the process that claims holds the lock on a regular file.
        """
        path = self.file(protocol.GO_FILE)
        deadline = time.monotonic() + DECIDING_SECONDS
        while True:
            undecided = system.regular_size(path) == 0  # before the read: a size seen after it
            content = system.read_file(path, len(CANCELLED))  # may be of a later write
            if content or not undecided or time.monotonic() > deadline:
                return content == CANCELLED
            time.sleep(0.001)

    def request_stop(self, grace_seconds: float, reason: str) -> None:
        """Store a stop request and wake the runner, which also checks every second."""
        order = {"grace_seconds": grace_seconds, "reason": reason}
        system.replace_file(self.file(protocol.STOP_FILE), json.dumps(order).encode("ascii"))

    def tune(self, settings: Dict[str, Any]) -> None:
        """Write the training settings to the file that the job reads."""
        content = json.dumps(settings, separators=(",", ":")).encode("ascii")
        system.replace_file(self.file(protocol.BATCH_FILE), content, mode=0o644)

    def renew(self, seconds: float) -> float:
        """Move the lease's deadline; returns it on the boot clock.

        The file is overwritten in place, in one short write: so this works on a full disk.
        """
        deadline = system.boot_clock() + seconds
        if version1.is_here(self.path):
            version1.renew(self.path, deadline)
        elif not state.renew(self.file(protocol.STATE_FILE), deadline):
            raise FileNotFoundError(errno.ENOENT, "the run has no state yet")
        return deadline

    def lease_deadline(self) -> Optional[float]:
        """Return the lease's deadline on the boot clock; None when it cannot be read."""
        if version1.is_here(self.path):
            return version1.lease(self.path)
        return state.lease(self.file(protocol.STATE_FILE))

    def remove_secrets(self) -> None:
        """Delete the secrets, which are unused after the end."""
        path = self.file(protocol.SECRETS_DIR)
        if os.path.islink(path):
            system.remove_quietly(path)
        elif os.path.lexists(path):
            removal.remove_tree(path, SECRETS_SECONDS)
        place = self.secrets_in_memory()
        if self.store.owns_secrets_in_memory() and os.path.isdir(place):
            removal.remove_tree(place, SECRETS_SECONDS)
            try:
                os.rmdir(os.path.dirname(place))
            except OSError:
                pass  # other runs have secrets in the directory

    def secrets_in_memory(self) -> str:
        """Return the path of the secrets if the node has a file system in memory."""
        return os.path.join(self.store.secrets_in_memory(), self.run_id)

    def discard(self) -> None:
        """Move the directory to the trash at once; the trash is emptied later."""
        self.store.throw_away(self.path, self.run_id)
        if self.store.owns_secrets_in_memory():
            removal.remove_tree(self.secrets_in_memory(), SECRETS_SECONDS)


class Store(Directories):
    """All run directories below one root.

    Attributes:
        losses: observations by run ID of this process on runs without a runner.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.losses: Dict[str, Loss] = {}

    def run(self, run_id: str) -> Run:
        """Return the run of that name, which may not exist.

        Raises:
            ProtocolError: not a valid run id.
        """
        return Run(self, run_id)

    def names(self) -> List[str]:
        """Return the sorted IDs of all runs, without other names."""
        found = []
        for name in os.listdir(self.runs):
            try:
                protocol.parse_run_id(name)
            except ProtocolError:
                continue
            found.append(name)
        return sorted(found)

    def all_runs(self) -> Iterator[Run]:
        for name in self.names():
            yield self.run(name)


def status_text(status: RunStatus) -> bytes:
    """Format a status for storage; content beyond its slot in the file is cut."""
    content = json.dumps(status.to_json()).encode("ascii")
    if len(content) <= state.SLOT_BYTES - SLOT_MARGIN:
        return content
    for length, warnings in ((CUT_TEXT, 8), (CUT_TEXT // 10, 0)):
        record = status.exit
        if record is not None:
            record = replace(record, message=record.message[:length])
        told = [text[:40] for text in status.warnings[:warnings]]
        cut = replace(status, exit=record, warnings=told, notice=status.notice[:length])
        content = json.dumps(cut.to_json()).encode("ascii")
        if len(content) <= state.SLOT_BYTES - SLOT_MARGIN:
            break
    return content


def lost_record(message: str, at: float) -> ExitRecord:
    """Build the exit record of a run whose end was not seen; ``at`` is its last evidence."""
    return ExitRecord(cause=protocol.CAUSE_LOST, failure=protocol.NODE, at=at, message=message)


def note_error(run: Run) -> None:
    """Write the current exception into the run directory, for debugging."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.SAFE_OPEN
    try:
        descriptor = os.open(run.file(protocol.RUNNER_LOG_FILE), flags, 0o600)
        try:
            system.write_all(descriptor, traceback.format_exc().encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
    except OSError:
        pass  # the disk is full, which may be the error to note
