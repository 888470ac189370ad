"""Names of device types: valid in addresses, and separate for GPUs that serve a display."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tessera.inventory import Device

MAX_TYPE: Final = 60
DISPLAY_SUFFIX: Final = "-display"
"""Ends the types of display GPUs, which only jobs that name the type get."""
_DEVICE: Final = "device"
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9._+-]+")


def clean_name(text: str) -> str:
    """Return a text without characters that are invalid in cell types."""
    return _NOT_IN_A_NAME.sub("-", text)


def type_name(kind: str) -> str:
    """Return the device type for a reported type; its name is valid in addresses."""
    return clean_name(kind).strip("-.")[:MAX_TYPE] or _DEVICE


def is_display(device_type: str) -> bool:
    """Return whether devices of this type serve a display."""
    return device_type.lower().endswith(DISPLAY_SUFFIX)


def usable(types: Iterable[str]) -> tuple[str, ...]:
    """Return the types for a job that names none: those of display GPUs only if all are."""
    found = tuple(types)
    return tuple(kind for kind in found if not is_display(kind)) or found


def reported_types(devices: Sequence[Device]) -> Mapping[str, str]:
    """Return the device type of each reported type of a node.

    A model is for display if each of its GPUs shows a screen and has at most half the memory of
    the largest GPU of the node. A workstation whose only GPUs show screens computes on them.
    """
    largest = max((device.memory_bytes for device in devices), default=0)
    found = {}
    for kind in dict.fromkeys(device.type for device in devices):
        name = type_name(kind)
        same = [device for device in devices if device.type == kind]
        if not is_display(name) and all(
            device.display and 0 < device.memory_bytes <= largest // 2 for device in same
        ):
            name = f"{name[: MAX_TYPE - len(DISPLAY_SUFFIX)]}{DISPLAY_SUFFIX}"
        found[kind] = name
    return found
