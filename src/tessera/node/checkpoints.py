"""Checkpoints of jobs on a node: copy of the newest to another node, and removal of old ones.

The control plane copies checkpoints between nodes. A job may have replaced its checkpoints by
other files or by links to checkpoints of others. Therefore links are not followed, and received
state never replaces existing files.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import json
import os
import re
from typing import Any, Dict, Iterator, Optional, Set

from tessera import protocol
from tessera.node import removal, system
from tessera.node.directories import changed_at, names_in
from tessera.node.runs import Store
from tessera.protocol import Json, ProtocolError
from tessera.wire import Fields

STATE, MANIFEST = "state", "manifest.json"
VERSION = 1
LONGEST_MANIFEST = 4096
MOST_LOOKED_AT = 64
"""Maximum number of checkpoints to read, the newest first; a job may have created any number of
names."""
MOST_NAMES = 4096
"""Limit of names read from a job's directory; names beyond it are not found."""
KEPT_SECONDS = 7 * 86_400
"""Time for a job's next attempt, or for its owner to fetch the results."""
REMOVAL_SECONDS = 5.0
_NAME = re.compile(r"step-([0-9]{12})(?:-([0-9]{1,9}))?")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


# -- transfer ------------------------------------------------------------------------------------


def newest(store: Store, take: Fields) -> Json:
    """Return a job's newest checkpoint with a manifest; its state is not read.

    With ``before``, the name of a checkpoint, only older ones count.
    """
    before = take.text("before", "", 64)
    if before and not _NAME.fullmatch(before):
        raise take.refuse("before", "is not the name of a checkpoint")
    last = _order(before) if before else None
    found = None
    try:
        folder = os.open(_directory(store, take), _FOLDER)
    except OSError:
        return {"saved": None}
    try:
        for order, name in reversed(_names(folder)[-MOST_LOOKED_AT:]):
            if last is not None and order >= last:
                continue
            found = _manifest(folder, name)
            if found is not None:
                break
    finally:
        os.close(folder)
    return {"saved": found}


def read(store: Store, take: Fields) -> Json:
    """Return a piece of the state of a checkpoint."""
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


def upload_name(installation: str, job_id: str, sha256: str) -> str:
    """Return the name of a checkpoint's upload: distinct for each job and from archives."""
    words = "\0".join((installation, job_id, sha256))
    return "saved-" + hashlib.sha256(words.encode("utf-8")).hexdigest()


