"""The sandbox of one job: a private root directory, own namespaces, and the process that is pid 1.

``enter`` runs in a child that was forked into ``namespaces_of`` the plan, which needs either root
or user namespaces. It reports to a socket in lines of text (``network``, ``started``, ``failed``,
``exit``) and takes signal numbers from it, one byte each. When the other end of the socket is
closed, everything in the sandbox ends.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import select
import signal
import stat
import time
from typing import Dict, Iterable, List, NamedTuple, NoReturn, Optional, Set, Tuple

from tessera.node import kernel, ownership, places
from tessera.node.accounts import Account, acting_as

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
"""Directories of the node that every job sees, read-only, if they exist."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ACCOUNT = "job"
GO_ON, GO_ON_HELD = b"\0", b"\1"
"""Orders of the runner; the second one means that control groups bound the job's processes."""
NOT_HELD = "not-held"
"""The line of a first process that could not enter the control groups of the job."""
NETWORK = "network"
INNER_ADDRESS = "192.0.0.8"
"""Address of a job in its own network, besides loopback, for published ports."""
_OLD = "/.old"
_ROOT_OPTIONS = "mode=0755,size=16m,nr_inodes=16k"
MOST_SECRETS, MOST_SECRET_BYTES = 1_000, 16 << 20
_SECRETS_OPTIONS = "mode=0700,size=24m,nr_inodes=2k"
_PLAIN = kernel.MS_NOSUID | kernel.MS_NODEV
_LINKS = (
    *(("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "/proc/self/fd/0")),
    *(("/dev/stdout", "/proc/self/fd/1"), ("/dev/stderr", "/proc/self/fd/2")),
    *(("/dev/ptmx", "pts/ptmx"), ("/dev/core", "/proc/kcore")),
    *(("/var/tmp", "/tmp"), ("/var/run", "/run"), ("/var/lock", "/run/lock")),  # noqa: S108
)


class Bind(NamedTuple):
    """A file or directory of the node at its place in the sandbox.

    With ``is_exact`` the start fails if the source is not reached without links any more.
    """

    source: str
    target: str
    writable: bool = False
    is_exact: bool = False


class Plan(NamedTuple):
    """The contents of a sandbox, and the program that runs in it.

    Attributes:
        uid: the Unix user of the job, with a group of the same number; None: the caller's own,
            by a user namespace.
        binds: in this order.
        hidden: paths in the sandbox covered by an empty directory; binds in them are visible.
        devices: device files of the job besides ``DEVICES``.
        secrets: (directory, place in the sandbox) whose files are copied to a file system in
            memory; None for no secrets.
        owned: directories whose files are given to ``uid``.
        owners: the users whose files in ``owned`` are given away.
        group: the group of ``owned``, which remains that of the runner.
        tmp_bytes, shm_bytes: sizes of /tmp and /dev/shm.
        file_bytes: the largest file that the job may write, 0 for no limit.
        home, directory: home, and working directory at the start.
        arguments, environment: of the job's first process.
        own_network: a network namespace with loopback, to which the runner may add more.
        blocked: IPv4 networks that are unreachable from it.
        resolver: the content of ``/etc/resolv.conf``; empty: that of the node.
        processes: the most processes of the job's user, unless control groups bound them; 0 for
            no limit.
        account: the account whose rights reach the sources of ``binds`` and the secrets, and
            which is not trusted otherwise; None: the caller's own, trusted.
    """

    uid: Optional[int]
    binds: List[Bind]
    hidden: List[str]
    devices: List[str]
    secrets: Optional[Tuple[str, str]]
    owned: List[str]
    owners: List[int]
    group: int
    tmp_bytes: int
    shm_bytes: int
    file_bytes: int
    home: str
    directory: str
    arguments: List[str]
    environment: Dict[str, str]
    own_network: bool = False
    blocked: Tuple[str, ...] = ()
    resolver: str = ""
    processes: int = 0
    account: Optional[Account] = None


class _Stage(NamedTuple):
    """The stage of a start, for the report of a failure."""

    names: List[str]

    def begin(self, name: str) -> None:
        self.names.append(name)


def namespaces_of(plan: Plan) -> int:
    """The namespaces of a sandbox, for ``kernel.fork_into``."""
    found = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if plan.own_network:
        found |= kernel.CLONE_NEWNET
    return found | (kernel.CLONE_NEWUSER if plan.uid is None else 0)


def enter(
    plan: Plan, own: Tuple[int, int], output: int, channel: int, *, is_bound: bool = False
) -> NoReturn:
    """In a child in the namespaces: create the sandbox and start the job in it. Never returns.

    Args:
        plan: of the sandbox.
        own: user and group of the runner.
        output: descriptor of the job's standard output and standard error.
        channel: descriptor of the socket.
        is_bound: control groups bound the processes of the job already.
    """
    stage = _Stage(["own"])
    try:
        if plan.uid is None:
            stage.begin("map")
            kernel.set_process(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self is not its own
            kernel.map_identity(0, own[0], 0, own[1])
        else:
            if stat.S_ISFIFO(os.fstat(output).st_mode):
                os.fchown(output, plan.uid, -1)  # for a job that opens /dev/stdout
            receiver = ownership.Receiver(plan.uid, plan.group, frozenset(plan.owners))
            for path in plan.owned:
                ownership.give(path, receiver, channel)
        _first_process(plan, own, output, channel, stage, is_bound=is_bound)
    except BaseException as error:
        _report_failure(channel, stage, error)
    os._exit(127)


def _report_failure(channel: int, stage: _Stage, error: BaseException) -> None:
    number = error.errno if isinstance(error, OSError) else 0
    text = " ".join(f"{error}".split())[:500]
    line = f"failed {stage.names[-1]} {number or 0} {text}\n"
    os.write(channel, line.encode("utf-8", "replace"))


# -- the root directory --------------------------------------------------------------------------


def _build(plan: Plan, own: Tuple[int, int], stage: _Stage) -> None:
    stage.begin("mount")
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    flags = os.O_PATH | os.O_CLOEXEC
    with acting_as(plan.account):
        opened = [(os.open(bind.source, flags), bind) for bind in plan.binds]
        secrets = _read_secrets(plan)
    for descriptor, bind in opened:
        if bind.is_exact and os.readlink(f"/proc/self/fd/{descriptor}") != bind.source:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), bind.target)
    base = "/tmp"  # noqa: S108 - only the place of the new root until it is the root
    kernel.mount("tmpfs", base, "tmpfs", _PLAIN, _ROOT_OPTIONS)
    os.mkdir(base + _OLD)
    kernel.pivot_root(base, base + _OLD)
    os.chdir("/")
    for path in SYSTEM:
        _show_system(path)
    _make_devices(plan)
    _make_temporary(plan)
    # Before binds: an account's directory could lead these files to those of the old root.
    _write_secrets(plan, secrets)
    _show_resolver(plan.resolver.encode("ascii"))
    _write_accounts(plan, own)
    _show(opened, plan)
    stage.begin("proc")
    os.mkdir("/proc")
    kernel.mount("proc", "/proc", "proc", _PLAIN | kernel.MS_NOEXEC)
    stage.begin("seal")
    kernel.unmount(_OLD)
    os.rmdir(_OLD)
    _seal("/")


def _show(opened: Iterable[Tuple[int, Bind]], plan: Plan) -> None:
    """Mount binds, and covers without a bind; outer ones first."""
    binds = {bind.target: (descriptor, bind) for descriptor, bind in opened}
    covered = []
    own = {os.stat(path).st_dev for path in ("/", "/tmp")}  # noqa: S108 - of the sandbox
    for path in sorted({*binds, *plan.hidden}, key=lambda path: path.split("/")):
        if path in binds:
            descriptor, bind = binds[path]
            source = f"{_OLD}/proc/self/fd/{descriptor}"
            if plan.account is None:
                _bind(source, path, writable=bind.writable)
            else:
                _bind_without_links(source, path, own, writable=bind.writable)
            os.close(descriptor)
        elif os.path.isdir(path):
            if plan.account is None:
                _cover(path)
            else:
                _cover_without_links(path, own)
            covered.append(path)
    for path in covered:
        _seal(path)


def _show_system(path: str) -> None:
    old = _OLD + path
    if os.path.islink(old):
        os.symlink(os.readlink(old), path)
    elif os.path.isdir(old):
        _bind(old, path, writable=False)


def _bind(source: str, target: str, *, writable: bool, devices: bool = False) -> None:
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    kernel.mount(source, target, "", kernel.MS_BIND | kernel.MS_REC)
    flags = kernel.MS_NOSUID | (0 if writable else kernel.MS_RDONLY)
    kernel.restrict_mount(target, flags | (0 if devices else kernel.MS_NODEV))


def _bind_without_links(source: str, target: str, own: Set[int], *, writable: bool) -> None:
    """Bind for an account that may replace parts of the target by links meanwhile."""
    place = places.open_place(target, is_directory=os.path.isdir(source), devices=own)
    kernel.mount(source, f"{_OLD}/proc/self/fd/{place}", "", kernel.MS_BIND | kernel.MS_REC)
    os.close(place)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if writable else kernel.MS_RDONLY)
    kernel.restrict_mount(target, flags)


