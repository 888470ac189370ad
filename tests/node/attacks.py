"""A hostile job: tries to reach everything of another tenant's job and of its node.

    python3 attacks.py KNOWLEDGE.json

KNOWLEDGE holds paths and process ids of the node, as an attacker could guess them. One line of
JSON on standard output names the attacks that have succeeded.
"""

import ctypes
import json
import os
import signal
import socket
import stat
import sys

NAMES = (*("secret", "log", "environ", "checkpoint", "code", "temporary", "shm", "portal-key"),)
MARKERS = {name: f"{name}-of-bob".encode() for name in NAMES}  # not in this file as they are
FILL_BYTES = 192 << 20
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
_SKIPPED = ("/proc", "/sys", "/usr", "/etc", "/opt", "/dev/pts", "/tessera/node.pyz")
_LARGEST = 1 << 20
_DEEPEST = 60  # os.walk recurses, and other tests make trees of 100,000 levels
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Try everything; what has worked is printed."""
    with open(sys.argv[1], encoding="utf-8") as file:
        known = json.load(file)
    done = {f"read-{name}" for name in find_markers(known["places"])}
    for name, attempt in ATTEMPTS.items():
        try:
            if attempt(known):
                done.add(name)
        except (OSError, ValueError, LookupError):
            continue
    print(json.dumps(sorted(done)), flush=True)


def find_markers(places: "list[str]") -> "set[str]":
    """Read every file that can be reached from the root, the places, and other processes."""
    found: set[str] = set()
    for top in places:
        for folder, names, files in os.walk(top):
            names[:] = [
                name
                for name in names
                if folder.count("/") < _DEEPEST
                and not os.path.join(folder, name).startswith(_SKIPPED)
            ]
            for name in files:
                found |= markers_in(os.path.join(folder, name))
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            for file in ("environ", "cmdline"):
                found |= markers_in(f"/proc/{name}/{file}", any_kind=True)
    return found


def markers_in(path: str, *, any_kind: bool = False) -> "set[str]":
    """The names of the markers that a file holds, none if it cannot be read."""
    try:
        seen = os.lstat(path)
        if not any_kind and (not stat.S_ISREG(seen.st_mode) or seen.st_size > _LARGEST):
            return set()
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            content = os.read(descriptor, _LARGEST)
        finally:
            os.close(descriptor)
    except OSError:
        return set()
    return {name for name, marker in MARKERS.items() if marker in content}


def send_signal(known: dict) -> bool:
    """Signal the victim's processes by their ids on the node."""
    return any(signalled(pid) for pid in known["pids"])


def signalled(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGUSR1)
    except OSError:
        return False
    return True


def trace(known: dict) -> bool:
    """Attach to the victim as a debugger does."""
    for pid in known["pids"]:
        if libc.ptrace(PTRACE_ATTACH, pid, None, None) == 0:
            os.waitpid(pid, 0x40000000)
            libc.ptrace(PTRACE_DETACH, pid, None, None)
            return True
    return False


def forge(name: str):
    """Append to a file of the victim's run or of the node."""

    def attempt(known: dict) -> bool:
        path = known[name]
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, known.get("forged", "forged\n").encode())
        os.close(descriptor)
        return True

    return attempt


def send_report(known: dict) -> bool:
    """Send a report to the victim's log writer, with its token or a guess."""
    token = b"0" * 32
    try:
        with open(known["token"], "rb") as file:
            token = file.read()
    except OSError:
        pass
    folder, name = os.path.split(known["socket"])
    directory = os.open(folder, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect(f"/proc/self/fd/{directory}/{name}")
        line.send(token + b" " + known["forged"].encode())
    return True


def replace(kind: str):
    """Put something else in place of a file of the victim's log."""

    def attempt(known: dict) -> bool:
        path = f"{known['log_directory']}/{kind}"
        make = {
            "fifo": lambda: os.mkfifo(path),
            "link": lambda: os.symlink("/etc/passwd", path),
            "directory": lambda: os.mkdir(path),
            "device": lambda: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3)),
            "socket": lambda: socket.socket(socket.AF_UNIX).bind(path),
        }[kind]
        make()
        return os.path.lexists(path)

    return attempt


def fill(folder: str):
    """Write more to a shared directory than one tenant may have."""

    def attempt(_known: dict) -> bool:
        path = f"{folder}/fill-{os.getpid()}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            written = 0
            while written < FILL_BYTES:
                written += os.write(descriptor, bytes(1 << 20))
        finally:
            os.close(descriptor)
            os.unlink(path)
        return True

    return attempt


def connect(name: str):
    """Connect to a socket of the node."""

    def attempt(known: dict) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            line.connect(known[name])
        return True

    return attempt


def attach_shared_memory(known: dict) -> bool:
    """Find the victim's segment of System V shared memory."""
    return libc.shmget(known["segment"], 0, 0) >= 0


def undo_mounts(known: dict) -> bool:
    """Unmount what covers the node's own directories, in this and in a new user namespace."""
    if not known["is_isolated"]:
        return True  # nothing covers them
    for flags in (0, 0x10000000 | 0x00020000):
        if flags and libc.unshare(flags) != 0:
            continue
        for place in ("/tessera/secrets", "/tmp", "/proc", "/sys/fs/cgroup", "/"):
            if libc.umount2(place.encode(), 2) == 0:
                return True
        if libc.mount(b"none", b"/", b"", 4096 | 32, None) == 0:
            return os.access("/", os.W_OK) and _can_create("/tessera-was-here")
    return False


def _can_create(path: str) -> bool:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(path)
    return True


def gain_root(_known: dict) -> bool:
    """Run a program with a setuid bit and see whether it has other rights."""
    for program in ("/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount", "/usr/bin/newgrp"):
        if os.path.exists(program):
            with open("/proc/self/status", encoding="ascii") as file:
                return "NoNewPrivs:\t0" in file.read()
    return False


ATTEMPTS = {
    "signal": send_signal,
    "ptrace": trace,
    "forge-log": forge("log"),
    "forge-report": forge("reports"),
    "forge-stored-report": forge("stored"),
    "send-report": send_report,
    "forge-state": forge("state"),
    "forge-bundle": forge("bundle"),
    "forge-declaration": forge("declaration"),
    **{
        f"replace-log-by-{kind}": replace(kind) for kind in ("fifo", "link", "directory", "socket")
    },
    "replace-log-by-device": replace("device"),
    "fill-tmp": fill("/tmp"),
    "fill-shm": fill("/dev/shm"),
    "reach-engine": connect("engine"),
    "reach-agent": connect("agent"),
    "shared-memory": attach_shared_memory,
    "undo-mounts": undo_mounts,
    "gain-root": gain_root,
}

if __name__ == "__main__":
    main()
