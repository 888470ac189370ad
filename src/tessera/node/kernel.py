"""Linux calls that Python 3.8 lacks: namespaces, mounts, capabilities, keyrings."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import struct
from contextlib import contextmanager
from typing import Iterator, List, Optional, Sequence, Set, Tuple

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_NETLINK_ROUTE, _NLMSG_ERROR, _RTM_NEWROUTE = 0, 2, 24
_NLM_REQUEST, _NLM_ACK, _NLM_REPLACE, _NLM_CREATE = 1, 4, 0x100, 0x400
_RT_TABLE_MAIN, _RTPROT_STATIC, _RTN_PROHIBIT, _RTA_DST = 254, 4, 8, 1
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_NS_GET_USERNS, _NS_GET_NSTYPE, _NS_GET_OWNER_UID = 0xB701, 0xB703, 0xB704
_CLONE3, _MOUNT_SETATTR = 435, 442  # the same on all architectures
_CLONE_INTO_CGROUP = 0x200000000
_MOUNT_ATTRIBUTES = {MS_RDONLY: 1, MS_NOSUID: 2, MS_NODEV: 4, MS_NOEXEC: 8}
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271}
_KEYCTL_JOIN_SESSION_KEYRING = 1
# Flags of a mounted file system that a remount has to repeat: statvfs bit and mount flag
_KEPT_FLAGS = ((1, 1), (2, 2), (4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))

_ESCAPE = re.compile(rb"\\([0-7]{3})")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]
_libc.syscall.restype = ctypes.c_long
_forking = ctypes.PyDLL(None, use_errno=True)  # calls through PyDLL hold the GIL
_forking.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    """Move this process (pid namespace: its next children) into new namespaces."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def fork_into(spaces: int, group: Optional[int] = None) -> int:
    """Fork a child into new namespaces; with ``CLONE_NEWPID`` it is the first process there.

    It saves one fork compared with ``unshare`` and ``os.fork``, and does not change the namespaces
    of this process, which must have only one thread.

    Args:
        spaces: flags of the namespaces, 0 for none.
        group: descriptor of the control group of version 2 that the child is in from its first
            instruction on (Linux 5.7); None for the group of this process.

    Returns:
        As ``os.fork``.
    """
    number = _CLONE.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "clone")
    arguments = (number, spaces | signal.SIGCHLD, 0, 0, 0, 0)
    if group is not None:
        wanted = struct.pack(
            "=11Q", spaces | _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group
        )
        buffer = ctypes.create_string_buffer(wanted, len(wanted))
        arguments = (_CLONE3, ctypes.addressof(buffer), len(wanted), 0, 0, 0)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_forking.syscall(*map(ctypes.c_long, arguments)))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        error = ctypes.get_errno()
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        ctypes.set_errno(error)
    _check(pid, "clone")
    return pid


def raise_loopback(address: str) -> None:
    """Enable the loopback interface of this process's network namespace.

    Args:
        address: a second IPv4 address of the interface, unused by other machines.
    """
    import fcntl  # noqa: PLC0415 - only an own network needs it
    import socket  # noqa: PLC0415

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        request = struct.pack("16sH14x", b"lo", _IFF_UP)
        fcntl.ioctl(control.fileno(), _SIOCSIFFLAGS, request)
        for order, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
            raw = socket.inet_aton(value)
            request = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, raw)
            fcntl.ioctl(control.fileno(), order, request)


def prohibit_routes(networks: Sequence[str]) -> None:
    """Block routes from this process's network namespace to some IPv4 networks.

    Connections fail at once. Only a process that may change the namespace's routes can undo it.

    Args:
        networks: networks in CIDR notation.
    """
    import socket  # noqa: PLC0415 - only an own network needs it

    if not networks:
        return
    orders = []
    for number, network in enumerate(networks, 1):
        address, _, length = network.partition("/")
        route = struct.pack(
            "=8BI", socket.AF_INET, int(length), 0, 0, _RT_TABLE_MAIN, _RTPROT_STATIC, 0,
            _RTN_PROHIBIT, 0,
        )  # fmt: skip
        target = struct.pack("=HH4s", 8, _RTA_DST, socket.inet_aton(address))
        flags = _NLM_REQUEST | _NLM_REPLACE | _NLM_CREATE | _NLM_ACK
        size = 16 + len(route) + len(target)
        head = struct.pack("=IHHII", size, _RTM_NEWROUTE, flags, number, 0)
        orders.append(head + route + target)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE
    ) as line:
        line.bind((0, 0))
        for order, network in zip(orders, networks):  # noqa: B905 - strict came with Python 3.10
            line.send(order)
            _, kind, _, _, _, number = struct.unpack("=IHHIIi", line.recv(4096)[:20])
            if kind != _NLMSG_ERROR or number != 0:
                raise OSError(-number, os.strerror(-number), f"route to {network}")


def open_network(pid: int) -> Tuple[int, ...]:
    """Open the network namespace of a process, to be entered with ``enter_network``.

    For a caller that is not root, the user namespace is opened before it.
    """
    names = ("net",) if os.getuid() == 0 else ("user", "net")
    flags = os.O_RDONLY | os.O_CLOEXEC
    return tuple(os.open(f"/proc/{pid}/ns/{name}", flags) for name in names)