def _cover(path: str) -> None:
    """Put an empty directory over one that would be visible through a bind."""
    kernel.mount("tmpfs", path, "tmpfs", _PLAIN, "mode=0755,size=4k,nr_inodes=4k")


def _cover_without_links(path: str, own: Set[int]) -> None:
    """Cover for an account that may replace parts of the path by links meanwhile."""
    private = "/.cover"
    os.mkdir(private)
    _cover(private)
    own.add(os.stat(private).st_dev)  # asked here: the path may lead elsewhere a moment later
    place = places.open_place(path, is_directory=True, devices=frozenset())
    kernel.mount(private, f"{_OLD}/proc/self/fd/{place}", "", kernel.MS_BIND)
    os.close(place)
    kernel.unmount(private)
    os.rmdir(private)


def _seal(path: str) -> None:
    """Make a mount read-only, without mounts below it."""
    remount = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("none", path, "", remount | _PLAIN)


def _make_devices(plan: Plan) -> None:
    os.makedirs("/dev/pts")
    for path in (*DEVICES, *plan.devices):
        if os.path.lexists(_OLD + path):
            _bind(_OLD + path, path, writable=True, devices=True)
    options = "newinstance,ptmxmode=0666,mode=620"
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)
    _bind(f"{_OLD}/sys", "/sys", writable=False)
    if os.path.isdir("/sys/fs/cgroup"):
        _cover("/sys/fs/cgroup")
        _seal("/sys/fs/cgroup")


