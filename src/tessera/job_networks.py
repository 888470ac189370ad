"""Networks of plain jobs on a node: setting, capabilities, and causes of limits.

Part of the bundle for nodes: Python 3.8, standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Dict, Iterable, List

from tessera.wire import Fields, Json

AUTO, ISOLATED, SHARED = "auto", "isolated", "shared"
SETTINGS = (AUTO, ISOLATED, SHARED)
"""Choices of a node's network for plain jobs of one instance; see ``network_for``."""

CONNECTED = "connected"
NETWORKS = (SHARED, ISOLATED, CONNECTED)
"""Networks of such a job: the node's, its own without or with outside access."""

# Causes for which a network is not available; REMEDIES has the text for people
NOT_TRIED = "not-tried"
NO_SANDBOX = "no-sandbox"
NO_CONNECTOR = "no-slirp4netns"
CONNECTOR_TOO_OLD = "slirp4netns-too-old"
NO_TUN = "no-tun-device"
CONNECTOR_FAILED = "slirp4netns-failed"
REMEDIES: Dict[str, str] = {
    NOT_TRIED: "Probe the node again.",
    NO_SANDBOX: "Raise the isolation level of the node to namespace or user.",
    NO_CONNECTOR: "Install the package slirp4netns on the node.",
    CONNECTOR_TOO_OLD: "Install slirp4netns 1.1 or newer, with libslirp 4.3 or newer.",
    NO_TUN: (
        "Load the kernel module tun, and let the node's user open /dev/net/tun"
        " (chmod 666 /dev/net/tun)."
    ),
    CONNECTOR_FAILED: "Read the detail, repair slirp4netns on the node, and probe it again.",
}
CAUSES = tuple(REMEDIES)


@dataclass(frozen=True)
class NetworkProbe:
    """The outcome of probing one kind of own network on a node.

    Attributes:
        network: ``isolated`` or ``connected``.
        available: a job can have it.
        cause: one of ``CAUSES``; empty when it is available.
        detail: the trial and its failure, for people.
        means: working options of the connector here.
    """

    network: str
    available: bool
    cause: str = ""
    detail: str = ""
    means: List[str] = field(default_factory=list)

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> NetworkProbe:
        """Read and check an outcome; unknown fields are ignored.

        Raises:
            ProtocolError: a field is of a wrong type, or the network is unknown.
        """
        take = Fields(data, "network")
        return cls(
            network=take.choice("network", None, NETWORKS),
            available=take.boolean("available", default=False),
            cause=take.text("cause", "", 64),
            detail=take.text("detail", "", 1000),
            means=take.texts("means", 8, 100),
        )


def network_for(setting: str, probes: Iterable[NetworkProbe]) -> str:
    """Return the network of a plain job of one instance that runs in a sandbox.

    ``auto`` and ``isolated`` give an own network with outside access if the node can connect it.
    Otherwise ``auto`` shares the node's network, and ``isolated`` leaves loopback only.

    Args:
        setting: one of ``SETTINGS``.
        probes: probes of the node.
    """
    if setting == SHARED:
        return SHARED
    if any(probe.available and probe.network == CONNECTED for probe in probes):
        return CONNECTED
    return ISOLATED if setting == ISOLATED else SHARED


def remedy(cause: str) -> str:
    return REMEDIES.get(cause, "")
