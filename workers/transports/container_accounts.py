"""The account of a job in the files of its container.

A job in a container runs as the node's user, whom no image knows. Programs that look their user
up (``getpwuid``) fail there, so the user gets an entry before the container starts.
"""

import io
import logging
import re
import tarfile
from collections.abc import Iterable
from typing import Final

import docker
import docker.errors

from tessera import protocol
from workers.transports.base import PrepareError

log = logging.getLogger(__name__)

MOST_BYTES: Final = 1 << 20
"""Account files of an image that are larger stay as they are."""
_IS_ID: Final = re.compile(r"[1-9][0-9]{0,8}")
"""A user id that is not 0, and that no program reads as a negative number."""


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
        archive = archive_of(path, content + separator + entry.encode("ascii"))
        try:
            engine.put_archive(container, "/", archive)
        except docker.errors.APIError as error:
            # Most jobs run without the entry, too.
            log.warning("%s has no account in /%s: %s", container, path, error.explanation)


def check_own_user(engine: docker.APIClient, container: str, image: str) -> None:
    """Check that the own user of an image is certainly not root of the node.

    Images come from users, and the engine looks the user up in the account file of the image: also
    a number, and a malformed id becomes 0. So every entry that it may choose is checked, and an
    account file that cannot be read is refused.

    Args:
        engine: the engine, whose root is that of the node.
        container: a container of the image that has not started.
        image: name of the image for the message.

    Raises:
        PrepareError: the user is, or may be, root.
    """
    user = str(engine.inspect_container(container)["Config"].get("User") or "").partition(":")[0]
    content = _read(engine, container, "/etc/passwd")
    lines = [line.strip().split(b":") for line in (content or b"").splitlines()]
    ids = [line[2] if len(line) > 2 else b"" for line in lines if line[0] == user.encode()]
    if _IS_ID.fullmatch(user):
        ids.append(user.encode())
    if content is not None and ids and all(_IS_ID.fullmatch(one.decode("latin-1")) for one in ids):
        return
    raise PrepareError(
        "image-needs-root",
        f"the user of {image} is root or unknown, and the node's container engine has root rights."
        " Omit container.user, use an image with another user, or ask an admin for a rootless"
        " engine",
        protocol.USER,
    )


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


def archive_of(path: str, content: bytes) -> bytes:
    """Return an archive of one file that ends with its end mark.

    ``tarfile`` fills the last record with zeros. Podman stops to read at the end mark, and fails
    with a broken pipe if it gets more.
    """
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o644
    padding = -len(content) % tarfile.BLOCKSIZE
    return entry.tobuf() + content + bytes(padding + 2 * tarfile.BLOCKSIZE)
