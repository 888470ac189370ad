"""Fencing of runs without a runner: kills the remaining processes of a run and records its end."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import List, Optional

from tessera import protocol
from tessera.node import (
    cgroups,
    container_files,
    container_network,
    engine,
    log_process,
    logs,
    output,
    runs,
    system,
)
from tessera.node.container_output import LAST_OUTPUT_SECONDS, REST_SECONDS
from tessera.node.directories import changed_at
from tessera.node.runs import Loss, Run
from tessera.protocol import ContainerRef, ProtocolError, RunStatus

WRITER_LOOK_SECONDS = 0.2
"""Seconds to wait for a log writer at the first check; later checks do not wait."""
WRITER_SECONDS = 5.0
CONTAINER_SECONDS = LAST_OUTPUT_SECONDS + REST_SECONDS + WRITER_SECONDS
"""Seconds to wait for a container's writer, which reads the last output from the engine."""


def settle(run: Run) -> RunStatus:
    """Return the true state of a run; one without its runner is fenced and recorded as lost.

    A run whose processes cannot be ended yet is unchanged and settled later.
    """
    status = run.recorded()
    if status.phase in (protocol.EXITED, protocol.UNKNOWN, protocol.PREPARING):
        return run.sized(status)
    if status.hostname and status.hostname != system.hostname():
        return run.sized(status)  # the home directory is shared, and the run is on another machine
    message = _why_lost(run, status)
    if message is None:
        return run.sized(status)
    return _give_up(run, message)


def _why_lost(run: Run, status: RunStatus) -> Optional[str]:
    if status.boot_id != system.boot_id():
        return runs.NODE_RESTARTED
    if status.phase == protocol.RUNNING:
        alive = status.runner_pid and system.start_ticks(status.runner_pid) == status.runner_start
        return None if alive else runs.RUNNER_GONE
    if not run.claimed() or _age(run.file(protocol.GO_FILE)) < runs.STARTING_SECONDS:
        return None
    return runs.NEVER_STARTED


def _age(path: str) -> float:
    changed = changed_at(path)
    return time.time() - changed if changed else 0.0


def _give_up(run: Run, message: str) -> RunStatus:
    """Fence the run and record its end under the runner's lock, which must be free."""
    lock = _lock(run)
    if lock is None:
        return run.status()  # its runner is running, or another server handles it
    try:
        status = run.recorded()
        if status.phase == protocol.EXITED:
            return run.status()
        loss = run.store.losses.setdefault(run.run_id, runs.Loss())
        if not _fenced(run, status, loss) or not _log_is_complete(run, status, loss):
            return run.status()  # the log writer announces its end
        if loss.is_writer_killed:
            log_process.mark_gap(run)
        run.store.losses.pop(run.run_id, None)
        _reclaim(run)
        record = runs.lost_record(message, _last_evidence(run, status, loss))
        ended = replace(status, phase=protocol.EXITED, exit=record)
        run.remove_secrets()
        run.record(replace(ended, log_end=run.status().log_end), durable=True)
        return run.status()
    finally:
        os.close(lock)


def _lock(run: Run) -> Optional[int]:
    if run.claimed():
        return runs.try_lock(run.file(protocol.GO_FILE))
    try:
        return run.claim()  # no process may start a run that is being fenced
    except (FileExistsError, ProtocolError):
        return None


def _fenced(run: Run, status: RunStatus, loss: Loss) -> bool:
    """Kill the remaining processes of a run; return True if none is left."""
    if status.boot_id != system.boot_id():
        return True
    if not _container_gone(run):
        return False
    for _ in range(20):
        left = remaining(run.run_id, status)
        if not left:
            cgroups.remove(run.run_id)
            return True
        cgroups.thaw(run.run_id)
        for pid in left:
            system.kill_quietly(pid, signal.SIGKILL)
        loss.killed_at = time.time()
        time.sleep(0.005)
    return False


def _log_is_complete(run: Run, status: RunStatus, loss: Loss) -> bool:
    """Return whether the log writer has ended; a slow one is killed.

    Runs of versions without a writer have no such file, and no process writes their logs now.
    """
    if status.boot_id != system.boot_id():
        return True
    path = run.file(protocol.WRITER_FILE)
    loss.seen_at = loss.seen_at or time.monotonic()
    waited = time.monotonic() - loss.seen_at
    most = WRITER_SECONDS if _container(run) is None else CONTAINER_SECONDS
    for _ in range(20):
        lock = runs.try_lock(path)
        if lock is not None:
            os.close(lock)
            return True
        if system.regular_size(path) is None or waited > most + WRITER_SECONDS:
            return True
        if waited > most:
            loss.is_writer_killed |= log_process.kill_writer(run)
        elif waited > WRITER_LOOK_SECONDS:
            return False
        time.sleep(0.005)
    return False


def _last_evidence(run: Run, status: RunStatus, loss: Loss) -> float:
    """End of the run, in seconds since the epoch by the node's clock.

    This is the kill of its last process, if one was left. Otherwise it is the last heartbeat of
    the runner and the writer or, without a writer, the last change of the log and the state.
    """
    if loss.killed_at is not None:
        return loss.killed_at
    signs = [changed_at(path) for _, path in logs.segments(run.file(protocol.LOG_DIR))[-1:]]
    signs.append(_container_end(run))
    writer = changed_at(run.file(protocol.WRITER_FILE))
    signs += [writer or changed_at(run.file(protocol.STATE_FILE)), status.started_at or 0.0]
    latest = time.time()
    if status.boot_id != system.boot_id():
        latest -= system.boot_clock()
    return min(max(signs), latest)


def _container_end(run: Run) -> float:
    """End of the run's container, by the engine; 0 without a container."""
    ref = _container(run)
    try:
        found = None if ref is None else engine.inspect(ref)["State"].get("FinishedAt")
    except engine.EngineError:
        return 0.0
    return float(output.seconds(str(found).encode("ascii", "replace")) or 0)


def _container(run: Run) -> Optional[ContainerRef]:
    try:
        return run.spec().container
    except ProtocolError:
        return None


def _container_gone(run: Run) -> bool:
    container = _container(run)
    if container is None:
        return True
    is_dead = engine.ensure_dead(container)
    if is_dead:
        container_network.close_network(container)
    return is_dead


def _reclaim(run: Run) -> None:
    """Take over the files of an image's own user, which the runner could not give back."""
    try:
        spec = run.spec()
    except ProtocolError:
        return
    if spec.container is not None:
        checkpoints = protocol.checkpoint_dir(os.path.realpath(run.store.root), spec)
        paths = container_files.writable(run.path, checkpoints)
        container_files.reclaim(spec.container, paths, container_files.FENCE_SECONDS)


def remaining(run_id: str, status: RunStatus) -> List[int]:
    """Return live processes of a run: of its session, its cgroup, or marked by environment."""
    marker = b"TESSERA_JOB_RUN_ID=" + run_id.encode("ascii")
    inside = cgroups.members(run_id)
    since = status.runner_start or 0
    return [
        found.pid
        for found in system.processes()
        if found.pid != os.getpid()
        and found.start >= since
        and (
            found.pid in inside
            or (status.pid is not None and found.sid == status.pid)
            or marker in system.environment_of(found.pid).split(b"\0")
        )
    ]
