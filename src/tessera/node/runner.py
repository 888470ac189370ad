"""Supervision of a run: starts job and log writer, ends the job on request, records its end.

A runner is forked out of the session and outlives it (see ``pool``). It does not depend on other
processes: requests (stop, lease) and state are files. At its end, no process of the job is left.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import signal
import time
from dataclasses import replace
from typing import Callable, Optional

from tessera import protocol
from tessera.device_sharing import SLOT
from tessera.node import confinement, container_files, disk, logs, runs, secret_files, system
from tessera.node.container import ContainerPayload
from tessera.node.course import Course, age_of_end, failure_of
from tessera.node.log_process import LogProcess, Partner
from tessera.node.payload import Ended, Payload, ProcessPayload, StartError
from tessera.node.runs import Run
from tessera.node.sharing.coordination import Coordinator
from tessera.node.sharing.obedience import GuestWatch, Leave
from tessera.node.sharing.requests import device_dirs
from tessera.node.tracking.endpoint import Endpoint
from tessera.protocol import ExitRecord, Json, RunSpec, RunStatus

LOOK_SECONDS = 1.0
FROZEN_SECONDS = 3.0
"""Seconds without a check after which a runner counts as suspended: it checks every
``LOOK_SECONDS``."""


class Wakes:
    """A pipe that is readable after a signal to this process."""

    def __init__(self) -> None:
        self.descriptor, self._writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writer, False)

    def catch(self, told_to_end: Callable[[int, object], None]) -> None:
        """Handle the signals of a runner; SIGTERM and SIGUSR2 call the function."""
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, told_to_end)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())

    def ignore(self) -> None:
        """Handle the signals of a process without a run."""
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a late signal for the previous run
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def drain(self) -> None:
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            pass


class DeviceShare:
    """The run's part in the sharing of its devices: it coordinates guests, or it is one.

    Args:
        payload: its processes, which have started.
    """

    def __init__(self, run: Run, spec: RunSpec, payload: Payload) -> None:
        self._run, self._payload = run, payload
        self._coordinator: Optional[Coordinator] = None
        if spec.devices:
            self._coordinator = Coordinator(
                run, spec, lambda frozen: payload.freeze(frozen=frozen)
            )
        directories = device_dirs(run.store.root, spec)
        self._watch: Optional[GuestWatch] = None
        for place in spec.beside[:1]:  # a guest uses exactly one device
            self._watch = GuestWatch(
                run, place, directories[place.device], lambda frozen: payload.freeze(frozen=frozen)
            )
            if place.mode == SLOT:
                payload.demote(is_guest=True)

    @property
    def is_guest(self) -> bool:
        """Whether another run holds the device."""
        return self._watch is not None

    def look(self, now: float, *, is_leaving: bool) -> Optional[Leave]:
        """Act as coordinator or guest; returns why a guest has to leave, if it has to."""
        watch = self._watch
        if watch is not None:
            leave = watch.look(now, is_leaving=is_leaving)
            if not watch.is_lifted:
                return leave
            self._payload.demote(is_guest=False)
            self._watch = None
        if self._coordinator is not None:
            self._coordinator.look(now, is_leaving=is_leaving)
        return None

    def next_at(self, now: float) -> float:
        """Return the time of the next look; infinity if nothing is shared."""
        if self._watch is not None:
            return self._watch.next_at(now)
        return math.inf if self._coordinator is None else self._coordinator.next_at(now)

    def thaw(self) -> None:
        """Let a frozen run receive a signal."""
        if self._watch is not None:
            self._watch.thaw()
        if self._coordinator is not None:
            self._coordinator.thaw()

    def close(self) -> None:
        """End the coordination, and thaw the remaining processes of a guest."""
        self.thaw()
        if self._coordinator is not None:
            self._coordinator.close()


class Runner:
    """Supervises one run, from claimed to exited.

    Attributes:
        is_reusable: whether this process can run another job after the end.
    """

    def __init__(
        self, run: Run, running: int, bundle: str, partner: Partner, wakes: Wakes
    ) -> None:
        self.is_reusable = False
        self._run = run
        self._running = running
        self._bundle = bundle
        self._partner, self._wakes = partner, wakes
        self._course = Course()
        self._lease = math.inf
        self._told_by_signal = ""
        self._stop_seen = (0, 0)
        self._started = math.inf
        self._looked = math.inf, 0.0

    def supervise(self) -> None:
        """Run the job and record its end; returns when no process of it is left."""
        run, spec = self._run, self._run.spec()
        self._log = LogProcess(run, spec, self._partner)
        self._log.start()
        self._wakes.catch(self._told_to_end)
        payload = self._payload(spec)
        directories = disk.directories_of(run, spec)
        first = system.boot_clock() + disk.FIRST_SECONDS
        self._meter = disk.Meter(directories, spec.disk_bytes, payload.size_of, first)
        status = replace(
            run.recorded(),
            phase=protocol.RUNNING,
            runner_pid=os.getpid(),
            runner_start=system.start_ticks(os.getpid()),
            started_at=time.time(),
        )
        try:
            self._lease = system.boot_clock() + spec.lease_seconds
            secret_files.check(run)
            self._reserve_log()
            started = payload.start()
            if spec.container is None:
                self._log.close_input()
        except (StartError, OSError) as error:
            failure = error.failure if isinstance(error, StartError) else protocol.NODE
            record = ExitRecord(protocol.CAUSE_START, failure, time.time(), message=str(error))
            if payload.endpoint is not None:
                payload.endpoint.close()
            self._finish(status, record, payload)
            return
        self._started = system.boot_clock()
        status = replace(
            status,
            started_at=time.time(),  # the job runs from now on; its sandbox is not charged
            pid=started.pid,
            pgid=started.pgid,
            pid_start=started.start,
            isolation=payload.isolation,
            network=payload.network,
            warnings=list(payload.warnings),
        )
        self._share = DeviceShare(run, spec, payload)
        self._share.look(self._started, is_leaving=False)  # a guest starts frozen
        self._record_running(status)
        ended = self._wait(spec, payload, status)
        self._share.close()
        if payload.endpoint is not None:
            payload.endpoint.close()
        record = self._record_of(ended)
        is_recorded = self._finish(replace(status, notice=self._course.notice), record, payload)
        is_usual = spec.container is None and not confinement.is_helped(payload.isolation)
        self.is_reusable = is_recorded and is_usual and self._log.is_reusable

    def _payload(self, spec: RunSpec) -> Payload:
        if spec.container is not None:
            checkpoints = protocol.checkpoint_dir(os.path.realpath(self._run.store.root), spec)
            writable = container_files.writable(self._run.path, checkpoints)
            return ContainerPayload(
                spec.container,
                self._log,
                spec.ports,
                writable,
                tracking=Endpoint(self._run, spec),
                script=self._run.file(protocol.COMMAND_FILE),
            )
        return ProcessPayload(self._run, spec, self._log.input, self._bundle)

    def _reserve_log(self) -> None:
        """Reserve space for the log, so that it can report output lost on a full disk."""
        try:
            logs.reserve(self._run.file(protocol.LOG_DIR))
        except OSError as error:
            raise StartError("the disk is full: it has no room for the log") from error

    def _told_to_end(self, number: int, _frame: object) -> None:
        self._told_by_signal = "node-shutdown" if number == signal.SIGTERM else "stop"

    def _record_running(self, status: RunStatus) -> None:
        try:
            self._run.record(status)
        except OSError:
            runs.note_error(self._run)  # the job runs, and its end is recorded later
        os.close(self._running)
        system.notify(self._run.store.root, self._run.run_id)

    # -- running job ---------------------------------------------------------------------------

    def _wait(self, spec: RunSpec, payload: Payload, status: RunStatus) -> Ended:
        if spec.max_duration_seconds is not None:
            self._course = Course(timeout_at=system.boot_clock() + spec.max_duration_seconds)
        while True:
            ended = payload.ended()
            if ended is not None:
                return ended
            now = system.boot_clock()
            self._take_orders(now, spec, status)
            leave = self._share.look(now, is_leaving=bool(self._course.cause))
            if leave is not None and not self._course.cause:
                cause = protocol.CAUSE_DEVICE
                self._order(now, status, cause, leave.reason, leave.seconds)
            number = self._course.due(now)
            if number is not None:
                self._share.thaw()
                payload.signal(number)
            self._log.look()
            self._looked = now, time.time()
            self._sleep(payload, now)

    def _sleep(self, payload: Payload, now: float) -> None:
        until = min(self._course.next_at(), now + LOOK_SECONDS, self._share.next_at(now))
        if not self._course.cause:
            until = min(until, max(self._lease, now))
        poll, endpoint = select.poll(), payload.endpoint
        if endpoint is not None:
            endpoint.register(poll)
            until = min(until, endpoint.next_at(now))
        poll.register(self._wakes.descriptor, select.POLLIN)
        for descriptor in (*payload.descriptors(), self._log.descriptor()):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        ready = [one for one, _ in poll.poll(max(0.0, until - now) * 1000 + 0.5)]
        if endpoint is not None:
            endpoint.serve(ready)
        for descriptor in ready:
            if descriptor == self._wakes.descriptor:
                self._wakes.drain()
            elif descriptor != self._log.descriptor():
                payload.readable(descriptor)

    def _take_orders(self, now: float, spec: RunSpec, status: RunStatus) -> None:
        order = self._new_stop_order()
        if order is not None:
            grace, reason = _stop_order(order, spec)
            self._order(now, status, protocol.CAUSE_STOPPED, reason, grace)
        if self._told_by_signal:
            reason, self._told_by_signal = self._told_by_signal, ""
            self._order(now, status, protocol.CAUSE_STOPPED, reason, spec.grace_seconds)
        excess = None if self._course.cause else self._meter.excess(now)
        if excess is not None:
            reason = disk.sentence(excess, spec.disk_bytes)
            self._order(now, status, protocol.CAUSE_DISK, reason, spec.grace_seconds)
        if self._course.timed_out(now):
            self._order(now, status, protocol.CAUSE_TIMEOUT, "timeout", spec.grace_seconds)
        if now >= self._lease and not self._course.cause:
            self._lease = self._run.lease_deadline() or self._lease
            if now >= self._lease:
                reason = protocol.CAUSE_LEASE
                self._order(now, status, reason, reason, spec.grace_seconds)

    def _new_stop_order(self) -> Optional[Json]:
        path = self._run.file(protocol.STOP_FILE)
        try:
            found = os.lstat(path)
        except OSError:
            return None
        seen = (found.st_ino, found.st_mtime_ns)
        if seen == self._stop_seen:
            return None
        self._stop_seen = seen
        return system.read_json(path) or {}

    def _order(self, now: float, status: RunStatus, cause: str, notice: str, grace: float) -> None:
        listens = os.path.lexists(self._run.file(protocol.LISTENS_FILE))
        known = self._course.kill_at
        is_guest = self._share.is_guest
        first = self._course.order(now, cause, notice, grace, listens=listens, is_guest=is_guest)
        if not first and self._course.kill_at >= known:
            return
        control = {
            "notice": self._course.notice,
            "grace_seconds": grace,
            "at": time.time(),
        }
        try:
            path = self._run.file(protocol.CONTROL_FILE)
            system.replace_file(path, json.dumps(control).encode("ascii"), mode=0o644)
            self._run.record(replace(status, notice=self._course.notice))
        except OSError:
            runs.note_error(self._run)
        system.notify(self._run.store.root, self._run.run_id)

    # -- the end ---------------------------------------------------------------------------------

    def _record_of(self, ended: Ended) -> ExitRecord:
        cause = self._course.cause or _cause_of(ended)
        failure = failure_of(cause, ended.code)
        if self._course.notice == "node-shutdown":
            failure = protocol.NODE
        return ExitRecord(
            cause=cause,
            failure=failure,
            at=self._ended_at(ended.at),
            code=ended.code,
            signal=ended.signal,
            message=_sentence(cause, ended, self._course.notice),
        )

    def _ended_at(self, reported: Optional[float]) -> float:
        """Return the end of the job as its sandbox reports it, clamped between start and now.

        Without a report the job ends now, unless this process has been frozen since its last
        check. Then it ended at an unknown instant in between, at the earliest with its last
        output, which the log writer has written meanwhile.

        Args:
            reported: end by the boot clock, since the wall clock may have been changed.
        """
        if reported is not None:
            age = age_of_end(reported, self._started, system.boot_clock())
            return (
                time.time() - age
            )  # read afterwards, so that a pause in between does not result in an early end
        now = time.time()
        looked, at = self._looked
        if system.boot_clock() - looked < FROZEN_SECONDS:
            return now
        for _, path in logs.segments(self._run.file(protocol.LOG_DIR))[-1:]:
            try:
                at = max(at, os.lstat(path).st_mtime)
            except OSError:
                pass
        return min(at, now)

    def _finish(self, status: RunStatus, record: ExitRecord, payload: Payload) -> bool:
        """End the run; returns whether its record was written."""
        payload.clean_up()
        self._meter.close()
        self._log.finish()
        self._run.remove_secrets()
        final = replace(
            status,
            phase=protocol.EXITED,
            exit=record,
            warnings=list(payload.warnings),
            log_end=self._log.end,
            reports_end=self._run.reports_end(),
        )
        is_recorded = self._recorded(final)
        system.notify(self._run.store.root, self._run.run_id)
        payload.dissolve()
        return is_recorded

    def _recorded(self, status: RunStatus) -> bool:
        """Write the exit record; on a full disk it is retried, as space may become free."""
        while True:
            try:
                self._run.record(status, durable=True)
            except OSError as error:
                runs.note_error(self._run)
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                    return False
                time.sleep(1.0)
            else:
                return True


def _stop_order(order: "dict[str, object]", spec: RunSpec) -> "tuple[float, str]":
    grace, reason = order.get("grace_seconds"), order.get("reason")
    good = isinstance(grace, (int, float)) and not isinstance(grace, bool) and grace >= 0
    seconds = float(grace) if good else spec.grace_seconds  # type: ignore[arg-type]
    return seconds, reason[:200] if isinstance(reason, str) else "stop"


def _cause_of(ended: Ended) -> str:
    if ended.oom:
        return protocol.CAUSE_OOM
    if ended.signal == signal.SIGXFSZ:  # a file exceeds the disk limit of the run
        return protocol.CAUSE_DISK
    return protocol.CAUSE_EXITED


def _sentence(cause: str, ended: Ended, notice: str) -> str:
    how = f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
    sentences = {
        protocol.CAUSE_EXITED: f"the job ended with {how}",
        protocol.CAUSE_OOM: f"the job ran out of memory ({how})",
        protocol.CAUSE_DISK: f"{notice or 'a file is larger than the disk limit'} ({how})",
        protocol.CAUSE_TIMEOUT: f"the job ran longer than allowed ({how})",
        protocol.CAUSE_DEVICE: f"the run had to leave a shared device: {notice} ({how})",
        protocol.CAUSE_LEASE: f"the run's lease was not renewed ({how})",
        protocol.CAUSE_STOPPED: f"the job was stopped: {notice} ({how})",
    }
    return sentences[cause]


def wake(status: RunStatus, number: signal.Signals = signal.SIGUSR1) -> None:
    """Wake a live runner to read its requests at once; SIGUSR2 requests the end of the runner."""
    pid = status.runner_pid
    if pid is not None and system.start_ticks(pid) == status.runner_start:
        system.kill_quietly(pid, number)
