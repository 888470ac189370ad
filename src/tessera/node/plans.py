"""The plan of a run's sandbox: directories, devices, user, sizes and environment."""

from __future__ import annotations

import errno
import os
import re
from typing import Dict, List, Optional, Tuple

from tessera import protocol
from tessera.isolation import USER, VisiblePath
from tessera.node import confinement, networks, probe, sandbox, system
from tessera.node.networks import NODE_NETWORK, Choice
from tessera.node.runs import Run
from tessera.node.sandbox import Bind, Plan
from tessera.protocol import ProtocolError, RunSpec

HOME_DIR = "home"
HOME = f"{protocol.CONTAINER_ROOT}/{HOME_DIR}"
PATH_MISSING = "visible-path-missing"
LEAST_BYTES = 64 << 20
_SHARE_WITHOUT_LIMIT = 8  # of the node's memory, for a job that has no limit of its own
_OF_ALL_GPUS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_CAPS = "/dev/nvidia-caps"
_GPUS = "/proc/driver/nvidia/gpus"


def plan_for(
    run: Run,
    spec: RunSpec,
    level: str,
    bundle: str,
    granted: Dict[str, str],
    *,
    network: Choice = NODE_NETWORK,
) -> Tuple[Plan, List[str]]:
    """The sandbox of a run; makes the directories that it needs.

    Args:
        run: a claimed run.
        spec: of the run.
        level: ``namespace`` or ``user``.
        bundle: what the job finds on its PYTHONPATH.
        granted: the part of the runner's environment that the job inherits.
        network: of the run.

    Returns:
        The plan, and codes of warnings.

    Raises:
        OSError: a directory cannot be made.
        ProtocolError: the checkpoint directory leads elsewhere, or the node's declaration of
            visible paths is malformed.
    """
    uid = _uid(spec, level)
    checkpoints = _checkpoints(run, spec)
    os.makedirs(run.file(HOME_DIR), mode=0o700, exist_ok=True)
    mounts = protocol.container_mounts(os.path.realpath(run.path), bundle, checkpoints)
    inside = {target: source for source, target, _ in mounts}
    secrets_at = f"{protocol.CONTAINER_ROOT}/{protocol.SECRETS_DIR}"
    secrets = os.path.realpath(inside.pop(secrets_at))
    inside[HOME] = os.path.join(os.path.realpath(run.path), HOME_DIR)
    shown, warnings = _shown(run, spec)
    writable = [source for target, source in inside.items() if target != protocol.CONTAINER_BUNDLE]
    binds = [
        Bind(source, target, source in writable, is_exact=source in writable)
        for target, source in inside.items()
    ]
    share = spec.memory_bytes or probe.memory_total() // _SHARE_WITHOUT_LIMIT
    plan = Plan(
        uid=uid,
        binds=[*shown, *binds],
        hidden=_hidden(run, shown),
        devices=device_files(run.store.root, spec.devices),
        secrets=(secrets, secrets_at) if os.path.isdir(secrets) else None,
        owned=writable if uid is not None else [],
        owners=[os.getuid(), confinement.SHARED_UID],
        group=os.getgid(),
        tmp_bytes=max(LEAST_BYTES, share // 4),
        shm_bytes=max(LEAST_BYTES, share // 2),
        file_bytes=spec.disk_bytes,
        home=HOME,
        directory=os.path.join(protocol.CONTAINER_ROOT, protocol.WORK_DIR, spec.workdir),
        arguments=["/bin/sh", f"{protocol.CONTAINER_ROOT}/{protocol.COMMAND_FILE}"],
        environment=_environment(spec, granted),
        own_network=network.is_own,
        blocked=networks.blocked_by(network),
        resolver=networks.resolver_of(network),
    )
    return plan, warnings


def _uid(spec: RunSpec, level: str) -> Optional[int]:
    if level == USER:
        return spec.uid
    return confinement.SHARED_UID if os.getuid() == 0 else None


def _environment(spec: RunSpec, granted: Dict[str, str]) -> Dict[str, str]:
    environment = {name: value for name, value in granted.items() if name != "TMPDIR"}
    environment.update(HOME=HOME, USER=sandbox.ACCOUNT, LOGNAME=sandbox.ACCOUNT)
    environment.update(
        protocol.job_environment(
            spec,
            protocol.CONTAINER_ROOT,
            protocol.CONTAINER_BUNDLE,
            protocol.CONTAINER_CHECKPOINTS,
        )
    )
    return environment


# -- directories ---------------------------------------------------------------------------------


def _checkpoints(run: Run, spec: RunSpec) -> str:
    """The job's directory for checkpoints, made without following a link that a job has put there.

    Raises:
        ProtocolError: a part of the path is not a directory or is a link, or a shared directory
            lies in that of the runner.
    """
    root = os.path.realpath(run.store.root)
    path = protocol.checkpoint_dir(root, spec)
    is_shared = bool(spec.checkpoint_dir) and spec.container is None
    start = "/" if is_shared else root
    # Search permission is enough for the directories above.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(start, flags)
    try:
        for name in filter(None, path[len(start) :].split("/")):
            above, here = here, _entered(here, name, flags)
            os.close(above)
        found = os.readlink(f"/proc/self/fd/{here}")
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        message = f"{path} is not a directory, or is reached by a link"
        raise ProtocolError("bad-checkpoint-dir", message, protocol.USER) from None
    finally:
        os.close(here)
    if is_shared and f"{found}/".startswith(f"{root}/"):
        message = f"{path} is a directory of the runner"
        raise ProtocolError("bad-checkpoint-dir", message, protocol.USER)
    return found


def _entered(here: int, name: str, flags: int) -> int:
    """The directory of a name, made if it is missing; links are not followed."""
    try:
        return os.open(name, flags, dir_fd=here)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, 0o700, dir_fd=here)
    except FileExistsError:
        pass  # another run of the job has just made it
    return os.open(name, flags, dir_fd=here)


def _shown(run: Run, spec: RunSpec) -> Tuple[List[Bind], List[str]]:
    """Binds of the visible paths that exist, outer ones first, and codes of warnings."""
    declared = confinement.declaration(run.store.root).visible_paths
    by_path: Dict[str, VisiblePath] = {
        visible.path: visible for visible in (*declared, *spec.visible_paths)
    }
    found, warnings = [], []
    for path in sorted(by_path):
        source = os.path.realpath(path)
        if os.path.exists(source):
            found.append(Bind(source, path, by_path[path].writable))
        else:
            warnings.append(PATH_MISSING)
    return found, warnings[:1]


def _hidden(run: Run, shown: List[Bind]) -> List[str]:
    """Where a visible path would show the runner's own directory.

    Raises:
        ProtocolError: a visible path lies in that directory.
    """
    own = os.path.realpath(run.store.root)
    found = []
    for bind in shown:
        if f"{bind.source}/".startswith(f"{own}/"):
            message = f"{bind.target} lies in the runner's directory"
            raise ProtocolError("bad-visible-path", message, protocol.NODE)
        if f"{own}/".startswith(f"{bind.source}/"):
            found.append(bind.target + own[len(bind.source) :])
    return found


# -- devices -------------------------------------------------------------------------------------


def device_files(root: str, indices: List[int]) -> List[str]:
    """The device files of a run's GPUs; none on a node that declares its devices."""
    if not indices or os.path.lexists(os.path.join(root, protocol.DEVICES_FILE)):
        return []
    minors = _minors()
    own = [f"/dev/nvidia{minors.get(index, index)}" for index in indices]
    found = [path for path in (*own, *_OF_ALL_GPUS) if os.path.exists(path)]
    try:
        found += [f"{_CAPS}/{name}" for name in sorted(os.listdir(_CAPS))]
    except OSError:
        pass  # no GPU of this node is divided
    return found


def _minors() -> Dict[int, int]:
    """The number of each GPU's device file; the driver counts GPUs by their bus address."""
    try:
        addresses = sorted(os.listdir(_GPUS))
    except OSError:
        return {}
    found = {}
    for index, address in enumerate(addresses):
        text = system.read_text(f"{_GPUS}/{address}/information")
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        if minor is not None:
            found[index] = int(minor.group(1))
    return found
