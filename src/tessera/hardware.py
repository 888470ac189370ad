"""Conditions of GPUs and their drivers: codes, classes of Xid messages, and default actions.

Part of the bundle for nodes: Python 3.8, standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Dict, Tuple

from tessera.wire import Fields, Json

NOTE, QUARANTINE, CORDON = "note", "quarantine", "cordon"
ACTIONS = (NOTE, QUARANTINE, CORDON)
"""Note: only displayed. Quarantine: no new jobs on the device. Cordon: no new jobs on the node."""

LOST, RESET_REQUIRED, DRIVER_HUNG = "lost", "reset-required", "driver-hung"
ECC_UNCORRECTABLE = "ecc-uncorrectable"
REMAP_PENDING, REMAP_FAILED = "row-remap-pending", "row-remap-failed"
PAGES_PENDING = "retired-pages-pending"
SLOWDOWN, HOT, POWER_BRAKE = "hardware-slowdown", "thermal-slowdown", "power-brake"
NVLINK_ERRORS, FABRIC, COMPUTE_MODE = "nvlink-errors", "fabric-not-ready", "compute-mode"
FOREIGN_PROCESS = "foreign-process"
XID_HARDWARE, XID_MEMORY, XID_LINK = "xid-hardware", "xid-memory", "xid-nvlink"
XID_DRIVER, XID_APPLICATION = "xid-driver", "xid-application"
DEVICE_WARNING, DEVICE_ALARM = "device-warning", "device-alarm"

NVIDIA, AMD, ASCEND = "nvidia", "amd", "ascend"
_VENDORS: Dict[str, str] = {"amd-smi": AMD, "rocm-smi": AMD, "npu-smi": ASCEND}


def vendor_of(reader: str) -> str:
    """Return the vendor of a node's GPUs by the reader that found them."""
    return _VENDORS.get(reader, NVIDIA)


DEFAULT_ACTIONS: Dict[str, str] = {
    LOST: QUARANTINE,
    RESET_REQUIRED: QUARANTINE,
    DRIVER_HUNG: NOTE,  # the node becomes suspect, whatever the action is
    ECC_UNCORRECTABLE: QUARANTINE,
    REMAP_PENDING: NOTE,
    REMAP_FAILED: QUARANTINE,
    PAGES_PENDING: NOTE,
    SLOWDOWN: NOTE,
    HOT: NOTE,
    POWER_BRAKE: NOTE,
    NVLINK_ERRORS: NOTE,
    FABRIC: CORDON,
    COMPUTE_MODE: NOTE,
    FOREIGN_PROCESS: QUARANTINE,
    XID_HARDWARE: QUARANTINE,
    XID_MEMORY: QUARANTINE,
    XID_LINK: QUARANTINE,
    XID_DRIVER: QUARANTINE,
    XID_APPLICATION: NOTE,
    DEVICE_WARNING: NOTE,
    DEVICE_ALARM: QUARANTINE,
}

_XID_CLASSES: Tuple[Tuple[str, Tuple[int, ...]], ...] = (
    (XID_HARDWARE, (54, 61, 62, 79, 110, 136, 143, 151)),
    (XID_MEMORY, (48, 64, 94, 95, 140, 160)),
    (XID_LINK, (74, 137, 144, 145, 146, 147, 148, 149, 150)),
    (XID_DRIVER, (38, 46, 109, 119, 120, 121, 122, 123, 158)),
)
"""Classes of NVIDIA's catalogue of Xid messages. All others come from the application, or report
an event without effect on the next job (63: a row of memory was remapped)."""


def class_of_xid(number: int) -> str:
    """Return the condition of an Xid message."""
    found = (code for code, numbers in _XID_CLASSES if number in numbers)
    return next(found, XID_APPLICATION)


@dataclass(frozen=True)
class Condition:
    """A condition of a GPU, or of the whole node if it names no GPU.

    Attributes:
        code: a key of ``DEFAULT_ACTIONS``.
        detail: figures and texts of the driver.
        uuid, pci_address: the GPU; a driver that has lost it reports only its address.
    """

    code: str
    detail: str = ""
    uuid: str = ""
    pci_address: str = ""

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Condition:
        """Read a condition; codes of later versions are accepted."""
        take = Fields(data, "condition")
        return cls(
            code=take.text("code", None, 63),
            detail=take.text("detail", "", 500),
            uuid=take.text("uuid", "", 128),
            pci_address=take.text("pci_address", "", 32),
        )
