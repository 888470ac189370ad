"""Names of device types: valid in addresses, separate for display GPUs, and with aliases."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from tessera.inventory import Device

MAX_TYPE: Final = 60
MOST_TYPES: Final = 16
"""Most device types of a role; an alias that means more of them is cut off."""
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


_VENDORS: Final = frozenset(
    {"nvidia", "amd", "intel", "huawei", "tesla", "geforce", "quadro", "instinct", "radeon"}
)
_SERIES: Final = frozenset({"rtx", "gtx", "pro", "ascend", "gaudi", "arc"})
_SIZE: Final = re.compile(r"(\d+)gb?")
_PROFILE: Final = re.compile(r"\d+g\.\d+gb.*")


@lru_cache(maxsize=1024)
def automatic_aliases(device_type: str) -> frozenset[str]:
    """Return short names of a device type in lower case, from the usual form of its name.

    ``NVIDIA-A100-SXM4-80GB`` is also ``a100``, ``a100-80gb``, ``a100-80g`` and ``a100-sxm4-80gb``.
    A MIG instance has its profile in each name, so ``a100`` is a whole GPU. Display GPUs have no
    short names.
    """
    if is_display(device_type):
        return frozenset()
    words = [word for word in device_type.lower().split("-") if word not in _VENDORS]
    if not words:
        return frozenset()
    length = 2 if words[0] in _SERIES and len(words) > 1 else 1
    model, rest = "-".join(words[:length]), words[length:]
    profiles = [word for word in rest if _PROFILE.fullmatch(word)]
    if "mig" in rest or profiles:
        return frozenset(f"{model}-{word}" for word in profiles) | {"-".join(words)}
    sizes = [match[1] for word in rest if (match := _SIZE.fullmatch(word))]
    found = {model, "-".join(words)} | {
        f"{model}-{size}{u}" for size in sizes for u in ("g", "gb")
    }
    return frozenset(found | {f"{model}-{word}" for word in rest if not _SIZE.fullmatch(word)})


def types_named(
    name: str, types: Collection[str], aliases: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the device types that a name in a job means; empty for an unknown name.

    Case does not matter. A type of this name comes first, then the aliases that admins set, then
    the automatic ones, each with all types of this alias. Types that the cluster no longer has
    are omitted from an alias, unless it means no other.

    Args:
        name: the name in the job.
        types: the device types of the cluster.
        aliases: types by alias in lower case, as set by admins.
    """
    if name in types:
        return (name,)
    lower = name.lower()
    same = tuple(sorted(kind for kind in types if kind.lower() == lower))
    given = tuple(aliases.get(lower, ()))
    return (
        same
        or tuple(kind for kind in given if kind in types)
        or given
        or tuple(sorted(kind for kind in types if lower in automatic_aliases(kind)))
    )
