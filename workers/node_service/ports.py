"""What carriers leave for the database, and what they may use of the service."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from django.dispatch import Signal

from workers.conf import WorkerSettings
from workers.services.node_reports import NodeReport
from workers.transports.base import Transport

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """A node as a carrier needs it; another value means another connection."""

    node_id: int
    name: str
    host: str
    port: int
    user: str
    host_key: str


Connect = Callable[[NodeAddress, Callable[[str, str], None]], Transport]
"""Makes a transport, given what is to hear the progress of image pulls (run id, words)."""


class Service(Protocol):
    """What a carrier may use of the service that runs it."""

    @property
    def settings(self) -> WorkerSettings:
        """Of the workers."""

    @property
    def connect(self) -> Connect:
        """How to reach nodes."""

    @property
    def is_alone(self) -> bool:
        """Whether no other service could carry its nodes."""

    def post(self, news: NodeReport) -> None:
        """Leave news to be written with the next turn."""

    async def confirm(self, news: NodeReport) -> bool:
        """Leave news and wait for its turn; returns whether it has been written."""

    def line_to(self, node_id: int) -> Transport | None:
        """The line to another node, if this service carries it and it answers now."""

    def wake(self) -> None:
        """Ask for a turn, since directives may be waiting."""

    async def flush(self) -> None:
        """Wait until all news so far have been written."""

    def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Read from the database in a thread."""

    def on_disk(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Read or write files in a thread."""

    def tell(self, signal: Signal, **arguments: Any) -> None:
        """Send a signal from a thread; dropped where nobody listens or the listeners lag."""
