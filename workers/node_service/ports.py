"""Interface of the node service to its connections."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from django.dispatch import Signal

from workers.conf import WorkerSettings
from workers.services.node_reports import NodeReport
from workers.transports.base import Transport
from workers.transports.jump import JumpHost

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Address of a node for a connection; a changed address requires a new connection."""

    node_id: int
    name: str
    host: str
    port: int
    user: str
    host_key: str
    jump: JumpHost | None = None


Connect = Callable[[NodeAddress, Callable[[str, str], None]], Transport]
"""Function that creates a transport, given a callback for image progress (run id, text)."""


class Service(Protocol):
    """Interface of the service to its connections."""

    @property
    def settings(self) -> WorkerSettings:
        """Settings of the workers."""

    @property
    def connect(self) -> Connect:
        """Create transports."""

    @property
    def is_alone(self) -> bool:
        """Return whether this is the only live service."""

    def sign_in(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place among the concurrent sign-ins, and use it inside the block."""

    def post(self, news: NodeReport) -> None:
        """Queue a report for the next turn."""

    async def confirm(self, news: NodeReport) -> bool:
        """Queue a report and wait for its turn; returns whether it was written."""

    def line_to(self, node_id: int) -> Transport | None:
        """Return the transport of another node if this service manages it and it responds now."""

    def wake(self) -> None:
        """Request a turn, since there may be new directives."""

    async def flush(self, node_id: int) -> None:
        """Wait until all reports of a node so far have been written, except slow ones."""

    def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Read from the database in a thread."""

    def on_disk(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Read or write files in a thread."""

    def send_signal(self, signal: Signal, **arguments: Any) -> None:
        """Send a signal from a thread; dropped without receivers or when they lag."""
