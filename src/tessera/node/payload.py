"""The supervised process of a runner: a process group of this node (see also ``container``)."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Set

from tessera import isolation, protocol
from tessera.node import cgroups, confinement, helped, networks, plans, sizes, system
from tessera.node.boxes import REAP_SECONDS, START_SECONDS, Report, Sandbox, SandboxError
from tessera.node.helped import HelpedSandbox
from tessera.node.runs import Run
from tessera.node.tracking.endpoint import Endpoint, own_user
from tessera.protocol import ProtocolError, RunSpec

LEFTOVER_SECONDS = 30.0
_NOT_HELD = b"\0"
"""Text of a child that could not enter the control groups of the job."""
GRANTED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class StartError(Exception):
    """The job could not be started; the message is for people."""

    def __init__(self, message: str, failure: str = protocol.NODE) -> None:
        super().__init__(message)
        self.failure = failure


class Started(NamedTuple):
    """A running job: main process, group, and start time in clock ticks.

    All None for a container that had ended before it could be queried.
    """

    pid: Optional[int] = None
    pgid: Optional[int] = None
    start: Optional[int] = None


class Ended(NamedTuple):
    """The end of a main process.

    Attributes:
        code, signal: one of them, or none if unknown.
        oom: whether memory was the reason.
        at: the time of the end by the boot clock; None if only the runner saw it.
    """

    code: Optional[int]
    signal: Optional[int]
    oom: bool
    at: Optional[float] = None


class Invocation(NamedTuple):
    """Program, environment and directory of a job's process."""

    arguments: List[bytes]
    environment: Dict[bytes, bytes]
    directory: str


class Payload:
    """A supervised process: started, writes output, can be stopped, and ends."""

    warnings: List[str]
    endpoint: Optional[Endpoint] = None
    network = isolation.SHARED_NETWORK
    isolation = isolation.NONE

    def start(self) -> Started:
        """Start the payload, or raise ``StartError``."""
        raise StartError("nothing to start")

    def descriptors(self) -> List[int]:
        """Return descriptors to wait on."""
        return []

    def readable(self, descriptor: int) -> None:
        """Handle input on one of the descriptors."""

    def size_of(self, directories: List[str], enough: int) -> int:
        """Return the size of the job's directories, see ``sizes.size_of``.

        Raises:
            sizes.NotMeasuredError: it is unknown now.
        """
        return sizes.size_of(directories, enough)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""

    def freeze(self, *, frozen: bool) -> None:
        """Freeze or thaw all processes of the job."""

    def demote(self, *, is_guest: bool) -> None:
        """Let the job use only idle processor time if it is a guest; otherwise end that."""

    def ended(self) -> Optional[Ended]:
        """Return the end of the payload; None while it runs."""
        return None

    def clean_up(self) -> None:
        """Read the last output, and end every process of the job."""

    def dissolve(self) -> None:
        """Remove the sandbox of the job; the end is recorded already, so this may take longer."""


def granted_environment() -> Dict[str, str]:
    """Return variables that a job inherits from the node; others of the session are dropped."""
    found = {name: os.environ[name] for name in GRANTED if name in os.environ}
    found.setdefault("PATH", DEFAULT_PATH)
    return found


