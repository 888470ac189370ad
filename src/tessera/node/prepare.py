"""Preparation of a run: a directory with all inputs of the job, created once if repeated.

The directory is prepared when its state file has that status. Preparation holds a lock; a
directory that is neither prepared nor locked was interrupted and is prepared again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
from typing import Dict, Optional, Tuple

from tessera import protocol
from tessera.node import (
    container_network,
    removal,
    runs,
    secret_files,
    source,
    state,
    system,
    version1,
)
from tessera.node.container_network import NoNetworkError
from tessera.node.engine import EngineError
from tessera.node.runs import Run, Store
from tessera.protocol import ProtocolError, RunSpec, RunStatus

UNDO_SECONDS = 30.0
_START_RANKS = f"""\
# Starts {protocol.RANK_FILE}, the command of the job, once for each device.
if ! command -v python3 >/dev/null 2>&1; then
  echo "processes: per-device needs python3 3.8 or newer; there is none in PATH" >&2
  exit 127
fi
exec python3 -m tessera.train.launch --each /bin/sh "$TESSERA_JOB_RUN_DIR/{protocol.RANK_FILE}"
"""


def prepare(
    store: Store, spec: RunSpec, secrets: Dict[str, str], version: Optional[str] = None
) -> RunStatus:
    """Create the run directory of ``spec``; idempotent for the same spec.

    Args:
        store: the node's runs.
        spec: the run.
        secrets: values of secrets by name.
        version: version of the code that the run will depend on, if any.

    Raises:
        ProtocolError: another spec has this run id, a port is taken, the source cannot be
            fetched, or the disk is full. The directory is removed in this case.
    """
    run = store.run(spec.run_id)
    lock, is_new = _locked(run)
    try:
        if not is_new and _wait_for_version1(run):
            return _same(run, spec)
        try:
            if not is_new:
                _clear(run)
            state.note_owner(lock, os.getpid())
            status = _fill(run, spec, secrets)
            text = json.dumps(spec.to_json()).encode("ascii")
            state.begin(lock, runs.status_text(status), text, [version] if version else [])
        except OSError as error:
            _undo(run)
            raise runs.disk_error(error) from None
        except BaseException:
            _undo(run)
            raise
        return status
    finally:
        os.close(lock)


def _locked(run: Run) -> Tuple[int, bool]:
    """Create the directory and take the lock on its state; waits for another holder.

    Returns:
        The locked descriptor, and whether this is the first call.
    """
    path = run.file(protocol.STATE_FILE)
    while True:
        try:
            is_new = _made(run.path)
            flags = os.O_RDWR | os.O_CREAT | system.SAFE_OPEN
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            continue  # another process discarded the run between the two calls
        except OSError as error:
            raise runs.disk_error(error) from None
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_still(path, descriptor):
            return descriptor, is_new and os.fstat(descriptor).st_size == 0
        os.close(descriptor)


def _made(path: str) -> bool:
    """Create a directory; False if it exists."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    return True


