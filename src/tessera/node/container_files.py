"""Files of a run for a container that runs as the user of its image.

The directories of the run belong to the account of the runner. Inside the container, another user
has to read and write them; on the node, the run directory above them remains closed. After the end
of the container, the engine returns all files to the runner's account.
"""

from __future__ import annotations

import os
import stat
from typing import Iterator, List, Optional, Tuple

from tessera import protocol
from tessera.node import container_network, engine, system
from tessera.node.engine import EngineError
from tessera.node.runs import Run
from tessera.protocol import ContainerRef

GIVE_BACK_SECONDS = 600.0
FENCE_SECONDS = 20.0
"""Longest wait during a fence, which blocks the session; the removal of the run continues."""
_INSIDE = "/owned"
_OPENED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_run(run: Run, checkpoints: str) -> None:
    """Open the directories of a prepared run, and its secrets, to the user of its image.

    The file of reports is created here, since the runner accepts only one of its own account.

    Args:
        run: the run.
        checkpoints: directory of the job's checkpoints on the node.
    """
    try:
        system.write_new(run.file(protocol.REPORTS_FILE), b"")
    except FileExistsError:
        pass
    secrets = os.path.realpath(run.file(protocol.SECRETS_DIR))
    for path in (*writable(run.path, checkpoints), secrets):
        open_to_all(path)


def open_to_all(path: str) -> None:
    """Let every user read and write a file, or a directory with everything in it.

    Links are not followed; entries of other accounts do not change.
    """
    _grant(path, None)
    if os.path.islink(path) or not os.path.isdir(path):
        return
    for _, directories, files, here in os.fwalk(path, follow_symlinks=False):
        for name in (*directories, *files):
            _grant(name, here)


def _grant(name: str, above: Optional[int]) -> None:
    try:
        descriptor = os.open(name, _OPENED, dir_fd=above)
    except OSError:
        return
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            os.chmod(f"/proc/self/fd/{descriptor}", 0o777)  # noqa: S103 - the run directory above is closed
        elif stat.S_ISREG(mode):
            runs = 0o111 if mode & stat.S_IXUSR else 0
            os.chmod(f"/proc/self/fd/{descriptor}", 0o666 | runs)  # noqa: S103
    except OSError:
        pass  # owned by another account
    finally:
        os.close(descriptor)


def reclaim(ref: ContainerRef, paths: List[str], seconds: float = GIVE_BACK_SECONDS) -> None:
    """Return ownership of the files of a container's own user to this account, if there are any.

    If the engine fails, the account reads and removes what it can.

    Args:
        ref: the run's container, which has ended.
        paths: directories of the run on the node.
        seconds: the longest wait.
    """
    if not ref.own_user:
        return
    uid = os.geteuid()
    left = [path for path in paths if os.path.isdir(path) and _has_files_of_others(path, uid)]
    if not left:
        return
    try:
        _give_back(ref, left, (uid, os.getegid()), seconds)
    except EngineError:
        pass


def _has_files_of_others(path: str, uid: int) -> bool:
    """Return whether an account other than this one owns an entry below a directory."""
    for _, directories, files, here in os.fwalk(path, follow_symlinks=False):
        for name in (*directories, *files):
            try:
                if os.stat(name, dir_fd=here, follow_symlinks=False).st_uid != uid:
                    return True
            except OSError:
                continue
    return False


def _give_back(
    ref: ContainerRef, paths: List[str], owner: Tuple[int, int], seconds: float
) -> None:
    """Give all files below directories to an account, by a container of the engine's root.

    Args:
        ref: the run's container, which has ended.
        paths: directories of the run on the node.
        owner: user and group on the node; the engine's root under a rootless engine.
        seconds: the longest wait.

    Raises:
        EngineError: the engine refuses, or cannot be reached.
    """
    found = engine.identify(ref.socket)
    uid, gid = (0, 0) if found is not None and found.rootless else owner
    helper = ContainerRef(name=f"{ref.name}.files", socket=ref.socket)
    engine.remove(helper)
    config = {
        "Image": container_network.holder_image(ref.socket),
        "Entrypoint": ["/bin/sh", "-c", f'exec chown -hR {uid}:{gid} "$@"', "chown"],
        "Cmd": [f"{_INSIDE}/{number}" for number in range(len(paths))],
        "User": "0:0",
        "Labels": {engine.RUN_LABEL: ref.name},
        "HostConfig": {
            "NetworkMode": "none",
            "UsernsMode": "host",
            "Binds": [*container_network.node_programs(), *_binds(paths)],
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": ["CHOWN", "DAC_READ_SEARCH"],
            "SecurityOpt": ["no-new-privileges", "label=disable"],
            "RestartPolicy": {"Name": "no"},
        },
    }
    try:
        status, body = engine.call(
            ref.socket, "POST", f"/containers/create?name={helper.name}", body=config
        )
        if status != 201:
            raise EngineError(engine.message_of(status, body), status)
        engine.order(helper, "POST", "/start", 204)
        status, body = engine.call(
            ref.socket,
            "POST",
            f"/containers/{helper.name}/wait?condition=not-running",
            timeout=seconds,
        )
        if status != 200 or not isinstance(body, dict) or body.get("StatusCode") != 0:
            raise EngineError(f"chown fails: {engine.message_of(status, body)}", status)
    finally:
        engine.remove(helper)


def _binds(paths: List[str]) -> Iterator[str]:
    return (f"{path}:{_INSIDE}/{number}" for number, path in enumerate(paths))


def writable(run_dir: str, checkpoints: str) -> List[str]:
    """Return the directories of a run that a container may write."""
    return [*directories(run_dir), checkpoints]


def directories(run_dir: str) -> List[str]:
    """Return the directories of a run that only its container writes."""
    return [
        f"{run_dir}/{name}" for name in (protocol.WORK_DIR, protocol.JOB_DIR, protocol.HOME_DIR)
    ]
