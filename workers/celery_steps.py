"""The node service as a part of the Celery worker on queue ``nodes``."""

import resource
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from celery import bootsteps

from tessera.bundle import Bundle, build_bundle
from workers.conf import client_keys, worker_settings
from workers.node_service.ports import Connect, NodeAddress
from workers.node_service.service import NodeService
from workers.node_service.thread import NodeServiceThread
from workers.transports.base import Transport
from workers.transports.docker import DockerTransport
from workers.transports.ssh import SshAddress


@cache
def bundle() -> Bundle:
    """Build the node program of this version."""
    return build_bundle()


def over_ssh() -> Connect:
    """Create transports over SSH, which run containers where the node has an engine."""

    def connect(node: NodeAddress, progress: Callable[[str, str], None]) -> Transport:
        address = SshAddress(
            host=node.host,
            port=node.port,
            user=node.user,
            host_key=node.host_key,
            client_keys=client_keys(),
            jump=node.jump,
        )
        return DockerTransport(address, bundle(), progress=progress)

    return connect


QUEUE: Final = "nodes"
MOST_OPEN_FILES: Final = 1 << 20


class NodeServiceStep(bootsteps.StartStopStep):
    """Runs a node service for the lifetime of a worker that consumes the queue ``nodes``."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        """Args: worker: the Celery worker."""
        super().__init__(worker, **options)
        self._thread: NodeServiceThread | None = None

    def include_if(self, worker: Any) -> bool:
        return QUEUE in worker.app.amqp.queues.consume_from

    def start(self, worker: Any) -> None:
        allow_open_files()
        self._thread = NodeServiceThread(_make_service)
        self._thread.start()

    def stop(self, worker: Any) -> None:
        """Release the nodes; their runs continue."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None


def allow_open_files() -> None:
    """Raise the soft limit of open files to the hard limit.

    Service managers set a soft limit of 1,024 for programs that use ``select``; a service with
    1,000 sessions needs more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _make_service() -> NodeService:
    settings = worker_settings()
    return NodeService(settings=settings, connect=over_ssh())