def put(store: Store, take: Fields) -> Json:
    """Turn a complete upload (its hash has been verified) into a checkpoint.

    Existing checkpoints are not replaced: if another state has the name, this one gets the next
    name. The upload is moved, not copied, so that the disk stores it once.
    """
    (installation, job_id), name = _owner(take), _name(take)
    directory = protocol.checkpoints_of(store.root, installation, job_id)
    sha256 = protocol.check_sha256(take.text("sha256", None, 64))
    step, size = take.integer("step", None, 0, 1 << 62), take.integer("size", None, 0, 1 << 62)
    blob = os.path.join(store.blobs, upload_name(installation, job_id, sha256))
    if not os.path.exists(blob):
        raise ProtocolError("no-blob", "the state was not uploaded")
    if os.stat(blob).st_size != size:
        system.remove_quietly(blob)
        raise ProtocolError("bad-blob", "the state is not as long as its manifest says")
    manifest = {"version": VERSION, "step": step, "sha256": sha256, "size": size}
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        folder = os.open(directory, _FOLDER)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        same_step = [one for order, one in _names(folder) if order[0] == _order(name)[0]]
        if any(_says_so(folder, one, sha256) for one in same_step):
            return {"put": False}
        free = _free_name(name, same_step)
        partial = f".{free}.{os.getpid()}.partial"
        try:
            _put_whole(folder, partial, blob, json.dumps(manifest).encode("ascii"))
            os.rename(partial, free, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError:
            removal.remove_tree(os.path.join(directory, partial), REMOVAL_SECONDS)
            raise
    except OSError as error:
        raise _unwritable(error) from error
    finally:
        os.close(folder)
        system.remove_quietly(blob)
    return {"put": True}


def _owner(take: Fields) -> "tuple[str, str]":
    return take.text("installation", "", 64), take.text("job_id", None, 128)


def _directory(store: Store, take: Fields) -> str:
    installation, job_id = _owner(take)
    return protocol.checkpoints_of(store.root, installation, job_id)


def _name(take: Fields) -> str:
    name = take.text("name", None, 64)
    if not _NAME.fullmatch(name):
        raise take.refuse("name", "is not the name of a checkpoint")
    return name


def _names(folder: int) -> "list[tuple[tuple[int, int], str]]":
    """Return checkpoints by name, the oldest first; at most ``MOST_NAMES`` entries."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
    return sorted((_order(name), name) for name in names if _NAME.fullmatch(name))


def _free_name(name: str, same_step: "list[str]") -> str:
    """Return the name, or one for the same step that counts as newer than all existing ones."""
    if not same_step:
        return name
    step, number = max(_order(one) for one in same_step)
    return f"step-{step:012d}-{number + 1}"


def _order(name: str) -> "tuple[int, int]":
    found = _NAME.fullmatch(name)
    assert found is not None  # noqa: S101 - the callers have looked
    return int(found.group(1)), int(found.group(2) or 0)


def _manifest(folder: int, name: str) -> Optional[Dict[str, Any]]:
    """Return the content of a manifest, if it is valid."""
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
        descriptor = system.open_regular(file, any_owner=True, dir_fd=inner)
    finally:
        os.close(inner)
    try:
        return os.pread(descriptor, limit, offset)
    finally:
        os.close(descriptor)


def _says_so(folder: int, name: str, sha256: str) -> bool:
    """Return whether the manifest of this checkpoint has this hash."""
    found = _manifest(folder, name)
    return found is not None and found["sha256"] == sha256


def _put_whole(folder: int, partial: str, blob: str, manifest: bytes) -> None:
    """Create a checkpoint's directory under a temporary name, and make it durable."""
    os.mkdir(partial, 0o700, dir_fd=folder)
    inner = os.open(partial, _FOLDER, dir_fd=folder)
    try:
        os.rename(blob, STATE, dst_dir_fd=inner)
        state = system.open_regular(STATE, any_owner=True, dir_fd=inner)
        try:
            os.fsync(state)
        finally:
            os.close(state)
        _write(inner, MANIFEST, manifest)
        os.fsync(inner)
    finally:
        os.close(inner)


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


# -- removal -------------------------------------------------------------------------------------


def put_away(store: Store, now: float) -> None:
    """Move checkpoints that are old and belong to no run of this node into the trash.

    Args:
        store: the node's runs.
        now: seconds since the epoch.
    """
    old = [path for path in _directories(store) if now - changed_at(path) > KEPT_SECONDS]
    if not old:
        return
    in_use = _in_use(store)
    for path in old:
        if path not in in_use:
            _throw_away(store, path)


def _throw_away(store: Store, path: str) -> None:
    try:
        store.throw_away(path, os.path.basename(path))
    except OSError as error:
        if error.errno == errno.EXDEV:
            removal.remove_tree(path, REMOVAL_SECONDS)


def _directories(store: Store) -> Iterator[str]:
    top = os.path.join(store.root, protocol.CHECKPOINTS_DIR)
    for owner in names_in(top):
        if os.path.islink(os.path.join(top, owner)):
            continue  # a link could point to directories that are not checkpoints
        for job in names_in(os.path.join(top, owner)):
            yield os.path.join(top, owner, job)


def _in_use(store: Store) -> Set[str]:
    found = set()
    for run in store.all_runs():
        try:
            found.add(protocol.checkpoint_dir(store.root, run.spec()))
        except ProtocolError:
            continue  # being created, or by a version without this directory
    return found
