"""Device files of a run's GPUs: those of the assigned GPUs and of the MIG instances on them.

A GPU's number and the numbers of its instances' files are read from the driver's tree in /proc.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List

from tessera import protocol
from tessera.node import system

_OF_ALL_GPUS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_GPUS = "/proc/driver/nvidia/gpus"
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_GPU_NUMBER = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_FILE_NUMBER = re.compile(r"^DeviceFileMinor:\s*(\d+)", re.MULTILINE)
_GPU_INSTANCE, _COMPUTE_INSTANCE = re.compile(r"gi\d+"), re.compile(r"ci\d+")


def device_files(root: str, indices: List[int], machine: str = "") -> List[str]:
    """Return the device files of a run's GPUs; none on a node that declares its devices.

    Args:
        root: the node's directory ``~/.tessera``.
        indices: of the GPUs, in the order of their bus addresses.
        machine: root directory of the machine; empty: ``/``.
    """
    if not indices or os.path.lexists(os.path.join(root, protocol.DEVICES_FILE)):
        return []
    numbers = _gpu_numbers(machine)
    own = [numbers.get(index, index) for index in indices]
    wanted = [f"/dev/nvidia{number}" for number in own]
    wanted += _OF_ALL_GPUS
    for number in own:
        wanted += _instance_files(machine, number)
    return [path for path in wanted if os.path.exists(machine + path)]


def _gpu_numbers(machine: str) -> Dict[int, int]:
    """The number of each GPU's device file; the driver counts GPUs by their bus address."""
    found = {}
    for index, address in enumerate(_names(machine + _GPUS)):
        text = system.read_text(f"{machine}{_GPUS}/{address}/information")
        number = _GPU_NUMBER.search(text)
        if number is not None:
            found[index] = int(number.group(1))
    return found


def _instance_files(machine: str, gpu: int) -> Iterator[str]:
    """The files that grant access to the MIG instances of a GPU.

    Those that grant its configuration and its monitoring are not among them.
    """
    top = f"{machine}{_CAPABILITIES}/gpu{gpu}/mig"
    for instance in filter(_GPU_INSTANCE.fullmatch, _names(top)):
        parts = filter(_COMPUTE_INSTANCE.fullmatch, _names(f"{top}/{instance}"))
        for place in (instance, *(f"{instance}/{part}" for part in parts)):
            number = _FILE_NUMBER.search(system.read_text(f"{top}/{place}/access"))
            if number is not None:
                yield f"/dev/nvidia-caps/nvidia-cap{number.group(1)}"


def _names(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