class ProcessPayload(Payload):
    """A shell script in its own session, with its output in a pipe."""

    def __init__(self, run: Run, spec: RunSpec, output: int, bundle: str) -> None:
        """Args: output: descriptor for standard output and standard error."""
        self._run, self._spec, self._output, self._bundle = run, spec, output, bundle
        self._group: Optional[cgroups.Group] = None
        self._pid = 0
        self._status: Optional[int] = None
        self._oom_before = 0
        self._box: Optional[Sandbox] = None
        self._connection = networks.Connection()
        self._told: Optional[Report] = None
        self._told_at = 0.0
        self.endpoint: Endpoint = Endpoint(run, spec)
        self.warnings = []

    # -- start -----------------------------------------------------------------------------------

    def start(self) -> Started:
        """Fork and execute; returns once the shell has been executed."""
        self._choose_level()
        self._oom_before = _machine_oom_kills()
        self._create_group()
        if self.isolation == isolation.NONE:
            self._start_plain()
        else:
            self._start_in_box()
        self.endpoint.open(is_own=self.network == isolation.OWN_NETWORK)
        return Started(self._pid, self._pid, system.start_ticks(self._pid))

    def _choose_level(self) -> None:
        try:
            self.isolation = confinement.level_for(self._run.store.root, self._spec)
        except ProtocolError as error:
            raise StartError(f"{error.code}: {error.message}", error.failure) from None
        if self.isolation == isolation.NONE:
            self.warnings.append(isolation.NOT_ISOLATED)

    def _start_in_box(self) -> None:
        run, spec = self._run, self._spec
        choice = networks.choose(run.store.root, spec)
        self.network = choice.network
        try:
            plan, warnings = plans.plan_for(
                run,
                spec,
                self.isolation,
                self._bundle,
                {**granted_environment(), **self._tracking()},
                network=choice,
                processes=self._most_processes(),
            )
        except ProtocolError as error:
            raise StartError(f"{error.code}: {error.message}", error.failure) from None
        self.warnings += warnings
        if not choice.is_connected:
            self.warnings.append(isolation.NETWORK_ISOLATED)
        is_helped = confinement.is_helped(self.isolation)
        box = HelpedSandbox(plan) if is_helped else Sandbox(plan)
        own = None if is_helped else plan.uid
        try:
            box.start(self._output, self._group, lambda pid: self._connect(pid, choice, own))
        except SandboxError as error:
            if spec.memory_bytes and self._group is not None and self._group.oom_kills():
                message = f"{spec.memory_bytes} bytes of memory are not enough for a sandbox"
                raise StartError(message, protocol.RESOURCE_LIMIT) from None
            raise _start_error(error, self.isolation) from None
        if not box.is_held:
            self._warn_of_limits()
        self._box, self._pid = box, box.pid

    def _connect(
        self, pid: int, choice: networks.Choice, uid: Optional[int]
    ) -> Callable[[], None]:
        self.endpoint.listen_in(pid)
        self._connection = networks.connect(pid, choice, uid, self._group)
        return self._connection.wait

    def _tracking(self) -> Dict[str, str]:
        is_own = self.network == isolation.OWN_NETWORK
        return self.endpoint.environment(
            is_own=is_own, uid=own_user(self.isolation, self._spec.uid)
        )

    def _start_plain(self) -> None:
        failed, failing = os.pipe()
        runner, job = os.getpid(), self._invocation()
        self._pid, is_held = cgroups.fork(self._group)
        if self._pid == 0:
            if not is_held:
                system.write_all(failing, _NOT_HELD)
            self._become(job, self._output, failing, runner)
        os.close(failing)
        message = _read_within(failed, START_SECONDS)
        if message is not None and message.startswith(_NOT_HELD):
            message = message[len(_NOT_HELD) :]
            self._warn_of_limits()
        if message is None:
            system.kill_quietly(self._pid, signal.SIGKILL)
            system.reap(self._pid, REAP_SECONDS)
            raise StartError(f"the job was not executed within {START_SECONDS:.0f} s")
        if message:
            system.reap(self._pid, REAP_SECONDS)
            raise StartError(message.decode("utf-8", "replace"))

    def _create_group(self) -> None:
        """Create the groups that limit the job and its network.

        The limit of processes is also in force if the other limits are not enforced.
        """
        spec = self._spec
        cpus, memory = (spec.cpus, spec.memory_bytes) if self._has_limits() else (0.0, 0)
        is_guest = bool(spec.beside)
        self._group = cgroups.create(
            spec.run_id, cpus, memory, self._most_processes(), is_guest=is_guest
        )
        if self._group is None or not self._group.complete:
            self._warn_of_limits()

    def _has_limits(self) -> bool:
        spec = self._spec
        return spec.limits_enforced and bool(spec.cpus or spec.memory_bytes)

    def _most_processes(self) -> int:
        try:
            return confinement.declaration(self._run.store.root).processes
        except ProtocolError:
            return isolation.MOST_PROCESSES  # the declaration of the node is malformed

    def _warn_of_limits(self) -> None:
        if self._has_limits() and isolation.LIMITS_NOT_ENFORCED not in self.warnings:
            self.warnings.append(isolation.LIMITS_NOT_ENFORCED)

    def _invocation(self) -> Invocation:
        run, spec = self._run, self._spec
        environment = {**granted_environment(), **self._tracking()}
        checkpoints = protocol.checkpoint_dir(run.store.root, spec)
        environment.update(protocol.job_environment(spec, run.path, self._bundle, checkpoints))
        directory = os.path.join(run.file(protocol.WORK_DIR), spec.workdir)
        script = os.fsencode(run.file(protocol.COMMAND_FILE))
        encoded = {
            name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
            for name, value in environment.items()
        }
        return Invocation([b"/bin/sh", script], encoded, directory)

    def _become(self, job: Invocation, writer: int, failing: int, runner: int) -> None:
        """In the child: become the job. Never returns."""
        try:
            os.setsid()
            system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != runner:
                os._exit(127)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            os.chdir(job.directory)
            system.default_signals()
            os.execve(job.arguments[0], job.arguments, job.environment)  # noqa: S606
        except BaseException as error:
            system.write_all(failing, f"the job could not be executed: {error}".encode())
        os._exit(127)

    def size_of(self, directories: List[str], enough: int) -> int:
        """Return the size of the job's directories, which only its user may be able to read."""
        if self._spec.uid is None or not confinement.is_helped(self.isolation):
            return sizes.size_of(directories, enough)
        try:
            return helped.size_of(directories, enough, self._spec.uid)
        except OSError as error:  # the helper has ended; the next call starts another one
            raise sizes.NotMeasuredError(f"{error}") from None

    # -- end -------------------------------------------------------------------------------------

    def descriptors(self) -> List[int]:
        """Return descriptors for the end of a sandbox that this process has not forked."""
        return [self._box.descriptor()] if isinstance(self._box, HelpedSandbox) else []

    def signal(self, number: signal.Signals) -> None:
        """Signal the group; SIGKILL also reaches processes that left it."""
        if self._box is not None:
            self._box.signal(number)
        elif self._status is None:
            system.kill_quietly(-self._pid, number)
        if number == signal.SIGKILL:
            for found in system.descendants({os.getpid()}):
                system.kill_quietly(found.pid, signal.SIGKILL)

    def freeze(self, *, frozen: bool) -> None:
        """Freeze or thaw by the control group; without one, by signals to all processes.

        Signals are repeated until no process is new, as one may have forked meanwhile.
        """
        if self._group is not None and self._group.freeze(frozen=frozen):
            return
        number = signal.SIGSTOP if frozen else signal.SIGCONT
        reached: Set[int] = set()
        while True:
            found = {self._pid, *(one.pid for one in system.descendants({self._pid}))} - reached
            if not found:
                return
            for pid in found:
                system.kill_quietly(pid, number)
            reached |= found

    def demote(self, *, is_guest: bool) -> None:
        """Demote by the control group and by the scheduling class, each as far as permitted."""
        if self._group is not None:
            self._group.demote(is_guest=is_guest)
        policy = os.SCHED_IDLE if is_guest else os.SCHED_OTHER
        for pid in (self._pid, *(one.pid for one in system.descendants({self._pid}))):
            try:
                os.sched_setscheduler(pid, policy, os.sched_param(0))
                system.write_text(f"/proc/{pid}/autogroup", "19" if is_guest else "0")
            except OSError:
                continue  # the process has ended, is another user's, or may not be promoted

    def ended(self) -> Optional[Ended]:
        """Reap all exited processes; returns the exit of the main process, None while it runs."""
        self._reap()
        if self._box is not None and self._told is None:
            self._told = self._box.end()
            self._told_at = time.monotonic()
        if isinstance(self._box, HelpedSandbox) and self._box.is_gone():
            self._status = signal.SIGKILL if self._told is None else self._told.status
        status = self._status if self._told is None else self._told.status
        if status is None or (self._status is None and not self._is_overdue()):
            return None
        self._status = status
        if self._box is not None:
            self._box.close()
            self._box = None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        at = None if self._told is None else self._told.at
        return Ended(code, number, self._ran_out_of_memory(code, number), at)

    def _is_overdue(self) -> bool:
        """Return whether only the sandbox still runs: a process hangs in the kernel."""
        return self._told is not None and time.monotonic() - self._told_at >= LEFTOVER_SECONDS

    def _reap(self) -> bool:
        """Reap children; return False if no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._status = status

    def _ran_out_of_memory(self, code: Optional[int], number: Optional[int]) -> bool:
        if code == 0:
            return False
        if self._group is not None and self._group.oom_kills():
            return True
        killed = number == signal.SIGKILL or code == 128 + signal.SIGKILL
        return killed and _machine_oom_kills() > self._oom_before

    def clean_up(self) -> None:
        """Kill the remaining descendants of the main process."""
        helped.close()  # otherwise a helper started by this process would not end
        deadline = time.monotonic() + LEFTOVER_SECONDS
        while self._reap():
            left = self._left()
            for pid in left:
                system.kill_quietly(pid, signal.SIGKILL)
            if left == {self._connection.connector}:
                break  # no process of the job remains, so the network is not awaited
            if time.monotonic() > deadline:
                self.warnings.append(
                    "processes-left"
                )  # blocked in the kernel, where SIGKILL takes no effect
                break
            time.sleep(0.002)

    def _left(self) -> Set[int]:
        """Return the processes below this one; scans the machine only if they can be many."""
        found = system.children()
        if found is not None and found <= set(self._connection.pids):
            return found
        return {one.pid for one in system.descendants({os.getpid()})}

    def dissolve(self) -> None:
        """Remove the groups, once the connector of the network has left them."""
        if self._connection.connector:
            system.reap(self._connection.connector, REAP_SECONDS)
        if self._group is not None:
            self._group.remove()


def _read_within(descriptor: int, seconds: float) -> Optional[bytes]:
    """Read all of a pipe and close it; return None if its other end stays open for longer."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline, message = time.monotonic() + seconds, b""
    try:
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            piece = os.read(descriptor, 4096)
            if not piece:
                return message
            message += piece
    finally:
        os.close(descriptor)
    return None


def _start_error(error: SandboxError, level: str) -> StartError:
    """Build the start error: a user error if the sandbox exists and the job cannot run."""
    if error.stage == "execute":
        return StartError(f"the job could not be executed: {error}")
    reason = f"{error.stage}: {error}"
    return StartError(f"{isolation.NOT_AVAILABLE}: the sandbox of level {level} failed: {reason}")


def _machine_oom_kills() -> int:
    """Return the number of OOM kills of the kernel since boot, as far as known."""
    for line in system.read_text("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
