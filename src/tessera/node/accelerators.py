"""Device files of GPUs and NPUs without NVIDIA's driver, and requirements to open them in a job.

AMD's GPUs have a file for each, a *render node*, and one for all. Ascend NPUs have a file for each
and three for all. The rights of these files are those of a group, unless the node's administrator
has changed them.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Sequence

from tessera import hardware, protocol
from tessera.node import amd, ascend, driver
from tessera.node.directories import names_in
from tessera.node.driver import Answer
from tessera.node.gpus import Gpu
from tessera.protocol import ProtocolError

OF_ALL_NPUS = (ascend.DRIVER, "/dev/devmm_svm", "/dev/hisi_hdc")
LIBRARIES = (
    "/usr/local/Ascend/driver",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/etc/ascend_install.info",
)
"""Parts of Ascend's driver outside the kernel, which images do not have."""
INDEX_VARIABLES = ("ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
_RENDER_NODE = re.compile(r"renderD\d+")


def files_of(root: str, gpus: Sequence[str], machine: str = "") -> Optional[List[str]]:
    """Return the device files of GPUs or NPUs; None on a node whose GPUs are of NVIDIA.

    Args:
        root: the node's directory ``~/.tessera``.
        gpus: their names; where the driver reports none, their indices.
        machine: root directory of the machine; ``/`` if empty.

    Raises:
        ProtocolError: the node no longer has one of them, or its device file is missing.
    """
    last = driver.stored(root)
    vendor = hardware.vendor_of("" if last is None else last.reader)
    if last is None or vendor == hardware.NVIDIA:
        return None
    known = _by_name(last)
    missing = [name for name in gpus if name not in known]
    if missing:
        raise _missing(f"the node has no GPU {', '.join(missing)}")
    if not gpus:
        return []
    own = [known[name] for name in gpus]
    if vendor == hardware.AMD:
        return [amd.DRIVER, *(_render_node(gpu, machine) for gpu in own)]
    common = [path for path in OF_ALL_NPUS if os.path.exists(machine + path)]
    return [*(f"/dev/davinci{gpu.file_number}" for gpu in own), *common]


def _by_name(answer: Answer) -> Dict[str, Gpu]:
    found = {str(gpu.position): gpu for gpu in answer.reading.gpus}
    found.update((gpu.uuid, gpu) for gpu in answer.reading.gpus if gpu.uuid)
    return found


def _render_node(gpu: Gpu, machine: str) -> str:
    place = f"{machine}/sys/bus/pci/devices/{gpu.pci_address}/drm"
    name = next(filter(_RENDER_NODE.fullmatch, names_in(place)), "")
    if not name:
        raise _missing(f"GPU {gpu.uuid or gpu.position} has no render node")
    return f"/dev/dri/{name}"


def _missing(message: str) -> ProtocolError:
    return ProtocolError("gpu-missing", message, protocol.NODE)


def libraries(devices: Sequence[str]) -> List[str]:
    """Return the parts of the driver that a container with these device files needs to see."""
    if ascend.DRIVER not in devices:
        return []
    return [path for path in LIBRARIES if os.path.exists(path)]


def numbered_inside(environment: Dict[str, str]) -> Dict[str, str]:
    """Return variables for a job that has only its own device files, so that they count from 0."""
    found = {}
    for name in INDEX_VARIABLES:
        words = environment.get(name, "").split(",")
        if all(word.isdigit() for word in words):
            found[name] = ",".join(str(place) for place in range(len(words)))
    return found