def enter_network(spaces: Sequence[int]) -> None:
    """Enter a network namespace, as root of its user namespace.

    A caller that is not root must have created that user namespace.
    """
    for descriptor in spaces:
        _check(_libc.setns(ctypes.c_int(descriptor), 0), "setns")


@contextmanager
def inside_network(space: int) -> Iterator[None]:
    """Move this process, which must have only one thread, into a network namespace for a block.

    It needs no child, but the rights of root over its own network namespace, too.

    Raises:
        OSError: this process may not enter the namespace, or may not return; it stays outside.
    """
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    kind = ctypes.c_int(CLONE_NEWNET)
    try:
        # The same right as for the return: without it, the process could not leave any more.
        _check(_libc.setns(ctypes.c_int(own), kind), "setns")
        _check(_libc.setns(ctypes.c_int(space), kind), "setns")
        try:
            yield
        finally:
            if _libc.setns(ctypes.c_int(own), kind) < 0:
                os._exit(127)  # this process must not continue in the network of a job
    finally:
        os.close(own)


def join_network(space: int, uid: int) -> None:
    """Enter a user's network namespace, as root of the machine.

    Args:
        space: a descriptor from an untrusted process.
        uid: required owner of the user namespace of the network namespace.

    Raises:
        OSError: the descriptor is not one, or the namespace is another user's.
    """
    import fcntl  # noqa: PLC0415 - only an own network needs it

    # Setns alone would also take the descriptor of a process, which has any network.
    if fcntl.ioctl(space, _NS_GET_NSTYPE) != CLONE_NEWNET:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "network namespace")
    above = fcntl.ioctl(space, _NS_GET_USERNS)
    try:
        (owner,) = struct.unpack("=I", fcntl.ioctl(above, _NS_GET_OWNER_UID, bytes(4)))
    finally:
        os.close(above)
    if owner != uid:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), "network namespace")
    _check(_libc.setns(ctypes.c_int(space), ctypes.c_int(CLONE_NEWNET)), "setns")


def mount(
    source: str, target: str, kind: str = "", flags: int = 0, options: Optional[str] = None
) -> None:
    """Mount a file system, or bind or change a mount, by the flags."""
    encoded = None if options is None else os.fsencode(options)
    done = _libc.mount(os.fsencode(source), os.fsencode(target), os.fsencode(kind), flags, encoded)
    _check(done, f"mount {target}")


def unmount(target: str) -> None:
    """Remove a mount and all below it from this mount namespace."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make ``new`` the root and move the current root to ``old``, which is below it."""
    _check(_libc.pivot_root(os.fsencode(new), os.fsencode(old)), "pivot_root")


def restrict_mount(target: str, flags: int) -> None:
    """Add flags such as ``MS_RDONLY`` to a mount and to all mounts below it."""
    bits = sum(_MOUNT_ATTRIBUTES[flag] for flag in _MOUNT_ATTRIBUTES if flags & flag)
    attributes = struct.pack("=4Q", bits, 0, 0, 0)
    done = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    if done < 0:  # before Linux 5.12
        for place in _mounts_at(target):
            _remount(place, flags)


def _mounts_at(target: str) -> "list[str]":
    # During the creation of a sandbox the old root has the only /proc.
    old = "/.old/proc/self/mountinfo"
    with open(old if os.path.exists(old) else "/proc/self/mountinfo", "rb") as table:
        fields = [line.split()[4] for line in table]
    places = [
        os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), field))
        for field in fields
    ]
    below = target.rstrip("/") + "/"
    return [target, *(place for place in places if place.startswith(below))]


def _remount(target: str, flags: int) -> None:
    present = os.statvfs(target).f_flag
    kept = sum(flag for bit, flag in _KEPT_FLAGS if present & bit)
    mount("none", target, "", MS_REMOUNT | MS_BIND | kept | flags)


def close_others(keep: Set[int]) -> None:
    """Close every descriptor above stderr except ``keep``."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                pass


def handled_signals() -> List[int]:
    """Return the signals that this process catches or ignores."""
    masks = 0
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith((b"SigIgn:", b"SigCgt:")):
                masks |= int(line.split()[1], 16)
    return [number for number in range(1, signal.NSIG) if masks >> (number - 1) & 1]


def set_process(option: int, argument: int) -> None:
    """Set an attribute of this process (prctl)."""
    _check(_libc.prctl(option, argument, 0, 0, 0), f"prctl {option}")


def drop_capability_bounds() -> None:
    """Drop every capability from the bounding set, so that no program regains one."""
    number = 0
    while _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    if number == 0:
        _check(-1, "prctl PR_CAPBSET_DROP")


def drop_capabilities() -> None:
    """Drop all capabilities of this process."""
    _libc.prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, b"\0" * 24), "capset")


def join_new_session_keyring() -> None:
    """Join a new session keyring; no effect on a kernel without keyrings."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(
            ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), ctypes.c_void_p()
        )


def map_identity(inside_uid: int, uid: int, inside_gid: int, gid: int) -> None:
    """Map one user and one group into the new user namespace of this process."""
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inside_uid} {uid} 1")
    _write("/proc/self/gid_map", f"{inside_gid} {gid} 1")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)
