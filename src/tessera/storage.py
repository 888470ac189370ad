"""Storages that jobs mount by name: sources, mount points, and probes of a node.

A source is ``/srv/data``, a directory of the nodes, or ``server:/export``, an export by NFS. Part
of the bundle for nodes: Python 3.8, standard library only.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Iterable, Iterator, List, Optional, Tuple

from tessera.isolation import MAX_PATH_BYTES, is_within, path_problem
from tessera.wire import Fields, Json

MAX_STORAGES = 64
"""Maximum number of storages of a job."""
MAX_SOURCES = 1024
"""Maximum number of sources in a request for probes."""
SYSTEM_DIRECTORIES = frozenset(
    {
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32"),
        *("proc", "root", "run", "sbin", "snap", "sys", "usr", "var"),
    }
)
"""Directories below the root that belong to the system of a node or image."""
_OF_THE_RUN = frozenset({"opt", "tmp", "tessera"})
_PATH = re.compile(r"(/[A-Za-z0-9_@+][A-Za-z0-9._@+-]*)+")
_SERVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:]{2,45}\]")
STORAGE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")

# Causes for which a storage cannot be used on a node
MISSING, NOT_DIRECTORY, LINKED = "missing", "not-a-directory", "reached-by-link"
NOT_MOUNTED, NOT_RESPONDING, RUNNER_DIRECTORY = "not-mounted", "not-responding", "of-the-runner"
DENIED = "permission-denied"


def is_nfs(source: str) -> bool:
    return not source.startswith("/")


def split_nfs(source: str) -> Tuple[str, str]:
    """Return server and export of an NFS source."""
    server, _, export = source.partition(":/")
    return server, f"/{export}"


def source_problem(source: str) -> Optional[str]:
    """Return the reason why a source is not valid, or None."""
    if len(source.encode("utf-8", "replace")) > MAX_PATH_BYTES:
        return f"must have at most {MAX_PATH_BYTES} bytes"
    path = source
    if is_nfs(source):
        server, path = split_nfs(source)
        if ":/" not in source or not _SERVER.fullmatch(server):
            return "must be an absolute path, or server:/export"
    elif path.split("/")[1] in SYSTEM_DIRECTORIES - {"var"}:
        return "must not be a directory of the system"
    if path != "/" and not _PATH.fullmatch(path):
        return "must consist of names of A-Z a-z 0-9 . _ @ + - that do not begin with . or -"
    return None if is_nfs(source) else path_problem(path)


def mount_problem(mount: str) -> Optional[str]:
    """Return the reason why a mount point is not allowed, or None."""
    if len(mount) > MAX_PATH_BYTES or not _PATH.fullmatch(mount):
        return "must be an absolute path without .. and hidden directories, such as /data"
    if mount.split("/")[1] in SYSTEM_DIRECTORIES | _OF_THE_RUN:
        return "must be outside directories of the system and of the job, such as /usr and /tmp"
    return None


def nested_pairs(paths: Iterable[str]) -> Iterator[Tuple[str, str]]:
    """Yield each pair of paths of which the second is the first or is inside of it."""
    found: List[str] = sorted(paths, key=lambda path: path.split("/"))
    for place, outer in enumerate(found):
        for inner in found[place + 1 :]:
            if is_within(inner, outer):
                yield outer, inner


@dataclass(frozen=True)
class StorageMount:
    """A storage of a run, with its place in the job.

    Attributes:
        by_engine: the container engine mounts the NFS export, since the node has not mounted it.
    """

    name: str
    source: str
    mount: str
    writable: bool = False
    by_engine: bool = False

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> StorageMount:
        """Read and check a mount.

        Raises:
            ProtocolError: a field is missing, unknown or of a wrong type, or not valid.
        """
        take = Fields(data, "storage")
        found = cls(
            name=take.text("name", None, 63),
            source=take.text("source", None, MAX_PATH_BYTES),
            mount=take.text("mount", None, MAX_PATH_BYTES),
            writable=take.boolean("writable", default=False),
            by_engine=take.boolean("by_engine", default=False),
        )
        for name, problem in (
            ("source", source_problem(found.source)),
            ("mount", mount_problem(found.mount)),
        ):
            if problem is not None:
                raise take.refuse(name, problem)
        if found.by_engine and not is_nfs(found.source):
            raise take.refuse("by_engine", "must be false for a directory of the node")
        take.finish()
        return found


@dataclass(frozen=True)
class StorageProbe:
    """The probe of one source on a node.

    Attributes:
        source: the source as requested.
        cause: code of the reason why the node cannot use it; empty if it can.
        path: the directory of the node, empty if there is none.
        total_bytes, free_bytes: figures of its file system (of its quota, where the file system
            reports quotas as its size); 0 if unknown.
    """

    source: str
    cause: str = ""
    path: str = ""
    total_bytes: int = 0
    free_bytes: int = 0

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> StorageProbe:
        """Read a probe; unknown fields are ignored.

        Raises:
            ProtocolError: a field is missing or of a wrong type.
        """
        take = Fields(data, "storage")
        return cls(
            source=take.text("source", None, MAX_PATH_BYTES),
            cause=take.text("cause", "", 64),
            path=take.text("path", "", MAX_PATH_BYTES),
            total_bytes=take.integer("total_bytes", 0, 0, 1 << 80),
            free_bytes=take.integer("free_bytes", 0, 0, 1 << 80),
        )
