"""Checkpoints of a job: atomic, verified before use, the newest ones retained and reported.

A checkpoint is a directory ``step-<twelve digits>`` with the state and a manifest with
size and SHA-256; the same step again is ``step-<twelve digits>-1``. It is written under a
temporary name, made durable and then renamed, so that after a kill or on a full disk, no partial
checkpoint has this name. If the hash of a checkpoint does not match, the previous checkpoint is
used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

from tessera.train.codec import StateError, read_state, write_state
from tessera.train.reports import report_event

VERSION = 1
KEEP = 2
STATE_FILE, MANIFEST_FILE = "state", "manifest.json"
_NAME = re.compile(r"step-(\d{12})(?:-(\d{1,9}))?")
_PARTIAL = re.compile(r"\.step-\d{12}(?:-\d+)?\.(\d+)\.partial")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, by its manifest.

    Attributes:
        step: steps done before it.
        path: directory of the checkpoint.
        sha256: hash of its state; equal states have equal hashes.
        size: bytes of its state.
    """

    step: int
    path: str
    sha256: str
    size: int


class CheckpointStore:
    """The checkpoints of one job in one directory.

    Args:
        directory: created by the first save.
        keep: number of newest intact checkpoints to retain.
    """

    def __init__(self, directory: str, *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}: use at least 1")
        self.directory = directory
        self.keep = keep
        self.broken: List[Tuple[str, str]] = []
        """Paths that `load` skipped, with the reason."""

    # -- saving ----------------------------------------------------------------------------------

    def save(self, step: int, state: Any) -> Checkpoint:
        """Write a checkpoint; it is durable on return. All but the newest `keep` are deleted.

        Raises:
            StateError: the state has an unsupported value; nothing has changed.
            OSError: the disk is full or broken; earlier checkpoints remain.
        """
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        self._clear_partials()
        path = self._free_path(step)
        name = os.path.basename(path)
        partial = os.path.join(self.directory, f".{name}.{os.getpid()}.partial")
        try:
            os.mkdir(partial, 0o770)  # a runner of another account has access by the group
            sha256, size = _write_hashed(os.path.join(partial, STATE_FILE), state)
            manifest = {"version": VERSION, "step": step, "sha256": sha256, "size": size}
            _write_durably(os.path.join(partial, MANIFEST_FILE), json.dumps(manifest).encode())
            _sync_directory(partial)
            os.rename(partial, path)
            _sync_directory(self.directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.broken = [told for told in self.broken if told[0] != path]
        self._prune(path)
        return Checkpoint(step, path, sha256, size)

    def _free_path(self, step: int) -> str:
        """Return the path of the step; a repeated step gets a number, so none is replaced."""
        first = path = os.path.join(self.directory, f"step-{step:012d}")
        number = 0
        while os.path.lexists(path):
            number += 1
            path = f"{first}-{number}"
        return path

    def _clear_partials(self) -> None:
        """Remove leftovers of dead writers."""
        for name in os.listdir(self.directory):
            found = _PARTIAL.match(name)
            if found and not _lives(int(found.group(1))):
                shutil.rmtree(os.path.join(self.directory, name), ignore_errors=True)

    def _prune(self, saved: str) -> None:
        """Delete old checkpoints, except ``saved``, even if damaged ones of later steps exist."""
        broken = {path for path, _ in self.broken}
        others = [path for path in self._newest_first() if path != saved]
        whole = [path for path in others if path not in broken]
        passed = [path for path in others if path in broken and path < saved]
        for path in whole[self.keep - 1 :] + passed:
            # The name goes first: a removal that is cut short leaves no checkpoint to be found.
            gone = os.path.join(self.directory, f".{os.path.basename(path)}.{os.getpid()}.partial")
            try:
                os.rename(path, gone)
            except OSError:
                continue
            shutil.rmtree(gone, ignore_errors=True)

    # -- reading ---------------------------------------------------------------------------------

    def load(self) -> Optional[Tuple[Checkpoint, Any]]:
        """Return the newest intact checkpoint and its state, or None.

        Broken ones are skipped and listed in `broken`.
        """
        self.broken = []
        for path in self._newest_first():
            try:
                return _read_verified(path)
            except (StateError, OSError, ValueError) as error:
                self.broken.append((path, str(error)))
        return None

    def _newest_first(self) -> List[str]:
        return [os.path.join(self.directory, name) for _, _, name in sorted(self._found())[::-1]]

    def _found(self) -> Iterator[Tuple[int, int, str]]:
        """Step, number within the step, and name."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        for name in names:
            found = _NAME.fullmatch(name)
            if found:
                yield int(found.group(1)), int(found.group(2) or 0), name


# -- files ----------------------------------------------------------------------------------------


class _Hashing:
    """A file that hashes and counts written bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, content: Any) -> None:
        self._file.write(content)
        self._hash.update(content)
        self.size += memoryview(content).nbytes

    def sha256(self) -> str:
        return self._hash.hexdigest()


