"""Retries of released nodes until they respond again."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from typing import Final

from django.db import DatabaseError

from tenants.clock import database_now
from workers.node_service.ports import Connect, NodeAddress
from workers.services import node_leases
from workers.services.reach import backoff_seconds
from workers.transports.base import TransportError

log = logging.getLogger(__name__)

TRY_SECONDS: Final = 20.0
"""Time limit of one retry; the back-off remains in force meanwhile."""


class Backoffs:
    def __init__(
        self,
        *,
        owner: str,
        connect: Connect,
        sign_in: Callable[[], AbstractAsyncContextManager[None]],
        write: Callable[[Callable[[], None]], Awaitable[None]],
        first: float,
    ) -> None:
        """Create an object without nodes.

        Args:
            owner: this service.
            connect: opens a transport.
            sign_in: waits for a place among the concurrent sign-ins of the service.
            write: calls a function that writes to the database.
            first: seconds before the first try.
        """
        self._owner = owner
        self._connect = connect
        self._sign_in = sign_in
        self._write = write
        self._first = first
        self._tasks: dict[int, tuple[NodeAddress, asyncio.Task[None]]] = {}
        self._deleting: set[asyncio.Task[None]] = set()

    def begin(self, address: NodeAddress, *, silent: float | None) -> None:
        """Start the back-off from a node.

        Args:
            address: address of the node.
            silent: seconds since the loss of contact was recorded, for the next service.
        """
        self.end(address.node_id)
        task = asyncio.get_running_loop().create_task(self._back_off(address, silent))
        self._tasks[address.node_id] = address, task

    def end(self, node_id: int) -> None:
        """Stop the retries of a node."""
        _, task = self._tasks.pop(node_id, (None, None))
        if task is not None:
            task.cancel()

    def follow(self, addresses: Mapping[int, NodeAddress]) -> None:
        """Stop the retries of nodes that were removed or have another address."""
        moved = [
            node_id
            for node_id, (address, _) in self._tasks.items()
            if addresses.get(node_id) != address
        ]
        for node_id in moved:
            self.end(node_id)
        if moved:
            task = asyncio.get_running_loop().create_task(self._delete(moved))
            self._deleting.add(task)
            task.add_done_callback(self._deleting.discard)

    async def close(self) -> None:
        """Stop the retries of all nodes."""
        tasks = [task for _, task in self._tasks.values()]
        for node_id in list(self._tasks):
            self.end(node_id)
        await asyncio.gather(*tasks, *self._deleting, return_exceptions=True)

    async def _back_off(self, address: NodeAddress, silent: float | None) -> None:
        for failures in itertools.count():
            pause = backoff_seconds(failures, self._first)
            if failures == 0:
                await self._note(address.node_id, silent, pause)
            else:
                await self._extend(address.node_id, pause)
            await asyncio.sleep(pause)
            if await self._answers(address):
                break
        log.warning("%s responds to this service again", address.name)
        await self._delete([address.node_id])
        self._tasks.pop(address.node_id, None)

    async def _note(self, node_id: int, silent: float | None, pause: float) -> None:
        def note() -> None:
            now = database_now()
            node_leases.back_off(
                owner=self._owner,
                node_id=node_id,
                now=now,
                until=now + timedelta(seconds=pause + TRY_SECONDS),
                silent_since=None if silent is None else now - timedelta(seconds=silent),
            )

        await self._insist(note)

    async def _extend(self, node_id: int, pause: float) -> None:
        def extend() -> None:
            now = database_now()
            until = now + timedelta(seconds=pause + TRY_SECONDS)
            node_leases.extend_backoff(owner=self._owner, node_id=node_id, now=now, until=until)

        await self._insist(extend)

    async def _delete(self, node_ids: Collection[int]) -> None:
        await self._insist(lambda: node_leases.end_backoffs(owner=self._owner, node_ids=node_ids))

    async def _insist(self, call: Callable[[], None]) -> None:
        try:
            await self._write(call)
        except DatabaseError as error:
            log.warning(
                "a back-off could not be written; it ends by itself or with the lease: %s", error
            )
        except Exception:
            log.exception("a back-off could not be written; it ends by itself or with the lease")

    async def _answers(self, address: NodeAddress) -> bool:
        try:
            transport = self._connect(address, lambda *_: None)
            try:
                # The wait counts too; after a partition, hundreds of nodes are tried at once.
                async with asyncio.timeout(TRY_SECONDS), self._sign_in():
                    await transport.open()
            finally:
                with suppress(TransportError):
                    await transport.close()
        except (TransportError, TimeoutError) as error:
            log.info("%s does not respond to this service yet: %s", address.name, error)
            return False
        except Exception:
            # A bug here must not end the retries, since nobody would notice.
            log.exception("%s: the connection attempt failed", address.name)
            return False
        return True
