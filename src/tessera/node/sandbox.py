"""The sandbox of one job: own namespaces, and the process that is pid 1 in them.

``enter`` runs in a child that was forked into ``namespaces_of`` the plan, which needs either root
or user namespaces. It reports to a socket in lines of text (``network``, ``started``, ``failed``,
``exit``) and takes signal numbers from it, one byte each. When the other end of the socket is
closed, all processes of the sandbox end.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import stat
import time
from typing import List, NoReturn, Optional, Sequence, Tuple

from tessera.node import kernel, ownership
from tessera.node.sandbox_root import Plan, Stage, build, groups_of

GO_ON, GO_ON_HELD = b"\0", b"\1"
"""Orders of the runner; the second one means that control groups bound the job's processes."""
NOT_HELD = "not-held"
"""The line of a first process that could not enter the control groups of the job."""
NETWORK = "network"
INNER_ADDRESS = "192.0.0.8"
"""Address of a job in its own network, besides loopback, for published ports."""


def namespaces_of(plan: Plan) -> int:
    """Return the namespaces of a sandbox, for ``kernel.fork_into``."""
    found = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if plan.own_network:
        found |= kernel.CLONE_NEWNET
    return found | (kernel.CLONE_NEWUSER if plan.uid is None else 0)


def enter(
    plan: Plan, own: Tuple[int, int], output: int, channel: int, *, is_bound: bool = False
) -> NoReturn:
    """In a child in the namespaces: create the sandbox and start the job in it. Never returns.

    Args:
        plan: plan of the sandbox.
        own: user and group of the runner.
        output: descriptor of the job's standard output and standard error.
        channel: descriptor of the socket.
        is_bound: control groups bound the processes of the job already.
    """
    stage = Stage(["own"])
    try:
        if plan.uid is None:
            stage.begin("map")
            kernel.set_process(kernel.PR_SET_DUMPABLE, 1)  # otherwise root owns /proc/self
            kernel.map_identity(0, own[0], 0, own[1])
        else:
            if stat.S_ISFIFO(os.fstat(output).st_mode):
                os.fchown(output, plan.uid, -1)  # the job may open /dev/stdout
            receiver = ownership.Receiver(plan.uid, plan.group, frozenset(plan.owners))
            for path in plan.owned:
                ownership.give(path, receiver, channel)
        _first_process(plan, own, output, channel, stage, is_bound=is_bound)
    except BaseException as error:
        _report_failure(channel, stage, error)
    os._exit(127)


def _report_failure(channel: int, stage: Stage, error: BaseException) -> None:
    number = error.errno if isinstance(error, OSError) else 0
    text = " ".join(f"{error}".split())[:500]
    line = f"failed {stage.names[-1]} {number or 0} {text}\n"
    os.write(channel, line.encode("utf-8", "replace"))


def _first_process(
    plan: Plan,
    own: Tuple[int, int],
    output: int,
    channel: int,
    stage: Stage,
    *,
    is_bound: bool,
) -> None:
    """Run as pid 1 of the sandbox until the job's first process has ended."""
    wake = _reset_signals()
    os.setsid()
    mask = os.umask(0o022)
    if plan.own_network:
        stage.begin("network")
        kernel.raise_loopback(INNER_ADDRESS)
        kernel.prohibit_routes(plan.blocked)
        os.write(channel, f"{NETWORK}\n".encode("ascii"))
    build(plan, own, stage)
    if plan.own_network and os.read(channel, 1) != GO_ON:
        return  # until then, the runner needs access to this process for the network
    stage.begin("identity")
    _become(plan, own)
    order = os.read(channel, 1)
    if not order:
        return
    kernel.set_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    stage.begin("execute")
    _limit(plan, processes=not is_bound and order != GO_ON_HELD)
    job = _start(plan, output, mask if plan.uid is None else 0o007)
    os.close(output)
    os.write(channel, b"started\n")
    _serve(job, channel, wake)


def _become(plan: Plan, own: Tuple[int, int]) -> None:
    """Become the job's user permanently, without any capability."""
    if plan.uid is None:
        kernel.unshare(kernel.CLONE_NEWUSER)  # has no rights on the mounts created above
        kernel.map_identity(own[0], 0, own[1], 0)
        kernel.drop_capability_bounds()
    else:
        change_user(plan.uid, _groups_of_devices(plan))
    give_up_rights()


def _groups_of_devices(plan: Plan) -> List[int]:
    """Return the groups that open the device files of the job, if its account has them too."""
    found = groups_of(plan.devices)
    if plan.account is None:
        return found
    return [group for group in found if group in (plan.account.gid, *plan.account.groups)]


def change_user(uid: int, groups: Sequence[int] = ()) -> None:
    """Become another user permanently, with the group of the same number and those given."""
    kernel.drop_capability_bounds()
    os.setgroups(list(groups))
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def give_up_rights() -> None:
    """Drop all capabilities permanently, and block access by other processes of this user."""
    kernel.drop_capabilities()
    kernel.set_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.join_new_session_keyring()
    kernel.set_process(kernel.PR_SET_DUMPABLE, 0)  # forbids ptrace by a job of the same user


def _reset_signals() -> int:
    """Reset the signal handlers of the fork; returns a descriptor readable on a signal."""
    signal.set_wakeup_fd(-1)
    for number in kernel.handled_signals():
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # signals of the C library
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    return wake


def _start(plan: Plan, output: int, mask: int) -> int:
    """Execute the job's first process; returns its pid once it was executed.

    It is not forked: a copy of this process would take longer than its start. So it inherits the
    directory, the mask and the limits of this process.
    """
    os.chdir(plan.directory)
    os.umask(mask)
    pid = os.posix_spawn(
        plan.arguments[0],
        plan.arguments,
        plan.environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
    )
    os.chdir("/")
    return pid


def _limit(plan: Plan, *, processes: bool) -> None:
    """Limit the files and the processes of the job, within limits already in force."""
    wanted = {resource.RLIMIT_FSIZE: plan.file_bytes}
    if processes:
        wanted[resource.RLIMIT_NPROC] = plan.processes
    for kind, most in wanted.items():
        _, present = resource.getrlimit(kind)
        if most and (present == resource.RLIM_INFINITY or most < present):
            resource.setrlimit(kind, (most, most))


def _serve(job: int, channel: int, wake: int) -> None:
    """Reap, pass signals on, and end when the job's first process or the runner has ended."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        status = _reap(job)
        if status is not None:
            # The runner may be suspended and read this late, so the message contains the time.
            at = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
            os.write(channel, b"exit %d %d\n" % (status, at))
            os._exit(0)
        for descriptor, _ in poll.poll():
            if descriptor == wake:
                os.read(wake, 4096)
                continue
            numbers = os.read(channel, 64)
            if not numbers:
                os._exit(0)  # the runner has ended: the kernel ends all remaining processes
            for number in numbers:
                _signal(job, number)


def _reap(job: int) -> Optional[int]:
    """Reap ended processes; returns the status of the job's first process if among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == job:
            return status
        if pid == 0:
            return None


def _signal(job: int, number: int) -> None:
    target = -1 if number == signal.SIGKILL else -job
    try:
        os.kill(target, number)
    except OSError:
        pass  # the process has ended
