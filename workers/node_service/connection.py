"""The connection to one node: reconnects, and reports loss and return of contact."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tenants.keyring import SshKey
from workers.node_service.ports import NodeAddress, Service
from workers.node_service.session import NodeSession
from workers.services.dispatch import Directive
from workers.services.node_reports import ContactLost, Preparing
from workers.services.reach import Silence
from workers.signals import image_progress
from workers.transports.base import Transport, TransportError

log = logging.getLogger(__name__)

MOST_SIGN_INS: Final = 32
SLOW_SIGN_IN_SECONDS: Final = 1.0


class SignIns:
    """Limits the number of concurrent sign-ins on nodes.

    After the loss of a host, one service connects to hundreds of nodes. If all sign-ins run at
    once, each of them lasts as long as all together, and exceeds its time limit.
    """

    def __init__(
        self, *, most: int = MOST_SIGN_INS, slow_seconds: float = SLOW_SIGN_IN_SECONDS
    ) -> None:
        """Create an object without sign-ins.

        Args:
            most: maximum number of concurrent sign-ins that are not slow.
            slow_seconds: time after which a sign-in no longer counts: a dead node does not delay
                the others.
        """
        self._places = asyncio.Semaphore(most)
        self._slow_seconds = slow_seconds

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and use it inside the block for a limited time."""
        await self._places.acquire()
        freed: list[bool] = []

        def free() -> None:
            freed.append(True)
            self._places.release()

        freeing = asyncio.get_running_loop().call_later(self._slow_seconds, free)
        try:
            yield
        finally:
            if not freed:
                freeing.cancel()
                self._places.release()


class NodeConnection:
    """Tasks for one node; a slow or dead node does not delay other nodes.

    Attributes:
        address: the node.
    """

    def __init__(
        self, address: NodeAddress, service: Service, *, silent: float | None = None
    ) -> None:
        """Create an idle connection.

        Args:
            address: the node.
            service: the service that owns the connection.
            silent: seconds since the previous service recorded the loss of contact, or None.
        """
        self.address = address
        self._service = service
        self._visit: NodeSession | None = None
        self._failures = 0
        self._silent_since = None if silent is None else time.monotonic() - silent
        self._reported_down: bool | None = None
        self._heard_at = time.monotonic()
        self._queued_at: float | None = None
        self._was_heard = False

    @property
    def node_id(self) -> int:
        return self.address.node_id

    @property
    def is_listening(self) -> bool:
        """Return whether the connection accepts directives now."""
        return self._visit is not None and self._visit.is_listening

    def silence(self, now: float) -> Silence:
        """Return the silence of the node at an instant of the monotonic clock."""
        settings = self._service.settings
        heard_at = self._heard_at if self._visit is None else self._visit.heard_at
        # Waiting for a sign-in is not a missing response of the node.
        waited = 0.0 if self._queued_at is None else now - self._queued_at
        return Silence(
            seconds=now - heard_at - waited,
            patience=settings.unreached_after if self._was_heard else settings.first_contact,
            noted=None if self._silent_since is None else now - self._silent_since,
        )

    @property
    def line(self) -> Transport | None:
        """The open transport of the node, or None."""
        return self._visit.transport if self._visit is not None and self.is_listening else None

    @property
    def busy(self) -> frozenset[int]:
        """Members with a directive in progress."""
        return self._visit.directives.busy if self._visit is not None else frozenset()

    def take(self, directive: Directive) -> None:
        """Start a directive; after a lost connection, the rows give the same directive again."""
        if self._visit is not None and self._visit.is_listening:
            self._visit.take(directive)

    def replace_key(self, keys: Sequence[SshKey]) -> None:
        """Replace the key of the node; without a session, the next one does it."""
        if self._visit is not None and self._visit.is_listening:
            self._visit.replace_key(keys)

    async def carry(self) -> None:
        """Stay connected until cancelled."""
        while True:
            reason = await self._connect_and_stay()
            self._note_silence(reason)
            await asyncio.sleep(self._backoff())

    async def _connect_and_stay(self) -> str:
        """Connect, wait until the connection breaks, and return the reason."""
        reason = "the session ended"
        transport = self._service.connect(self.address, self._report_progress)
        try:
            self._queued_at = time.monotonic()
            async with self._service.sign_in():
                self._heard_at += time.monotonic() - self._queued_at
                self._queued_at = None
                hello = await transport.open()
            self._visit = NodeSession(self.address, transport, self._service, self._heard)
            self._was_heard = True
            await self._visit.stay(hello)
        except* TransportError as group:
            reason = _first(group)
        except* Exception as group:
            # A bug that concerns one node must not end the service for the other nodes.
            log.exception("%s: its management failed", self.address.name, exc_info=group)
            reason = f"internal error: {_first(group)}"
        finally:
            self._queued_at = None
            if self._visit is not None:
                self._heard_at, self._visit = self._visit.heard_at, None
            await transport.close()
        return reason

    def _heard(self) -> None:
        """Mark the node as reachable after its first reconciliation."""
        self._failures = 0
        self._silent_since = None
        self._reported_down = None

    def _note_silence(self, reason: str) -> None:
        self._failures += 1
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        is_down = now - self._silent_since >= self._service.settings.down_after
        if self._reported_down != is_down:
            self._reported_down = is_down
            log.warning("%s does not respond: %s", self.address.name, reason)
            self._service.post(ContactLost(node_id=self.node_id, reason=reason, down=is_down))

    def _backoff(self) -> float:
        settings = self._service.settings
        # The exponent is bounded, since a node may be away for months.
        longest = settings.first_backoff * 2.0 ** min(self._failures - 1, 16)
        return min(longest, settings.longest_backoff) * random.uniform(0.5, 1.0)  # noqa: S311

    def _report_progress(self, run_id: str, text: str) -> None:
        rank = self._visit.rank(run_id) if self._visit is not None else None
        if rank is not None:
            self._service.post(
                Preparing(node_id=self.node_id, member_id=rank.member_id, message=text)
            )
            self._service.send_signal(
                image_progress,
                job_id=rank.job_id,
                attempt=rank.attempt_number,
                role=rank.role,
                rank=rank.rank,
                text=text,
            )


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the message of the first error in a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)[:400]
