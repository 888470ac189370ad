"""Access to nodes over SSH, with the control plane's key and this version's node part."""

from collections.abc import Callable
from functools import cache

from tessera.bundle import Bundle, build_bundle
from workers.conf import WorkerSettings
from workers.node_service.ports import Connect, NodeAddress
from workers.transports.base import Transport
from workers.transports.docker import DockerTransport
from workers.transports.ssh import SshAddress


@cache
def bundle() -> Bundle:
    """Build the node's part of this version."""
    return build_bundle()


def over_ssh(settings: WorkerSettings) -> Connect:
    """Create transports over SSH, which run containers where the node has an engine."""

    def connect(node: NodeAddress, progress: Callable[[str, str], None]) -> Transport:
        address = SshAddress(
            host=node.host,
            port=node.port,
            user=node.user,
            host_key=node.host_key,
            client_key=settings.client_key,
        )
        return DockerTransport(address, bundle(), progress=progress)

    return connect
