"""Messages for conditions of GPUs and their drivers, by the codes of ``tessera.hardware``."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

CONDITIONS: Final[Mapping[str, Template]] = {
    "condition-lost": fixed("its driver has lost the GPU"),
    "condition-reset-required": fixed("the GPU requires a reset"),
    "condition-driver-hung": fixed("the GPU driver does not respond"),
    "condition-ecc-uncorrectable": fixed("uncorrectable memory errors"),
    "condition-row-remap-pending": fixed("memory rows are remapped at the next reset"),
    "condition-row-remap-failed": fixed("a memory row could not be remapped"),
    "condition-retired-pages-pending": fixed("memory pages are retired at the next reset"),
    "condition-hardware-slowdown": fixed("slowed down by the hardware"),
    "condition-thermal-slowdown": fixed("slowed down by its temperature"),
    "condition-power-brake": fixed("slowed down by the power supply"),
    "condition-nvlink-errors": fixed("NVLink errors"),
    "condition-fabric-not-ready": fixed("not registered with the fabric manager"),
    "condition-compute-mode": fixed("its compute mode limits processes"),
    "condition-xid-hardware": fixed("hardware error (Xid)"),
    "condition-xid-memory": fixed("memory error (Xid)"),
    "condition-xid-nvlink": fixed("NVLink error (Xid)"),
    "condition-xid-driver": fixed("driver error (Xid)"),
    "condition-xid-application": fixed("error of an application (Xid)"),
    "not-condition": fixed("This is not a valid condition of a GPU."),
    "not-condition-action": fixed("This is not a valid action for a condition."),
}
