"""The node service as a part of the Celery worker on queue ``nodes``."""

from typing import Any, Final

from celery import bootsteps

from workers.conf import worker_settings
from workers.node_service.service import NodeService
from workers.node_service.thread import NodeServiceThread
from workers.node_service.transport_choice import over_ssh

QUEUE: Final = "nodes"


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
        self._thread = NodeServiceThread(_make_service)
        self._thread.start()

    def stop(self, worker: Any) -> None:
        """Release the nodes; their runs continue."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None


def _make_service() -> NodeService:
    settings = worker_settings()
    return NodeService(settings=settings, connect=over_ssh(settings))
