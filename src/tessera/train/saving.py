"""Saving and loading of a job's checkpoints, with reports to the portal."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional, Tuple

from tessera.train.checkpoints import Checkpoint, CheckpointStore
from tessera.train.reports import tell

KEEP = 2


def checkpoint_dir() -> str:
    """Return the job's checkpoint directory; outside a job `./checkpoints` at the start."""
    return os.environ.get("TESSERA_JOB_CHECKPOINT_DIR") or os.path.abspath("checkpoints")


class Saver:
    """Saves and loads the checkpoints of a job, and reports to the portal.

    Args:
        directory: of the checkpoints; the job's own if empty.
        keep: number of the newest that remain.
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
            tell("checkpoint-failed", step=step, reason=error.strerror or str(error))
            return None
        tell(
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
                tell("checkpoint-broken", path=os.path.basename(path), reason=reason)
            if found is not None:
                tell("resumed", step=found[0].step, sha256=found[0].sha256)
        return found


def checkpoint(state: Any, *, step: int) -> bool:
    """Save the state of the training after step ``step``; returns whether it was written.

    The state is built of mappings, lists, numbers, text, bytes, NumPy arrays and torch tensors.
    It is written whole or not at all; of several processes only the first writes.

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
