"""Visible and hidden paths of a node for a run, besides its own directories.

Hidden are the runner's directory and the home of its account, and paths that admins and the node's
owner have declared: directories for checkpoints, and others. A path declared as visible inside a
hidden directory is visible.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import pwd
from typing import Iterable, List, NamedTuple, Sequence, Tuple

from tessera import protocol
from tessera.isolation import ContainerView, VisiblePath, is_within
from tessera.node import accelerators, confinement, storages, system
from tessera.node.confinement import Declaration
from tessera.node.runs import Run
from tessera.node.sandbox_root import SYSTEM, Bind, groups_of
from tessera.protocol import ProtocolError, RunSpec

PATH_MISSING = "visible-path-missing"
COVERS_DIR = "covers"


class View(NamedTuple):
    """The part of a node that a run sees.

    Attributes:
        binds: paths of the node at their places, outer ones first.
        covers: places that an empty directory covers, before the binds inside of them.
        warnings: codes.
    """

    binds: List[Bind]
    covers: List[str]
    warnings: List[str]


def view_of(root: str, spec: RunSpec, *, with_system: bool) -> View:
    """Return the visible part of the node for a run.

    Args:
        root: the node's directory ``~/.tessera``.
        spec: spec of the run.
        with_system: whether it includes the system's directories, as in a sandbox.

    Raises:
        ProtocolError: a visible path is in the runner's directory, a storage is missing or
            reached by a link, or the node's declaration is malformed.
    """
    declared = confinement.declaration(root)
    hidden = _hidden(root, spec, declared)
    visible = [one for one in _declared(spec, declared) if not one.checkpoints]
    shown = [Bind(os.path.realpath(one.path), one.path, one.writable) for one in visible]
    found = [
        bind for bind in shown if os.path.exists(bind.source) and not _is_led_away(bind, shown)
    ]
    own = os.path.realpath(root)
    for bind in found:
        if is_within(bind.source, own):
            message = f"{bind.target} is in the runner's directory"
            raise ProtocolError("bad-visible-path", message, protocol.NODE)
    binds = [bind._replace(is_exact=True) for bind in found if bind.source not in hidden]
    storages.check_places(binds, spec)
    binds += storages.binds_of(root, spec)
    seen = [(bind.source, bind.target) for bind in binds]
    if with_system:
        seen += [(place, place) for place in SYSTEM if _is_real_directory(place)]
    warnings = [PATH_MISSING] if len(found) < len(shown) else []
    return View(binds, _covers(seen, hidden, homes(root)), warnings)


def of_container(run: Run, spec: RunSpec) -> ContainerView:
    """Return the part of the node that a container sees; creates its directories.

    Hidden directories are covered by empty ones of the run: an engine may copy covered
    files into a file system in memory.

    Raises:
        ProtocolError: a visible path is in the runner's directory, the node's declaration is
            malformed, or the directory for checkpoints is reached by a link.
        OSError: the directory cannot be created.
    """
    view = view_of(run.store.root, spec, with_system=False)
    covers = [*view.covers]
    if spec.host_ipc:
        # It has access to the node's shared memory, which contains the secrets of other runs.
        covers.append(os.path.dirname(run.store.secrets_in_memory()))
    devices = accelerators.files_of(run.store.root, spec.gpus) or []
    return ContainerView(
        binds=[
            *((bind.source, bind.target, bind.writable) for bind in view.binds),
            *((_made_cover(run, place, view.binds), place, False) for place in covers),
        ],
        checkpoints=make_checkpoints(run, spec),
        processes=confinement.declaration(run.store.root).processes,
        devices=devices,
        groups=groups_of(devices),
        libraries=accelerators.libraries(devices),
    )


def _made_cover(run: Run, place: str, binds: Sequence[Bind]) -> str:
    """Create an empty directory of the run, with the places of the binds in it."""
    number = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    top = os.path.join(os.path.realpath(run.path), COVERS_DIR, number)
    os.makedirs(top, mode=0o755, exist_ok=True)
    for bind in binds:
        if not is_within(bind.target, place):
            continue
        inner = top + bind.target[len(place) :]
        is_directory = os.path.isdir(bind.source)
        os.makedirs(inner if is_directory else os.path.dirname(inner), mode=0o755, exist_ok=True)
        if not is_directory:
            os.close(os.open(inner, os.O_WRONLY | os.O_CREAT | system.SAFE_OPEN, 0o644))
    return top


@functools.lru_cache(maxsize=4)
def homes(root: str) -> Tuple[str, ...]:
    """Return the home directories of the runner: of its session, and of its account.

    A name service may be slow, so a session calls this before it forks runners.
    """
    found = [os.path.dirname(root)]
    try:
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        pass  # the user has no entry in passwd
    return tuple(dict.fromkeys(map(os.path.realpath, found)))


def _is_led_away(bind: Bind, shown: Sequence[Bind]) -> bool:
    """Return whether a path is below a writable one in which a job has replaced it by a link."""
    return any(
        outer.writable
        and is_within(bind.target, outer.target)
        and bind.source != outer.source + bind.target[len(outer.target) :]
        for outer in shown
    )


def _declared(spec: RunSpec, declared: Declaration) -> List[VisiblePath]:
    """Return the visible paths of owner and admins, each path once, outer ones first."""
    by_path = {one.path: one for one in (*declared.visible_paths, *spec.visible_paths)}
    return [by_path[path] for path in sorted(by_path, key=_parts)]


def _hidden(root: str, spec: RunSpec, declared: Declaration) -> List[str]:
    tops = [one.path for one in _declared(spec, declared) if one.checkpoints]
    return list(map(os.path.realpath, (root, *declared.hidden_paths, *spec.hidden_paths, *tops)))


def _covers(
    seen: Sequence[Tuple[str, str]], hidden: Sequence[str], own_homes: Sequence[str]
) -> List[str]:
    """Return the visible places of hidden directories and homes; a home may be visible as a whole.

    The paths that are seen are pairs of a path on the node and its place.
    """
    found = {
        target + place[len(source) :]
        for source, target in seen
        for place in (*hidden, *own_homes)
        if is_within(place, source) and (place != source or place in hidden)
    }
    targets = [target for _, target in seen]
    return [path for path in sorted(found, key=_parts) if not _is_in_cover(path, found, targets)]


def _is_in_cover(path: str, covers: Iterable[str], targets: Sequence[str]) -> bool:
    """Return whether an outer cover hides a path already, with no bind in between."""
    return any(
        path != cover
        and is_within(path, cover)
        and not any(is_within(target, cover) and is_within(path, target) for target in targets)
        for cover in covers
    )


def _parts(path: str) -> List[str]:
    return path.split("/")


def _is_real_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


# -- checkpoints ---------------------------------------------------------------------------------


def check_checkpoints(root: str, spec: RunSpec) -> None:
    """Check that a job's shared directory for checkpoints was declared for them.

    Raises:
        ProtocolError: the check failed, or the node's declaration is malformed.
    """
    wanted = spec.checkpoint_dir
    if not wanted:
        return
    declared = _declared(spec, confinement.declaration(root))
    tops = [one.path for one in declared if one.checkpoints]
    if wanted in tops:
        return
    remedy = f"ask an admin to add {wanted}:checkpoints to the visible paths of the nodes"
    if tops:
        remedy = f"use {' or '.join(tops[:4])}"
    message = f"checkpoint_dir: {wanted} is not a checkpoint directory on this node. Omit it, or "
    raise ProtocolError("bad-checkpoint-dir", message + remedy, protocol.USER)


def make_checkpoints(run: Run, spec: RunSpec) -> str:
    """Create the job's directory for checkpoints, without following links of jobs.

    Raises:
        ProtocolError: a shared directory was not declared for checkpoints or is in that of the
            runner, or a part of the path is not a directory or is a link.
        OSError: the directory cannot be created.
    """
    check_checkpoints(run.store.root, spec)
    root = os.path.realpath(run.store.root)
    path = protocol.checkpoint_dir(root, spec)
    is_shared = bool(spec.checkpoint_dir)
    try:
        found = _made("/" if is_shared else root, path)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        message = f"{path} is not a directory, or its path contains a link"
        raise ProtocolError("bad-checkpoint-dir", message, protocol.USER) from None
    if is_shared and is_within(found, root):
        message = f"{path} is a directory of the runner"
        raise ProtocolError("bad-checkpoint-dir", message, protocol.USER)
    return found


def _made(start: str, path: str) -> str:
    """Create the directories of a path from one of them on, following no link."""
    # Search permission is enough for the directories above.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(start, flags)
    try:
        for name in filter(None, path[len(start) :].split("/")):
            above, here = here, _entered(here, name, flags)
            os.close(above)
        return os.readlink(f"/proc/self/fd/{here}")
    finally:
        os.close(here)


def _entered(here: int, name: str, flags: int) -> int:
    """Open the directory of a name, created if missing; links are not followed."""
    try:
        return os.open(name, flags, dir_fd=here)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, 0o700, dir_fd=here)
    except FileExistsError:
        pass  # another run of the job has just created it
    return os.open(name, flags, dir_fd=here)
