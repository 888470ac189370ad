"""First phase of a start: a run directory with all a job needs, made once however often asked.

The directory counts as prepared when its state file says so. Whoever prepares it holds a lock; a
directory that is neither prepared nor locked was left half-made and is made again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
from typing import Dict, Optional

from tessera import protocol
from tessera.node import runs, source, system
from tessera.node.runs import Run, Store
from tessera.protocol import ProtocolError, RunSpec, RunStatus


def prepare(store: Store, spec: RunSpec, secrets: Dict[str, str]) -> RunStatus:
    """Make the run directory of ``spec``; a second call with the same spec changes nothing.

    Raises:
        ProtocolError: another spec has this run id, a port is taken, the source cannot be
            fetched, or the disk is full. Nothing is left behind then.
    """
    run = store.run(spec.run_id)
    lock = _locked(run)
    try:
        if os.path.lexists(run.file(protocol.STATE_FILE)):
            return _same(run, spec)
        try:
            _fill(run, spec, secrets)
        except OSError as error:
            _undo(run)
            raise runs.disk_error(error) from None
        except BaseException:
            _undo(run)
            raise
        return run.status()
    finally:
        os.close(lock)


def _locked(run: Run) -> int:
    """Make the directory and take its lock, waiting for whoever has it."""
    while True:
        try:
            os.makedirs(run.path, mode=0o700, exist_ok=True)
            path = run.file(protocol.PREPARE_LOCK_FILE)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            continue  # discarded between the two calls
        except OSError as error:
            raise runs.disk_error(error) from None
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_still(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
            return descriptor
        os.close(descriptor)


def _is_still(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _same(run: Run, spec: RunSpec) -> RunStatus:
    found = system.read_json(run.file(protocol.SPEC_FILE))
    if found != spec.to_json():
        raise ProtocolError("spec-differs", f"run {run.run_id} was prepared with another spec")
    return run.status()


def _undo(run: Run) -> None:
    try:
        run.discard()
    except OSError:
        shutil.rmtree(run.path, ignore_errors=True)


def _fill(run: Run, spec: RunSpec, secrets: Dict[str, str]) -> None:
    for name in (protocol.LOG_DIR, protocol.SECRETS_DIR, protocol.WORK_DIR, protocol.JOB_DIR):
        if os.path.lexists(run.file(name)):  # left half-made
            shutil.rmtree(run.file(name))
        os.mkdir(run.file(name), 0o700)
    for name in (protocol.SPEC_FILE, protocol.RESERVE_FILE, protocol.LEASE_FILE):
        system.remove_quietly(run.file(name))
    system.write_new(run.file(protocol.SPEC_FILE), json.dumps(spec.to_json()).encode("ascii"))
    system.write_new(run.file(protocol.RESERVE_FILE), b" " * runs.RESERVE_BYTES)
    system.write_new(run.file(protocol.LEASE_FILE), runs.lease_text(0.0))
    script = spec.command.encode("utf-8") + b"\n"
    system.write_new(run.file(protocol.COMMAND_FILE), script)
    for name, value in secrets.items():
        path = os.path.join(run.file(protocol.SECRETS_DIR), name)
        system.write_new(path, value.encode("utf-8"))
    check_ports(spec)
    source.fetch(spec, run.file(protocol.WORK_DIR), run.store.blobs)
    _check_workdir(run, spec)
    status = RunStatus(
        run_id=run.run_id,
        phase=protocol.PREPARED,
        boot_id=system.boot_id(),
        hostname=system.hostname(),
        installation=spec.installation,
    )
    run.record(status)


def _check_workdir(run: Run, spec: RunSpec) -> None:
    work = os.path.realpath(run.file(protocol.WORK_DIR))
    path = os.path.realpath(os.path.join(work, spec.workdir))
    if os.path.commonpath([work, path]) != work or not os.path.isdir(path):
        message = f"the source has no directory {spec.workdir!r}"
        raise ProtocolError("no-workdir", message, protocol.USER)


def check_ports(spec: RunSpec) -> None:
    """See that nobody listens on the ports of the run.

    Raises:
        ProtocolError: somebody does, or the address is not this node's.
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
        family, host = socket.AF_INET, ""  # a name: looking it up could block
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def cancel(run: Run) -> None:
    """Remove a run that was not started; afterwards nobody can start it.

    Raises:
        ProtocolError: it was started.
    """
    status = run.recorded()
    if status.phase == protocol.PREPARING:
        _interrupt(run)
    elif status.phase == protocol.PREPARED:
        try:
            os.close(run.claim(runs.CANCELLED))
        except FileExistsError:
            if not run.cancelled():
                raise _already_started(run) from None
    else:
        raise _already_started(run)
    try:
        run.discard()
    except FileNotFoundError:
        pass  # another server was quicker
    except OSError as error:
        raise runs.disk_error(error) from None


def _already_started(run: Run) -> ProtocolError:
    return ProtocolError("already-started", f"run {run.run_id} was started: stop it")


def _interrupt(run: Run) -> None:
    """End whoever is preparing the run, if the lock says that somebody is."""
    path = run.file(protocol.PREPARE_LOCK_FILE)
    lock = runs.try_lock(path)
    if lock is not None:
        os.close(lock)
        return
    pid = _owner(path)
    if pid is not None and pid != os.getpid():
        system.kill_quietly(-pid, signal.SIGKILL)


def _owner(path: str) -> Optional[int]:
    text = system.read_text(path).strip()
    return int(text) if text.isdigit() and int(text) > 1 else None