def hash_state(state: Any) -> str:
    """Return the SHA-256 of a checkpoint of this state.

    Raises:
        StateError: the state cannot be written.
    """
    with open(os.devnull, "wb") as nowhere:
        hashing = _Hashing(nowhere)
        write_state(state, hashing)  # type: ignore[arg-type]
    return hashing.sha256()


def _write_hashed(path: str, state: Any) -> Tuple[str, int]:
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        write_state(state, hashing)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    return hashing.sha256(), hashing.size


def _write_durably(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lives(pid: int) -> bool:
    """Return whether the writer may still run: its process ID exists and is not this process."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _read_verified(path: str) -> Tuple[Checkpoint, Any]:
    with open(os.path.join(path, MANIFEST_FILE), encoding="utf-8") as file:
        manifest = json.load(file)
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise StateError("the manifest has an unsupported version")
    with open(os.path.join(path, STATE_FILE), "rb") as state:
        hashed, size = hashlib.sha256(), 0
        for block in iter(lambda: state.read(1 << 20), b""):
            hashed.update(block)
            size += len(block)
        if hashed.hexdigest() != manifest.get("sha256"):
            raise StateError(f"the hash of {size} bytes differs from the manifest")
        state.seek(0)
        found = Checkpoint(int(manifest["step"]), path, hashed.hexdigest(), size)
        return found, read_state(state)


def checkpoint_dir() -> str:
    """Return the job's checkpoint directory; outside a job `./checkpoints` at the start."""
    return os.environ.get("TESSERA_JOB_CHECKPOINT_DIR") or os.path.abspath("checkpoints")


class Saver:
    """Saves and loads the checkpoints of a job, and reports to the portal.

    Args:
        directory: directory of the checkpoints; the job's own if empty.
        keep: number of newest checkpoints to retain.
        leads: whether this process saves.
    """

    def __init__(self, directory: str = "", *, keep: int = KEEP, leads: bool = True) -> None:
        self._store = CheckpointStore(directory or checkpoint_dir(), keep=keep)
        self._leads = leads

    def save(
        self, step: int, state: Any, *, receipt: Optional[Dict[str, Any]] = None
    ) -> Optional[Checkpoint]:
        """Save a checkpoint; on a disk error returns None and reports it.

        Training continues without it; earlier checkpoints remain.

        Raises:
            StateError: the state has an unsupported value.
        """
        if not self._leads:
            return None
        began = time.perf_counter()
        try:
            saved = self._store.save(step, state)
        except OSError as error:
            report_event("checkpoint-failed", step=step, reason=error.strerror or str(error))
            return None
        report_event(
            "checkpoint",
            step=step,
            sha256=saved.sha256,
            bytes=saved.size,
            seconds=round(time.perf_counter() - began, 4),
            **(receipt or {}),
        )
        return saved

    def load(self) -> Optional[Tuple[Checkpoint, Any]]:
        """Return the newest intact checkpoint with its state, or None."""
        found = self._store.load()
        if self._leads:
            for path, reason in self._store.broken:
                report_event("checkpoint-broken", path=os.path.basename(path), reason=reason)
            if found is not None:
                report_event("resumed", step=found[0].step, sha256=found[0].sha256)
        return found


def checkpoint(state: Any, *, step: int) -> bool:
    """Save the state of the training after step ``step``; returns whether it was written.

    The state is built of mappings, lists, numbers, text, bytes, NumPy arrays and torch tensors.
    The write is atomic; only the first of several processes writes.

    Raises:
        StateError: the state has another value.
    """
    if int(os.environ.get("RANK") or 0) != 0:
        return True
    return Saver().save(step, state) is not None


def resume() -> Any:
    """Return the state of the newest intact checkpoint; None when training begins."""
    found = Saver(leads=int(os.environ.get("RANK") or 0) == 0).load()
    return None if found is None else found[1]
