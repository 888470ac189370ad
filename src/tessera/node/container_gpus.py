"""Detection of the method by which the node's container engine gives GPUs to containers.

NVIDIA's Container Toolkit adds a hook or a runtime to Docker, or writes a specification of the
Container Device Interface (CDI) for Docker and Podman. All methods are tried here, so that a node
offers containers only if they get their GPUs.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Sequence, Set

from tessera import hardware
from tessera.inventory import BY_CDI_INDEX, BY_CDI_UUID, BY_DEVICE_REQUEST, BY_FILES, Device
from tessera.node import amd, ascend, system
from tessera.node.engine import PODMAN, Engine
from tessera.node.sandbox_root import groups_of

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
PODMAN_RELEASE = (5, 4)
"""Earlier releases of Podman start a container without the requested GPUs, and report no error."""
HOOK, CLIENT = "nvidia-container-runtime-hook", "nvidia-container-cli"
_RUNTIME, _VENDOR = "nvidia", "nvidia.com/gpu"
_CDI_KIND = re.compile(r"""["']?\bkind["']?\s*:\s*["']?nvidia\.com/gpu["'\s,]""")
_CDI_NAME = re.compile(r"""["']?\bname["']?\s*:\s*["']?([A-Za-z0-9][A-Za-z0-9:._-]*)["'\s,]""")


class NoGpuAccessError(Exception):
    """The engine cannot give the node's GPUs to containers; the message names the cause."""


def gpu_access(
    engine: Engine,
    devices: Sequence[Device],
    fault_of: Callable[[Sequence[str]], str],
    *,
    vendor: str = hardware.NVIDIA,
    directories: Sequence[str] = CDI_DIRECTORIES,
) -> str:
    """Return the method by which the engine gives the GPUs to containers.

    Args:
        engine: the node's container engine.
        devices: the node's GPUs.
        fault_of: runs a command and returns an empty text, or the cause of its failure.
        vendor: of the GPUs; engines give those of other vendors than NVIDIA by their files.
        directories: directories with CDI specifications.

    Raises:
        NoGpuAccessError: no method works.
    """
    if vendor != hardware.NVIDIA:
        return _by_files(engine, amd.DRIVER if vendor == hardware.AMD else ascend.DRIVER)
    if engine.kind == PODMAN and engine.release < PODMAN_RELEASE:
        raise NoGpuAccessError("Podman before 5.4 ignores the GPUs in requests by Docker's API")
    if engine.kind == PODMAN or engine.has_cdi:
        names = cdi_names(directories)
        if all(device.uuid in names for device in devices):
            return BY_CDI_UUID
        if all(str(device.index) in names for device in devices):
            return BY_CDI_INDEX
    if engine.kind == PODMAN:
        raise NoGpuAccessError(f"no CDI specification names all GPUs of the node as {_VENDOR}")
    if _RUNTIME not in engine.runtimes and not _path_of(HOOK):
        raise NoGpuAccessError(
            f"the engine has no runtime {_RUNTIME}, and {HOOK} is not installed"
        )
    if _path_of(CLIENT):
        fault = fault_of([CLIENT, "info"])
        if fault:
            raise NoGpuAccessError(f"{CLIENT} info fails: {fault}")
    return BY_DEVICE_REQUEST


def _by_files(engine: Engine, path: str) -> str:
    """Check that a rootless engine, whose containers have no groups of the node, can open them."""
    if engine.rootless and groups_of([path]):
        raise NoGpuAccessError(
            f"containers of a rootless engine cannot open {path}: make it and the files of the"
            " GPUs readable and writable for all users, or use an engine with root rights"
        )
    return BY_FILES


def _path_of(program: str) -> str:
    return system.which(program, os.environ.get("PATH", os.defpath).split(os.pathsep))


def cdi_names(directories: Sequence[str]) -> Set[str]:
    """Return the device names of all CDI specifications for NVIDIA's GPUs, in JSON or YAML."""
    found: Set[str] = set()
    for directory in directories:
        try:
            files = sorted(os.listdir(directory))
        except OSError:
            continue
        for name in files:
            if not name.endswith((".json", ".yaml", ".yml")):
                continue
            text = system.read_text(os.path.join(directory, name)) + "\n"
            if _CDI_KIND.search(text):
                found.update(_CDI_NAME.findall(text))
    return found
