"""Removal of unused versions of this code on the node.

A version is in use while a session or runner executes it, and while a run that has not ended was
prepared or started by it: jobs import from it, containers mount it. Home directories may be shared
between machines, so processes alone are not sufficient evidence; each run records its version in
its directory.
"""

from __future__ import annotations

import functools
import os
import re
import time
from typing import List, Optional, Set

from tessera import protocol
from tessera.node import system
from tessera.node.directories import changed_at
from tessera.node.runs import Run, Store
from tessera.protocol import ProtocolError

KEPT = 2
BUNDLE_NAME = "node.pyz"
# Another machine with this home may be starting one; a session touches its own when it begins.
UNTOUCHED_SECONDS = 86_400.0
_VERSION = re.compile(r"[0-9a-f]{64}")


def note_use(run: Run, bundle: str) -> None:
    """Store in the run directory that the run depends on this version."""
    version = version_of(run.store, bundle)
    if version is None:
        return
    try:
        run.note_version(version)
    except OSError:
        pass  # a run without a noted version prevents the removal of all versions


def touch(store: Store, bundle: str) -> None:
    """Mark the version as in use now."""
    if version_of(store, bundle) is not None:
        try:
            os.utime(os.path.dirname(bundle))
        except OSError:
            pass


def version_of(store: Store, bundle: str) -> Optional[str]:
    """Return the version in a bundle's path; None if the code does not run from the store."""
    return _version_of(store.root, bundle)


@functools.lru_cache(maxsize=8)
def _version_of(root: str, bundle: str) -> Optional[str]:
    """Return the version in a bundle's path; cached, as it is called for every run."""
    folder, name = os.path.split(bundle)
    version = os.path.basename(folder)
    at_home = os.path.realpath(os.path.dirname(folder)) == os.path.realpath(root)
    return version if name == BUNDLE_NAME and at_home and _VERSION.fullmatch(version) else None


def put_away(store: Store, bundle: str, now: Optional[float] = None) -> List[str]:
    """Move unused versions to the trash, except the newest two.

    Args:
        store: the node's runs.
        bundle: the code that runs now.
        now: seconds since the epoch.

    Returns:
        The removed versions.
    """
    there = _versions(store)
    if len(there) <= KEPT:
        return []
    needed = _needed(store)
    if needed is None:
        return []
    needed.update(there[:KEPT])
    needed.add(version_of(store, bundle) or "")
    oldest = (time.time() if now is None else now) - UNTOUCHED_SECONDS
    return [
        version
        for version in there
        if version not in needed and _touched(store, version) < oldest and _move(store, version)
    ]


def _versions(store: Store) -> List[str]:
    """Return all versions on the node, the newest first."""
    names = [name for name in os.listdir(store.root) if _VERSION.fullmatch(name)]
    return sorted(names, key=lambda name: (_touched(store, name), name), reverse=True)


def _touched(store: Store, version: str) -> float:
    return changed_at(os.path.join(store.root, version))


def _needed(store: Store) -> Optional[Set[str]]:
    """Return the versions in use; None if a run does not have them."""
    needed = _executed(store)
    for run in store.all_runs():
        try:
            if run.recorded().phase == protocol.EXITED:
                continue
        except ProtocolError:
            continue  # discarded meanwhile
        noted = [version for version in run.versions() if _VERSION.fullmatch(version)]
        if not noted:
            return None
        needed.update(noted)
    return needed


def _executed(store: Store) -> Set[str]:
    """Return the versions that processes of this machine execute."""
    root = re.escape(os.path.realpath(store.root))
    shown = re.compile(f"(?:{root}|{re.escape(store.root)})/([0-9a-f]{{64}})/{BUNDLE_NAME}")
    found: Set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            found.update(shown.findall(system.read_text(f"/proc/{name}/cmdline")))
    return found


def _move(store: Store, version: str) -> bool:
    target = os.path.join(store.trash, f"{version}.{time.time_ns()}")
    try:
        os.rename(os.path.join(store.root, version), target)
    except OSError:
        return False
    return True
