"""The network of a gang on several nodes: one interface of each node."""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """Facts of a node for the choice of an interface.

    Attributes:
        host: its SSH address.
        chosen: name of the interface that an admin set; empty for a free choice.
        interfaces: reported interfaces: name, address with prefix, and speed in megabits per
            second (0 if unknown).
    """

    host: str
    chosen: str = ""
    interfaces: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAddress:
    """Interface and address of one node of a gang."""

    interface: str
    address: str


@dataclass(slots=True)
class _Subnet:
    """Interfaces in one subnet, by node; the fastest of each node."""

    network: IPv4Network
    found: dict[int, tuple[int, str, IPv4Interface]] = field(default_factory=dict)

    def add(self, node: int, name: str, address: IPv4Interface, speed: int) -> None:
        best = self.found.get(node)
        if best is None or speed > best[0]:
            self.found[node] = speed, name, address

    def reaches(self, nodes: Iterable[int]) -> bool:
        """Return whether each node has a distinct address in the subnet.

        Bridges of container engines have the same address on all nodes.
        """
        addresses = {address.ip for _, _, address in self.found.values()}
        return self.found.keys() == set(nodes) and len(addresses) == len(self.found)


def data_addresses(nodes: Mapping[int, NodeNetwork]) -> dict[int, DataAddress]:
    """Choose the addresses by which the members of a gang reach each other.

    An interface set by an admin takes precedence. Otherwise all nodes use the shared subnet whose
    slowest interface is the fastest; the subnet of the SSH addresses wins a tie.

    Args:
        nodes: nodes of the gang by ID.

    Returns:
        Interface and address by node. Empty if the SSH addresses apply: on one node, on nodes with
        loopback addresses, and without a shared subnet.
    """
    if len(nodes) < 2 or any(_is_loopback(node.host) for node in nodes.values()):
        return {}
    offered = {number: list(_offered(node)) for number, node in nodes.items()}
    if all(node.chosen for node in nodes.values()) and all(offered.values()):
        return {
            number: DataAddress(interface=name, address=str(address.ip))
            for number, ((name, address, _), *_) in offered.items()
        }
    subnets: dict[IPv4Network, _Subnet] = {}
    for number, interfaces in offered.items():
        for name, address, speed in interfaces:
            known = subnets.setdefault(address.network, _Subnet(address.network))
            known.add(number, name, address, speed)
    shared = [subnet for subnet in subnets.values() if subnet.reaches(nodes)]
    if not shared:
        return {}
    hosts = {node.host for node in nodes.values()}
    best = max(shared, key=lambda subnet: _rank(subnet, hosts))
    return {
        number: DataAddress(interface=name, address=str(address.ip))
        for number, (_, name, address) in best.found.items()
    }


def _rank(subnet: _Subnet, hosts: Iterable[str]) -> tuple[int, int, int]:
    slowest = min(speed for speed, _, _ in subnet.found.values())
    known = {str(address.ip) for _, _, address in subnet.found.values()}
    return slowest, len(known.intersection(hosts)), -int(subnet.network.network_address)


def _offered(node: NodeNetwork) -> Iterable[tuple[str, IPv4Interface, int]]:
    for name, text, speed in node.interfaces:
        address = ipaddress.IPv4Interface(text)
        if not address.ip.is_link_local and node.chosen in ("", name):
            yield name, address, speed


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
