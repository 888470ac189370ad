"""Uploads to a node in pieces: archives with the source of a job, and states of checkpoints."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import time
from typing import Optional

from tessera import protocol
from tessera.node import checkpoints, system
from tessera.node.background import SessionPort
from tessera.node.runs import Store
from tessera.protocol import Json, ProtocolError
from tessera.wire import Fields

UNUSED_SECONDS = 3 * 86_400


def receive(session: SessionPort, number: int, take: Fields) -> Optional[Json]:
    """Store a piece of an upload; without data, return its size.

    With ``job_id`` it is a checkpoint's state, separate from other uploads of the job.

    Returns:
        The reply; None if a child verifies the complete upload and replies.
    """
    sha256 = protocol.check_sha256(take.text("sha256", None, 64))
    job_id, installation = take.text("job_id", "", 128), take.text("installation", "", 64)
    name = checkpoints.upload_name(installation, job_id, sha256) if job_id else sha256
    path = os.path.join(session.store.blobs, name)
    if os.path.exists(path):
        os.utime(path)
        return {"have": os.stat(path).st_size, "complete": True}
    have = _size(path + ".part")
    data = take.text("data", "", protocol.MAX_LINE_BYTES)
    if data:
        if take.integer("offset", None, 0, 1 << 50) != have:
            return {"have": have, "complete": False}
        have = _append(path + ".part", data)
    if not take.boolean("last", default=False):
        return {"have": have, "complete": False}
    session.work(number, lambda: _complete(path, sha256), lambda _outcome: None)
    return None


def remove_old(store: Store) -> None:
    """Remove uploads that no run has used recently."""
    for name in os.listdir(store.blobs):
        path = os.path.join(store.blobs, name)
        if time.time() - os.stat(path).st_mtime > UNUSED_SECONDS:
            system.remove_quietly(path)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _append(path: str, data: str) -> int:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("bad-field", "blob.data: must be base64") from None
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.SAFE_OPEN
    descriptor = os.open(path, flags, 0o600)
    try:
        system.write_all(descriptor, content)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _complete(path: str, sha256: str) -> Json:
    """Verify an upload and move it to its path; two members with the same archive may race."""
    digest = hashlib.sha256()
    try:
        with open(path + ".part", "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
        if digest.hexdigest() == sha256:
            os.rename(path + ".part", path)
    except FileNotFoundError:
        if not os.path.exists(path):
            raise ProtocolError("no-blob", "no data was uploaded") from None
    else:
        if digest.hexdigest() != sha256:
            system.remove_quietly(path + ".part")
            raise ProtocolError("bad-blob", "the upload does not have this SHA-256; send it again")
    return {"have": os.stat(path).st_size, "complete": True}
