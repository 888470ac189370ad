"""The plan of a sandbox, and its private root directory."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from typing import AbstractSet, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from tessera.node import kernel
from tessera.node.accounts import Account, acting_as

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
"""Directories of the node that every job sees, read-only, if they exist."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ACCOUNT = "job"
_OPEN_TO_ALL = stat.S_IROTH | stat.S_IWOTH
_OLD = "/.old"
_ROOT_OPTIONS = "mode=0755,size=16m,nr_inodes=16k"
MOST_SECRETS, MOST_SECRET_BYTES = 1_000, 16 << 20
_SECRETS_OPTIONS = "mode=0700,size=24m,nr_inodes=2k"
_PLAIN = kernel.MS_NOSUID | kernel.MS_NODEV
_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = (
    *(("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "/proc/self/fd/0")),
    *(("/dev/stdout", "/proc/self/fd/1"), ("/dev/stderr", "/proc/self/fd/2")),
    *(("/dev/ptmx", "pts/ptmx"), ("/dev/core", "/proc/kcore")),
    *(("/var/tmp", "/tmp"), ("/var/run", "/run"), ("/var/lock", "/run/lock")),  # noqa: S108
)


class Bind(NamedTuple):
    """A file or directory of the node at its place in the sandbox.

    With ``is_exact``, the start fails if the path of the source contains links now.
    """

    source: str
    target: str
    writable: bool = False
    is_exact: bool = False


class Plan(NamedTuple):
    """The contents of a sandbox, and the program that runs in it.

    Attributes:
        uid: the Unix user of the job, with a group of the same number; None for the caller's own,
            by a user namespace.
        binds: bind mounts in this order.
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
        arguments, environment: arguments and environment of the job's first process.
        own_network: a network namespace with loopback, to which the runner may add interfaces.
        blocked: IPv4 networks that are unreachable from it.
        resolver: the content of ``/etc/resolv.conf``; empty for that of the node.
        processes: maximum number of processes of the job's user, unless control groups limit them;
            0 for no limit.
        account: the account whose rights reach the sources of ``binds`` and the secrets, and
            which is not trusted otherwise; None for the caller's own, trusted.
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


class Stage(NamedTuple):
    """The stage of a start, for the report of a failure."""

    names: List[str]

    def begin(self, name: str) -> None:
        self.names.append(name)


def build(plan: Plan, own: Tuple[int, int], stage: Stage) -> None:
    """Build the root directory in new namespaces, and switch this process to it.

    Args:
        plan: plan of the sandbox.
        own: user and group of the runner.
        stage: receives the stages, for the report of a failure.

    Raises:
        OSError: a mount is refused, or a source is not as planned.
    """
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
    place = _open_place(target, is_directory=os.path.isdir(source), devices=own)
    kernel.mount(source, f"{_OLD}/proc/self/fd/{place}", "", kernel.MS_BIND | kernel.MS_REC)
    os.close(place)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if writable else kernel.MS_RDONLY)
    kernel.restrict_mount(target, flags)


def _cover(path: str) -> None:
    """Cover a directory that would be visible through a bind with an empty one."""
    kernel.mount("tmpfs", path, "tmpfs", _PLAIN, "mode=0755,size=4k,nr_inodes=4k")


def _cover_without_links(path: str, own: Set[int]) -> None:
    """Cover a path of which an account may replace parts by links meanwhile."""
    private = "/.cover"
    os.mkdir(private)
    _cover(private)
    own.add(os.stat(private).st_dev)  # after mounting, since the path may change later
    place = _open_place(path, is_directory=True, devices=frozenset())
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


def groups_of(files: Sequence[str], machine: str = "") -> List[int]:
    """Return the groups that a process needs to open device files which are not open to all."""
    found = (os.stat(machine + path) for path in files if os.path.exists(machine + path))
    return sorted({one.st_gid for one in found if one.st_mode & _OPEN_TO_ALL != _OPEN_TO_ALL})


def _make_temporary(plan: Plan) -> None:
    for path, size in (("/tmp", plan.tmp_bytes), ("/dev/shm", plan.shm_bytes)):  # noqa: S108
        os.makedirs(path)
        kernel.mount("tmpfs", path, "tmpfs", _PLAIN, f"mode=1777,size={size},nr_inodes=1m")
    for path in ("/run/lock", "/var"):
        os.makedirs(path)
    for path, target in _LINKS:
        os.symlink(target, path)


def _show_resolver(own: bytes) -> None:
    """Mount the target of /etc/resolv.conf if it is a link to a file elsewhere.

    Args:
        own: replacement of its content; the node's content if empty.
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


def _open_place(path: str, *, is_directory: bool, devices: AbstractSet[int]) -> int:
    """Open a place for a bind without following links; it is created if missing.

    Another process of the account may replace directories by links meanwhile. So a place is
    created only in the sandbox's own file systems, and mounted upon by its descriptor. Only the
    flags of the new mount are set by its path.

    Args:
        path: absolute and normalised.
        is_directory: a directory, otherwise a file.
        devices: the file systems in which it may be created.

    Raises:
        OSError: a part of the path is a link or not of the expected kind, or it is missing in
            another file system.
    """
    *above, last = path.split("/")[1:]
    here = os.open("/", _NAMED | os.O_DIRECTORY)
    try:
        for name in above:
            here = _enter_place(here, name, devices, is_directory=True)
        return _enter_place(here, last, devices, is_directory=is_directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _enter_place(here: int, name: str, devices: AbstractSet[int], *, is_directory: bool) -> int:
    """Open a name in a directory, and close the directory's descriptor."""
    flags = _NAMED | (os.O_DIRECTORY if is_directory else 0)
    try:
        try:
            found = os.open(name, flags, dir_fd=here)
        except FileNotFoundError:
            if os.fstat(here).st_dev not in devices:
                raise
            _make_place(here, name, is_directory=is_directory)
            found = os.open(name, flags, dir_fd=here)
    finally:
        os.close(here)
    if not is_directory and stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


def _make_place(here: int, name: str, *, is_directory: bool) -> None:
    if is_directory:
        os.mkdir(name, 0o755, dir_fd=here)
        return
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(name, flags, 0o644, dir_fd=here))