def _is_still(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _wait_for_version1(run: Run) -> bool:
    """Return whether the run is prepared already; waits for a preparation by version 1."""
    lock_file = version1.lock_file(run.path)
    if os.path.lexists(lock_file):
        descriptor = system.open_regular(lock_file, write=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.close(descriptor)
        if version1.is_here(run.path):
            system.remove_quietly(run.file(protocol.STATE_FILE))
    return run.recorded().phase != protocol.PREPARING


def _same(run: Run, spec: RunSpec) -> RunStatus:
    found = run.stored_spec() or {}
    if {**found, "protocol": spec.protocol} != spec.to_json():
        raise ProtocolError(
            "spec-differs", f"run {run.run_id} was prepared with a different specification"
        )
    return run.status()


def _clear(run: Run) -> None:
    """Remove an interrupted preparation except the state, which is locked."""
    for name in os.listdir(run.path):
        path = run.file(name)
        if os.path.isdir(path) and not os.path.islink(path):
            run.store.throw_away(path, f"{run.run_id}.{name}")
        elif name != protocol.STATE_FILE:
            system.remove_quietly(path)


def _undo(run: Run) -> None:
    try:
        run.discard()
    except OSError:
        removal.remove_tree(run.path, UNDO_SECONDS)


def _fill(run: Run, spec: RunSpec, secrets: Dict[str, str]) -> RunStatus:
    """Write all files of the run; the log's directory comes with the first output."""
    for name in (protocol.WORK_DIR, protocol.JOB_DIR, protocol.HOME_DIR):
        os.mkdir(run.file(name), 0o700)
    script = spec.command.encode("utf-8") + b"\n"
    if spec.processes:
        system.write_new(run.file(protocol.RANK_FILE), script)
        script = _START_RANKS.encode("ascii")
    system.write_new(run.file(protocol.COMMAND_FILE), script)
    secret_files.write(run, secrets)
    check_ports(spec)
    _make_network(spec)
    source.fetch(spec, run.file(protocol.WORK_DIR), run.store.blobs)
    if spec.workdir:
        _check_workdir(run, spec)
    return RunStatus(
        run_id=run.run_id,
        phase=protocol.PREPARED,
        boot_id=system.boot_id(),
        hostname=system.hostname(),
        installation=spec.installation,
    )


def _make_network(spec: RunSpec) -> None:
    """Create the holder of the container's own network, if the run has one."""
    if spec.container is None or not spec.container.network:
        return
    try:
        container_network.create(spec.container, spec.ports)
    except (NoNetworkError, EngineError) as error:
        raise ProtocolError("no-own-network", str(error), protocol.NODE) from None


def _check_workdir(run: Run, spec: RunSpec) -> None:
    work = os.path.realpath(run.file(protocol.WORK_DIR))
    path = os.path.realpath(os.path.join(work, spec.workdir))
    if os.path.commonpath([work, path]) != work or not os.path.isdir(path):
        message = f"the source has no directory {spec.workdir!r}"
        raise ProtocolError("no-workdir", message, protocol.USER)


def check_ports(spec: RunSpec) -> None:
    """Check that the ports of the run are free.

    Raises:
        ProtocolError: one is in use, or the address is not this node's.
    """
    for port in spec.ports:
        try:
            _bind(spec.bind_host, port)
        except OSError as error:
            code = "port-in-use" if error.errno == errno.EADDRINUSE else "port-not-usable"
            message = f"port {port} on {spec.bind_host or 'all addresses'}: {error.strerror}"
            raise ProtocolError(code, message, protocol.NODE) from None


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
    except OSError:
        family, host = socket.AF_INET, ""  # a host name: resolving it could block
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def cancel(run: Run) -> None:
    """Remove a run that was not started; it cannot start afterwards.

    Raises:
        ProtocolError: the run was started.
    """
    status = run.recorded()
    if status.phase == protocol.PREPARING:
        _interrupt(run)
    elif status.phase == protocol.PREPARED:
        try:
            os.close(run.claim(runs.CANCELLED))
        except FileExistsError:
            if not run.cancelled() and run.exists():  # else another cancel removed the run
                raise _already_started(run) from None
    else:
        raise _already_started(run)
    try:
        run.discard()
    except FileNotFoundError:
        pass  # another server has discarded the run
    except OSError as error:
        raise runs.disk_error(error) from None


def _already_started(run: Run) -> ProtocolError:
    return ProtocolError("already-started", f"run {run.run_id} was started: stop it")


def _interrupt(run: Run) -> None:
    """End the preparation of the run, if its lock is held."""
    path = run.file(protocol.STATE_FILE)
    for lock_file, owner in (
        (path, state.owner(path)),
        (version1.lock_file(run.path), version1.owner(run.path)),
    ):
        if not os.path.lexists(lock_file):
            continue
        lock = runs.try_lock(lock_file)
        if lock is not None:
            os.close(lock)
        elif owner is not None and owner != os.getpid():
            system.kill_quietly(-owner, signal.SIGKILL)
