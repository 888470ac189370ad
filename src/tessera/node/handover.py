"""Hands a job's newest checkpoint on to another node, by way of the control plane.

A job may have put anything in the place of its own checkpoints, links to those of others too: no
link is followed here, and what comes in is only put where nothing is yet.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
from typing import Any, Dict, Optional

from tessera import protocol
from tessera.node import system
from tessera.node.runs import Store
from tessera.protocol import Json, ProtocolError
from tessera.wire import Fields

STATE, MANIFEST = "state", "manifest.json"
VERSION = 1
LONGEST_MANIFEST = 4096
_NAME = re.compile(r"step-(\d{12})(?:-(\d{1,9}))?")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def newest(store: Store, take: Fields) -> Json:
    """The newest checkpoint of a job that has a manifest; its state is not read."""
    found = None
    try:
        folder = os.open(_directory(store, take), _FOLDER)
    except OSError:
        return {"saved": None}
    try:
        names = sorted(
            (_order(name), name) for name in os.listdir(folder) if _NAME.fullmatch(name)
        )
        for _, name in reversed(names):
            found = _manifest(folder, name)
            if found is not None:
                break
    finally:
        os.close(folder)
    return {"saved": found}


def read(store: Store, take: Fields) -> Json:
    """A piece of the state of a checkpoint."""
    directory, name = _directory(store, take), _name(take)
    offset = take.integer("offset", 0, 0, 1 << 62)
    limit = take.integer("limit", protocol.MAX_READ_BYTES, 1, protocol.MAX_READ_BYTES)
    try:
        folder = os.open(directory, _FOLDER)
        try:
            content = _content(folder, name, STATE, offset, limit)
        finally:
            os.close(folder)
    except OSError as error:
        raise ProtocolError("no-checkpoint", f"it cannot be read: {error.strerror}") from error
    return {"data": base64.b64encode(content).decode("ascii")}


def put(store: Store, take: Fields) -> Json:
    """Make an upload that is complete (its hash has been verified) the newest checkpoint."""
    directory, name = _directory(store, take), _name(take)
    sha256 = protocol.check_sha256(take.text("sha256", None, 64))
    step, size = take.integer("step", None, 0, 1 << 62), take.integer("size", None, 0, 1 << 62)
    blob = os.path.join(store.blobs, sha256)
    if not os.path.exists(blob):
        raise ProtocolError("no-blob", "the state was not uploaded")
    manifest = {"version": VERSION, "step": step, "sha256": sha256, "size": size}
    partial = f".{name}.{os.getpid()}.partial"
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        folder = os.open(directory, _FOLDER)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        if _is_there(folder, name):
            return {"put": False}
        os.mkdir(partial, 0o700, dir_fd=folder)
        inner = os.open(partial, _FOLDER, dir_fd=folder)
        try:
            _copy(blob, inner)
            _write(inner, MANIFEST, json.dumps(manifest).encode("ascii"))
            os.fsync(inner)
        finally:
            os.close(inner)
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        shutil.rmtree(os.path.join(directory, partial), ignore_errors=True)
        raise _unwritable(error) from error
    finally:
        os.close(folder)
        system.remove_quietly(blob)
    return {"put": True}


def _directory(store: Store, take: Fields) -> str:
    job_id, installation = take.text("job_id", None, 128), take.text("installation", "", 64)
    return protocol.checkpoints_of(store.root, installation, job_id)


def _name(take: Fields) -> str:
    name = take.text("name", None, 64)
    if not _NAME.fullmatch(name):
        raise take.refuse("name", "is no checkpoint's")
    return name


def _order(name: str) -> "tuple[int, int]":
    found = _NAME.fullmatch(name)
    assert found is not None  # noqa: S101 - the callers have looked
    return int(found.group(1)), int(found.group(2) or 0)


def _manifest(folder: int, name: str) -> Optional[Dict[str, Any]]:
    """What a manifest says, where it is one of ours."""
    try:
        said = json.loads(_content(folder, name, MANIFEST, 0, LONGEST_MANIFEST))
        take = Fields(said, "manifest")
        if take.integer("version", None, 0, 1 << 30) != VERSION:
            return None
        return {
            "name": name,
            "step": take.integer("step", None, 0, 1 << 62),
            "sha256": protocol.check_sha256(take.text("sha256", None, 64)),
            "size": take.integer("size", None, 0, 1 << 62),
        }
    except (OSError, ValueError, RecursionError, ProtocolError):
        return None


def _content(folder: int, name: str, file: str, offset: int, limit: int) -> bytes:
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        descriptor = os.open(file, _FILE, dir_fd=inner)
    finally:
        os.close(inner)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.pread(descriptor, limit, offset) if regular else b""
    finally:
        os.close(descriptor)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _copy(blob: str, inner: int) -> None:
    descriptor = os.open(STATE, _NEW, 0o600, dir_fd=inner)
    with open(blob, "rb") as source, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())


def _write(inner: int, name: str, content: bytes) -> None:
    descriptor = os.open(name, _NEW, 0o600, dir_fd=inner)
    try:
        system.write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(error: OSError) -> ProtocolError:
    words = f"the checkpoint cannot be written: {error.strerror or error}"
    return ProtocolError("not-written", words, protocol.NODE)