def _make_temporary(plan: Plan) -> None:
    for path, size in (("/tmp", plan.tmp_bytes), ("/dev/shm", plan.shm_bytes)):  # noqa: S108
        os.makedirs(path)
        kernel.mount("tmpfs", path, "tmpfs", _PLAIN, f"mode=1777,size={size},nr_inodes=1m")
    for path in ("/run/lock", "/var"):
        os.makedirs(path)
    for path, target in _LINKS:
        os.symlink(target, path)


def _show_resolver(own: bytes) -> None:
    """If /etc/resolv.conf is a link to a file elsewhere, mount that file.

    Args:
        own: replacement of its content; empty: the node's content.
    """
    if not os.path.islink("/etc/resolv.conf"):
        if own and os.path.isfile("/etc/resolv.conf"):
            _replace_file("/etc/resolv.conf", own)
        return
    target = os.path.normpath(os.path.join("/etc", os.readlink("/etc/resolv.conf")))
    if not os.path.lexists(target):
        try:
            with open(_OLD + target, "rb") as file:
                content = own or file.read(1 << 16)
        except OSError:
            return
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        _write_file(target, content, 0o644)


def _read_secrets(plan: Plan) -> List[Tuple[str, bytes]]:
    if plan.secrets is None:
        return []
    found, left = [], MOST_SECRET_BYTES
    top = os.open(plan.secrets[0], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.scandir(top) as entries:
        names = [entry.name for entry in itertools.islice(entries, MOST_SECRETS + 1)]
    for name in names:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=top), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                found.append((name, file.read(left + 1)))
                left -= len(found[-1][1])
        if left < 0 or len(names) > MOST_SECRETS:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), "secrets")
    os.close(top)
    return found


