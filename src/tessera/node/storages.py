"""Probes of storages on this node, and their binds for a run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import select
import stat
import time
from typing import Dict, List, NamedTuple, Optional, Sequence

from tessera import protocol, storage
from tessera.isolation import is_within
from tessera.node import kernel, system
from tessera.node.sandbox_root import Bind
from tessera.protocol import ProtocolError, RunSpec
from tessera.storage import StorageMount, StorageProbe

PROBE_SECONDS = 5.0
AT_ONCE = 32
"""Maximum number of sources that a probe checks concurrently, each in a separate process."""
LOCKS_DIR = "storage-probes"
_OF_RUNS = ".run"
NOT_USABLE = "storage-not-usable"
_MOUNTS = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_CAUSES = {
    errno.ENOENT: storage.MISSING,
    errno.ENOTDIR: storage.NOT_DIRECTORY,
    errno.EACCES: storage.DENIED,
    errno.EPERM: storage.DENIED,
}
_NO_DIRECTORY = "is not a directory of this node"
_PROBLEMS = {
    "": "",
    storage.LINKED: "is reached by a symbolic link",
    storage.RUNNER_DIRECTORY: "is in the runner's directory",
    storage.NOT_RESPONDING: "does not respond",
}


class _Asked(NamedTuple):
    """A process that checks one directory, and the descriptor of its result."""

    source: str
    path: str
    pid: int
    descriptor: int


def probe(root: str, sources: Sequence[str], seconds: float = PROBE_SECONDS) -> List[StorageProbe]:
    """Check sources, each in a separate process, since an NFS server may not respond for hours.

    A hanging process holds a lock, so that no second one checks the same source.

    Args:
        root: the node's directory ``~/.tessera``.
        sources: directories of the node, or exports of NFS.
        seconds: the longest wait for ``AT_ONCE`` of them.
    """
    mounted = mounted_exports(system.read_text(_MOUNTS))
    paths = {
        source: mounted.get(source, "") if storage.is_nfs(source) else source for source in sources
    }
    found = {
        source: StorageProbe(source, storage.NOT_RESPONDING if path else storage.NOT_MOUNTED, path)
        for source, path in paths.items()
    }
    known = [source for source, path in paths.items() if path]
    for begin in range(0, len(known), AT_ONCE):
        asked = [
            _ask(root, source, paths[source], _lock_of(root, source))
            for source in known[begin : begin + AT_ONCE]
        ]
        until = time.monotonic() + seconds
        found.update(_answers([one for one in asked if one is not None], until))
    return [found[source] for source in sources]


def _lock_of(root: str, source: str) -> str:
    """Return the path of the lock of a source; creates its directory."""
    locks = os.path.join(root, LOCKS_DIR)
    os.makedirs(locks, mode=0o700, exist_ok=True)
    return os.path.join(locks, hashlib.sha256(os.fsencode(source)).hexdigest()[:32])


def mounted_exports(mountinfo: str) -> Dict[str, str]:
    """Return the directory of each mounted NFS export, from the kernel's table of mounts.

    A mount of one of its subdirectories, such as a bind mount, is not the export.
    """
    found: Dict[str, str] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, types = before.split(" "), after.split(" ")
        is_whole = len(words) > 4 and words[3] == "/"
        if is_whole and len(types) > 1 and types[0] in ("nfs", "nfs4"):
            server, export = storage.split_nfs(_plain(types[1]))
            found.setdefault(f"{server}:/{export.strip('/')}", _plain(words[4]))
    return found


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)


def _ask(root: str, source: str, path: str, lock: str, until: float = 0.0) -> Optional[_Asked]:
    """Fork a process that checks a path; return None if an earlier one still runs at ``until``."""
    held = system.lock_by(lock, until)
    if held < 0:
        return None
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        for descriptor in (reader, writer, held):
            os.close(descriptor)
        raise
    if pid:
        os.close(writer)
        os.close(held)  # the process holds the lock until it ends
        return _Asked(source, path, pid, reader)
    try:
        kernel.close_others({writer, held})
        found = _look(root, source, path)
        system.write_all(writer, json.dumps(found.to_json()).encode("ascii"))
    finally:
        os._exit(0)


def _look(root: str, source: str, path: str) -> StorageProbe:
    if os.path.realpath(path) != path:
        cause = storage.LINKED if os.path.lexists(path) else storage.MISSING
        return StorageProbe(source, cause)
    if is_within(path, os.path.realpath(root)):
        return StorageProbe(source, storage.RUNNER_DIRECTORY)
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return StorageProbe(source, storage.NOT_DIRECTORY)
        figures = os.statvfs(path)
    except OSError as error:
        return StorageProbe(source, _CAUSES.get(error.errno or 0, storage.MISSING))
    return StorageProbe(
        source,
        path=path,
        total_bytes=figures.f_blocks * figures.f_frsize,
        free_bytes=figures.f_bavail * figures.f_frsize,
    )


def _answers(asked: Sequence[_Asked], until: float) -> Dict[str, StorageProbe]:
    found: Dict[str, StorageProbe] = {}
    waiting = {one.descriptor: one for one in asked}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting:
        left = max(until - time.monotonic(), 0.0)
        ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
        for descriptor in ready or list(waiting):
            one = waiting.pop(descriptor)
            poll.unregister(descriptor)
            text = system.read_all(descriptor, 1 << 16) if ready else b""
            if text:
                os.waitpid(one.pid, 0)
            elif not ready:
                os.close(descriptor)
            found[one.source] = (
                StorageProbe.from_json(json.loads(text))
                if text
                else StorageProbe(one.source, storage.NOT_RESPONDING, one.path)
            )
    return found


# -- runs ----------------------------------------------------------------------------------------


def binds_of(root: str, spec: RunSpec, seconds: float = PROBE_SECONDS) -> List[Bind]:
    """Return the binds of a run's storages, apart from those that the engine mounts.

    Args:
        root: the node's directory ``~/.tessera``.
        spec: spec of the run.
        seconds: the longest wait for all of them.

    Raises:
        ProtocolError: a storage is missing, is reached by a link, is the runner's, or does not
            respond.
    """
    mounted = mounted_exports(system.read_text(_MOUNTS)) if spec.storage else {}
    mounts = [one for one in spec.storage if not one.by_engine]
    paths = {
        one.source: mounted.get(one.source, "") if storage.is_nfs(one.source) else one.source
        for one in mounts
    }
    until = time.monotonic() + seconds
    asked = [
        # A separate lock: probes would find their own lock in use and report a fault.
        _ask(root, source, path, _lock_of(root, source) + _OF_RUNS, until)
        for source, path in paths.items()
        if path
    ]
    found = _answers([one for one in asked if one is not None], until)
    for one in mounts:
        _check(one, paths[one.source], found.get(one.source))
    return [Bind(paths[one.source], one.mount, one.writable, is_exact=True) for one in mounts]


def _check(one: StorageMount, path: str, found: Optional[StorageProbe]) -> None:
    cause = storage.NOT_RESPONDING if found is None else found.cause
    problem = _PROBLEMS.get(cause, _NO_DIRECTORY) if path else _NO_DIRECTORY
    if problem:
        message = f"storage {one.name}: {path or one.source} {problem}"
        raise ProtocolError(NOT_USABLE, message, protocol.NODE)


def check_places(binds: Sequence[Bind], spec: RunSpec) -> None:
    """Check that no other bind of the run is in a storage, or has one in it.

    Raises:
        ProtocolError: a mount point conflicts with a visible path of the node.
    """
    for one in spec.storage:
        for bind in binds:
            if is_within(bind.target, one.mount) or is_within(one.mount, bind.target):
                message = f"storage {one.name}: {one.mount} conflicts with visible path"
                raise ProtocolError(
                    NOT_USABLE,
                    f"{message} {bind.target} of the node; use another mount point",
                    protocol.USER,
                )
