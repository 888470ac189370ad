"""Networks that jobs get on a node: derived from its probe and from its setting."""

from scheduling.clusters.models.nodes import PLAIN_LEVELS
from tessera.inventory import Inventory
from tessera.isolation import NONE, OWN_NETWORK, SHARED_NETWORK, best_available
from tessera.job_networks import AUTO, SHARED, network_for


def plain_network(found: Inventory, setting: str) -> str:
    """The network of plain jobs of one instance; empty where none was tried.

    Args:
        found: what the node reported.
        setting: of the node here; empty: that of its own file counts.
    """
    if not found.isolation or not found.networks:
        return ""
    if best_available(found.isolation, of=tuple(PLAIN_LEVELS)) == NONE:
        return SHARED
    return network_for(setting or found.job_network or AUTO, found.networks)


def container_network(found: Inventory) -> str:
    """The network of containers of one instance; empty without a container engine."""
    if not found.docker:
        return ""
    return OWN_NETWORK if found.firewall else SHARED_NETWORK
