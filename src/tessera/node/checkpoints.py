"""Removal of checkpoints of ended jobs, some days after the last one was saved."""

from __future__ import annotations

import errno
import os
from typing import Iterator, Set

from tessera import protocol
from tessera.node import removal
from tessera.node.runs import Store
from tessera.protocol import ProtocolError

KEPT_SECONDS = 7 * 86_400
"""Time for a job's next attempt, or for its owner to fetch the results."""


REMOVAL_SECONDS = 5.0


def put_away(store: Store, now: float) -> None:
    """Move checkpoints that are old and belong to no run of this node into the trash.

    Args:
        store: the node's runs.
        now: seconds since the epoch.
    """
    old = [path for path in _directories(store) if now - _changed_at(path) > KEPT_SECONDS]
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
    for owner in _names(top):
        if os.path.islink(os.path.join(top, owner)):
            continue  # it leads to directories that are not checkpoints
        for job in _names(os.path.join(top, owner)):
            yield os.path.join(top, owner, job)


def _names(path: str) -> "list[str]":
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _changed_at(path: str) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _in_use(store: Store) -> Set[str]:
    found = set()
    for run in store.all_runs():
        try:
            found.add(protocol.checkpoint_dir(store.root, run.spec()))
        except ProtocolError:
            continue  # being created, or of a version whose jobs had no such place
    return found
