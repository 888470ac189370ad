"""Network interfaces and InfiniBand adapters of the node, for members of gangs."""

from __future__ import annotations

import os
import socket
from typing import List, Optional, Sequence

from tessera.inventory import MAX_ADAPTERS, MAX_INTERFACES
from tessera.node import system
from tessera.protocol import Interface

NETWORKS, ADAPTERS, VERBS = "/sys/class/net", "/sys/class/infiniband", "/dev/infiniband"
_ADDRESS, _MASK = 0x8915, 0x891B  # SIOCGIFADDR, SIOCGIFNETMASK
_NAME_BYTES, _REQUEST_BYTES = 16, 40


def found(top: str = NETWORKS, names: Optional[Sequence[str]] = None) -> List[Interface]:
    """Return the interfaces that are up and have an IPv4 address, without loopback, by name.

    Of more than an inventory may have, the first ones are returned.

    Args:
        top: directory of the kernel with one entry for each interface.
        names: names of interfaces; those of the node if None.
    """
    listed: List[Interface] = []
    for name in sorted(name for _, name in socket.if_nameindex()) if names is None else names:
        address = _address(name) if name != "lo" and _is_up(os.path.join(top, name)) else ""
        if address:
            listed.append(Interface(name, address, _speed(os.path.join(top, name))))
    return listed[:MAX_INTERFACES]


def infiniband(adapters: str = ADAPTERS, verbs: str = VERBS) -> List[str]:
    """Return the adapters with an active port, by name; empty if programs cannot open them.

    Of more than an inventory may have, the first ones are returned.

    Args:
        adapters: directory of the kernel with one entry for each adapter.
        verbs: directory with the device files for programs.
    """
    if not any(name.startswith("uverbs") for name in _names(verbs)):
        return []
    found = [name for name in _names(adapters) if _has_active_port(f"{adapters}/{name}/ports")]
    return found[:MAX_ADAPTERS]


def _has_active_port(ports: str) -> bool:
    states = (system.read_text(f"{ports}/{port}/state") for port in _names(ports))
    return any(state.strip().endswith("ACTIVE") for state in states)


def _names(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _is_up(path: str) -> bool:
    # Virtual interfaces report "unknown" while they work.
    return system.read_text(f"{path}/operstate").strip() in ("up", "unknown")


def _speed(path: str) -> int:
    text = system.read_text(f"{path}/speed").strip()
    return int(text) if text.isdigit() else 0


def _address(name: str) -> str:
    """Return the first IPv4 address of an interface with its prefix; empty without one."""
    import fcntl  # noqa: PLC0415 - costs start-up time that only this path needs

    request = name.encode("utf-8").ljust(_NAME_BYTES, b"\0").ljust(_REQUEST_BYTES, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            address, mask = (
                fcntl.ioctl(asking.fileno(), call, request)[20:24] for call in (_ADDRESS, _MASK)
            )
        except OSError:
            return ""
    return f"{socket.inet_ntoa(address)}/{bin(int.from_bytes(mask, 'big')).count('1')}"