def _write_secrets(plan: Plan, secrets: Iterable[Tuple[str, bytes]]) -> None:
    if plan.secrets is None:
        return
    place = plan.secrets[1]
    os.makedirs(place, mode=0o755, exist_ok=True)
    kernel.mount("tmpfs", place, "tmpfs", _PLAIN | kernel.MS_NOEXEC, _SECRETS_OPTIONS)
    for name, content in secrets:
        _write_file(f"{place}/{name}", content, 0o600)
    if plan.uid is not None:
        for path in (place, *(f"{place}/{name}" for name, _ in secrets)):
            os.chown(path, plan.uid, plan.uid)
    kernel.restrict_mount(place, kernel.MS_RDONLY)


def _write_accounts(plan: Plan, own: Tuple[int, int]) -> None:
    """Write the job's user with name and home, in place of the node's entry."""
    uid, gid = own if plan.uid is None else (plan.uid, plan.uid)
    entries = {
        "/etc/passwd": f"{ACCOUNT}:x:{uid}:{gid}::{plan.home}:/bin/sh\n",
        "/etc/group": f"{ACCOUNT}:x:{gid}:\n",
    }
    for path, entry in entries.items():
        if not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            others = [line for line in file if not _is_of(line, uid if "pass" in path else gid)]
        _replace_file(path, (entry + "".join(others)).encode("utf-8", "surrogateescape"))


def _replace_file(path: str, content: bytes) -> None:
    """Mount other content over a file of the node."""
    private = f"/.{os.path.basename(path)}"
    _write_file(private, content, 0o644)
    _bind(private, path, writable=False)
    os.unlink(private)


def _is_of(line: str, number: int) -> bool:
    fields = line.split(":")
    return fields[0] == ACCOUNT or (len(fields) > 2 and fields[2] == str(number))


def _write_file(path: str, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, mode), "wb") as file:
        file.write(content)


# -- the processes -------------------------------------------------------------------------------


def _first_process(
    plan: Plan,
    own: Tuple[int, int],
    output: int,
    channel: int,
    stage: _Stage,
    *,
    is_bound: bool,
) -> None:
    """Be pid 1 of the sandbox until the job's first process has ended."""
    wake = _reset_signals()
    os.setsid()
    mask = os.umask(0o022)
    if plan.own_network:
        stage.begin("network")
        kernel.raise_loopback(INNER_ADDRESS)
        kernel.prohibit_routes(plan.blocked)
        os.write(channel, f"{NETWORK}\n".encode("ascii"))
    _build(plan, own, stage)
    if plan.own_network and os.read(channel, 1) != GO_ON:
        return  # while the runner opens the network, this process must be one that it may open
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
        kernel.unshare(kernel.CLONE_NEWUSER)  # its owner has none over the mounts created above
        kernel.map_identity(own[0], 0, own[1], 0)
        kernel.drop_capability_bounds()
    else:
        change_user(plan.uid)
    give_up_rights()


def change_user(uid: int) -> None:
    """Become another user permanently, with the group of the same number and no other."""
    kernel.drop_capability_bounds()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def give_up_rights() -> None:
    """Drop all capabilities, gain none any more, and block access by others of this user."""
    kernel.drop_capabilities()
    kernel.set_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.join_new_session_keyring()
    kernel.set_process(kernel.PR_SET_DUMPABLE, 0)  # the job may have the same user: no ptrace


def _reset_signals() -> int:
    """Reset the signal handlers of the fork; returns a descriptor that signals make readable."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL, SIGSTOP and those of the C library
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
            # The runner may be frozen and read this late, so the time goes with it.
            at = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
            os.write(channel, b"exit %d %d\n" % (status, at))
            os._exit(0)
        for descriptor, _ in poll.poll():
            if descriptor == wake:
                os.read(wake, 4096)
                continue
            numbers = os.read(channel, 64)
            if not numbers:
                os._exit(0)  # the runner has ended: the kernel ends all that is left in here
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
        pass  # it has just ended
