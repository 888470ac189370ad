"""The account of a job in the files of its container.

A job in a container runs as the node's user, whom no image knows. Programs that look their user
up (``getpwuid``) fail there, so the user gets an entry before the container starts.
"""

import io
import logging
import tarfile
from collections.abc import Iterable
from typing import Final

import docker
import docker.errors

from tessera import protocol

log = logging.getLogger(__name__)

MOST_BYTES: Final = 1 << 20
"""Account files of an image that are larger stay as they are."""


def add_account(engine: docker.APIClient, container: str, uid: int, gid: int) -> None:
    """Add user and group of a job to a container that has not started; known ids are unchanged."""
    account = protocol.CONTAINER_ACCOUNT
    for path, number, entry in (
        ("etc/passwd", uid, f"{account}:x:{uid}:{gid}::{protocol.CONTAINER_HOME}:/bin/sh\n"),
        ("etc/group", gid, f"{account}:x:{gid}:\n"),
    ):
        content = _read(engine, container, f"/{path}")
        if content is None or _has_id(content, number):
            continue
        separator = b"" if not content or content.endswith(b"\n") else b"\n"
        archive = _archive(path, content + separator + entry.encode("ascii"))
        try:
            engine.put_archive(container, "/", archive)
        except docker.errors.APIError as error:
            # Most jobs run without the entry, too.
            log.warning("%s has no account in /%s: %s", container, path, error.explanation)


def _has_id(content: bytes, number: int) -> bool:
    """Return whether an account file has an entry with this id, its third field."""
    wanted = str(number).encode("ascii")
    return any(line.split(b":")[2:3] == [wanted] for line in content.splitlines())


def _read(engine: docker.APIClient, container: str, path: str) -> bytes | None:
    """Return a file's content, empty if it is missing; None if it is not a small regular file."""
    try:
        chunks, _ = engine.get_archive(container, path)
    except docker.errors.NotFound:
        return b""
    received = _bounded(chunks)
    if received is None:
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(received)) as archive:
            member = archive.next()
            file = archive.extractfile(member) if member is not None and member.isreg() else None
            return None if file is None else file.read()
    except tarfile.TarError:
        return None


def _bounded(chunks: Iterable[bytes]) -> bytes | None:
    """Join the chunks of an image's file; None if they are too many."""
    received = bytearray()
    for chunk in chunks:
        received += chunk
        if len(received) > MOST_BYTES:
            return None
    return bytes(received)


def _archive(path: str, content: bytes) -> bytes:
    """Return an archive of one file that ends with its end mark.

    ``tarfile`` fills the last record with zeros. Podman stops to read at the end mark, and fails
    with a broken pipe if it gets more.
    """
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o644
    padding = -len(content) % tarfile.BLOCKSIZE
    return entry.tobuf() + content + bytes(padding + 2 * tarfile.BLOCKSIZE)
