"""Operating system utilities: clocks, processes, and atomically written files."""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import signal
import socket
import stat
import sys
import time
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set

from tessera import protocol
from tessera.protocol import Json

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NOT_RUNNING = "ZXx"
_LOCK_PAUSE = 0.02
SAFE_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_TEXT = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_FALLOC_FL_KEEP_SIZE = 1
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@functools.lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of the machine; empty if unknown."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def boot_clock() -> float:
    """Return the seconds since boot, suspended time included; the clock of leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def hostname() -> str:
    """Return the machine's own name."""
    return socket.gethostname()[:255] or "localhost"


def python_version() -> str:
    """Return the version of the interpreter; ``platform`` would load much more."""
    return ".".join(str(part) for part in sys.version_info[:3])


def which(name: str, places: Iterable[str]) -> str:
    """Return the path of a program in the first of these directories that has it, or empty."""
    for place in places:
        path = os.path.join(place, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def prctl(option: int, argument: int) -> bool:
    """Set an attribute of this process; False if the kernel refuses."""
    try:
        return bool(_libc.prctl(option, argument, 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def name_process(name: str) -> None:
    """Show ``name`` in ps and top (at most 15 bytes)."""
    buffer = ctypes.create_string_buffer(name.encode("ascii")[:15])
    prctl(PR_SET_NAME, ctypes.addressof(buffer))


def read_text(path: str) -> str:
    """Read a small text file of the kernel; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    return read_all(descriptor, _MOST_TEXT).decode("utf-8", "replace")


def write_text(path: str, text: str) -> None:
    """Write to an existing file of the kernel.

    Raises:
        OSError: the kernel refuses it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def open_regular(
    path: str,
    *,
    write: bool = False,
    any_owner: bool = False,
    dir_fd: Optional[int] = None,
) -> int:
    """Open a file that a job could have replaced; never waits, follows no link.

    Args:
        path: the file.
        write: open it for reading and writing.
        any_owner: accept a file of another account, for files that jobs write themselves.
        dir_fd: directory that a relative path starts from.

    Raises:
        OSError: the file is missing, is not a regular file, or has another owner.
    """
    flags = (os.O_RDWR if write else os.O_RDONLY) | SAFE_OPEN
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and (any_owner or found.st_uid == os.geteuid()):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, "not a regular file of this account")


def read_file(path: str, most: int = _MOST_TEXT, *, any_owner: bool = False) -> bytes:
    """Read a small file that a job could have replaced.

    Returns:
        The content; empty if the file is missing, larger than ``most`` bytes, not a regular
        file, or owned by another account.
    """
    try:
        descriptor = open_regular(path, any_owner=any_owner)
    except OSError:
        return b""
    content = read_all(descriptor, most + 1)
    return content if len(content) <= most else b""


def regular_size(path: str) -> Optional[int]:
    """Return the size of a regular file in bytes; None for anything else, links included."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def allocate(descriptor: int, size: int) -> None:
    """Allocate the first ``size`` bytes of a file on disk; its length remains unchanged.

    Raises:
        OSError: the disk has no room, or the file system cannot do this.
    """
    if _libc.fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, 0, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def allocated_bytes(descriptor: int) -> int:
    """Return the bytes that a file has on disk, those behind its end included."""
    return os.fstat(descriptor).st_blocks * 512


def read_all(descriptor: int, most: int) -> bytes:
    """Read up to ``most`` bytes of an open file and close it; empty on failure.

    Cheaper than a file object, and small files are read often.
    """
    pieces = []
    try:
        while most > 0:
            piece = os.read(descriptor, min(most, 1 << 16))
            if not piece:
                break
            pieces.append(piece)
            most -= len(piece)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return b"".join(pieces)


def read_json(path: str, most: int = 4 << 20, *, any_owner: bool = False) -> Optional[Json]:
    """Read a JSON object from a regular file of at most ``most`` bytes; None if that fails."""
    try:
        found = json.loads(read_file(path, most, any_owner=any_owner))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_all(descriptor: int, content: bytes) -> None:
    """Write everything, in as many calls as needed."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def write_new(path: str, content: bytes) -> None:
    """Create a private file that must not exist, following no link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def replace_file(path: str, content: bytes, *, durable: bool = False, mode: int = 0o600) -> None:
    """Replace a file atomically: a reader gets the old or the new content.

    Args:
        path: the file.
        content: the new content.
        durable: survive a power cut (the file and its directory are synchronised).
        mode: mode of the file; a job may run as another user than the one that writes this.
    """
    folder, name = os.path.split(path)
    temporary = f"{name}.{os.getpid()}.tmp"
    # A job may have replaced the directory by a link, or put a pipe in place of the file.
    inner = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | SAFE_OPEN
        descriptor = os.open(temporary, flags, 0o600, dir_fd=inner)
        try:
            try:
                if mode != 0o600:
                    os.fchmod(descriptor, mode)
                write_all(descriptor, content)
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, name, src_dir_fd=inner, dst_dir_fd=inner)
            if durable:
                os.fsync(inner)
        except OSError:
            remove_quietly(temporary, dir_fd=inner)
            raise
    finally:
        os.close(inner)


def sync_directory(path: str) -> None:
    """Flush the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_quietly(path: str, *, dir_fd: Optional[int] = None) -> None:
    try:
        os.unlink(path, dir_fd=dir_fd)
    except OSError:
        pass


class Process(NamedTuple):
    """An entry of the process table.

    Attributes:
        start: start time in clock ticks since boot; with the pid it identifies a process.
        ticks: processor time used by it and by the children it has reaped.
        rss: resident memory in bytes.
    """

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    ticks: int
    start: int
    rss: int


def process(pid: int) -> Optional[Process]:
    """Return one process, or None if it is gone or a zombie."""
    found = entry(pid)
    return None if found is None or found.state in _NOT_RUNNING else found


def entry(pid: int) -> Optional[Process]:
    """Return an entry of the process table, also of a zombie; None if the process is gone."""
    try:
        line = read_all(os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC), 4096)
    except OSError:
        return None
    if b")" not in line:
        return None
    fields = line[line.rindex(b")") + 2 :].split()
    state = fields[0].decode("ascii")
    ppid, pgid, sid = int(fields[1]), int(fields[2]), int(fields[3])
    ticks = sum(int(value) for value in fields[11:15])
    return Process(
        pid, state, ppid, pgid, sid, ticks, int(fields[19]), int(fields[21]) * PAGE_BYTES
    )


def processes() -> Iterator[Process]:
    """Yield every process that is not a zombie."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process(int(name))
            if found is not None:
                yield found


def start_ticks(pid: int) -> Optional[int]:
    """Start of a live process, in clock ticks since boot."""
    found = process(pid)
    return None if found is None else found.start


def children() -> Optional[Set[int]]:
    """Return the children of this one-thread process; None if the kernel does not list them.

    It reads one small file; ``descendants`` reads a file for each process of the machine.
    """
    path = f"/proc/self/task/{os.getpid()}/children"
    if not os.path.exists(path):
        return None
    return {int(pid) for pid in read_text(path).split()}


def descendants(roots: Set[int], table: Optional[List[Process]] = None) -> List[Process]:
    """Return all live processes below ``roots``, without the roots."""
    children: Dict[int, List[Process]] = {}
    for found in processes() if table is None else table:
        children.setdefault(found.ppid, []).append(found)
    below: List[Process] = []
    waiting = list(roots)
    while waiting:
        for found in children.pop(waiting.pop(), ()):
            below.append(found)
            waiting.append(found.pid)
    return below


def environment_of(pid: int) -> bytes:
    """Return the environment a process was started with; empty when it may not be read."""
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    return read_all(descriptor, 4 << 20)


def kill_quietly(pid: int, number: int) -> None:
    """Send a signal to a process (or, negative, a group) that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def reap(pid: int, seconds: float) -> bool:
    """Wait for the end of a child for some seconds; False if the kernel cannot end it yet."""
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(0.05, 2 * pause)


def lock_by(path: str, end: float) -> int:
    """Lock a file by an instant of the monotonic clock; -1 if another process still holds it."""
    import fcntl  # noqa: PLC0415 - costs start-up time that only this path needs

    lock = os.open(path, os.O_RDWR | os.O_CREAT | SAFE_OPEN, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= end:
                os.close(lock)
                return -1
            time.sleep(_LOCK_PAUSE)
        else:
            return lock


def default_signals() -> None:
    """Restore the default signal handling for a job, since Python ignores some signals."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def redirect_standard_streams() -> None:
    """Detach from the caller's streams: nothing to read, output and errors discarded."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def notify(root: str, run_id: str) -> None:
    """Notify every server of this machine of a change of a run."""
    directory = os.path.join(root, protocol.NOTIFY_DIR)
    mine = hostname() + "."
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        if name.startswith(mine) and not name.endswith(".tmp"):
            _notify_one(os.path.join(directory, name), run_id)


def _notify_one(path: str, run_id: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        remove_quietly(path)  # the pipe has no reader: its server has ended
        return
    try:
        os.write(descriptor, run_id.encode("ascii") + b"\n")
    except OSError:
        pass  # the pipe is full: the server then checks all runs
    finally:
        os.close(descriptor)
