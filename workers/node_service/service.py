"""The node service: claims nodes, manages them, and releases surplus nodes."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from django.db import DatabaseError
from django.dispatch import Signal

from scheduling.clusters.models import Node
from tenants.clock import MOST_SKEW, database_now, host_skew, is_skewed
from tenants.keyring import SshKey, current_keyring
from workers.conf import WorkerSettings
from workers.node_service.backoffs import Backoffs
from workers.node_service.connection import NodeConnection, SignIns
from workers.node_service.ports import Connect, NodeAddress
from workers.node_service.writer import ReportWriter, end_threads
from workers.services import heartbeats, node_keys, node_leases, reconcile
from workers.services.heartbeats import process_name
from workers.services.node_leases import NodeClaim
from workers.services.node_reports import NodeReport
from workers.services.reach import Silence
from workers.transports.base import Transport
from workers.transports.jump import jump_host_of

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

DISK_THREADS: Final = 2
OBJECT_STORE_THREADS: Final = 16
"""More than for a disk: a request takes milliseconds, and seconds when the store is slow."""
MOST_UNSENT: Final = 512
FROZEN_SECONDS: Final = 2.0
"""Delay of a pause above which the process counts as suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """Result of a read of nodes and leases.

    Attributes:
        taken: claims on newly taken nodes.
        surplus: nodes to release for another service.
        addresses: the nodes by id.
        unreached: unreachable nodes to release for another service.
        is_alone: no other service could manage nodes.
        keys: SSH keys of the control plane; the current one first.
        outdated: managed nodes that need the current key now.
    """

    taken: dict[int, NodeClaim]
    surplus: list[int]
    addresses: dict[int, NodeAddress]
    unreached: dict[int, Silence] = field(default_factory=dict)
    is_alone: bool = True
    keys: tuple[SshKey, ...] = ()
    outdated: frozenset[int] = frozenset()


class NodeService:
    """Manages its share of the nodes. Several services share all nodes by leases."""

    def __init__(
        self,
        *,
        settings: WorkerSettings,
        connect: Connect,
        owner: str | None = None,
        skew: Callable[[], timedelta] = host_skew,
    ) -> None:
        """Create an idle service.

        Args:
            settings: settings of the workers.
            connect: creates transports.
            owner: names the service, unique for each start.
            skew: lead of this host's clock over the database's clock.
        """
        self._settings = settings
        self._connect = connect
        self.owner = owner or process_name(node_leases.SERVICE_KIND)
        self._epochs: dict[int, int] = {}
        self._carriers: dict[int, NodeConnection] = {}
        self._carried: frozenset[int] = frozenset()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sign_ins = SignIns()
        self._desk = ReportWriter(owner=self.owner, settings=settings, lost=self._drop)
        threads = OBJECT_STORE_THREADS if settings.storage.is_shared else DISK_THREADS
        self._disk = ThreadPoolExecutor(threads, thread_name_prefix="disk")
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="signals")
        self._unsent = 0
        self._releasing: asyncio.Task[None] | None = None
        self._backoffs = Backoffs(
            owner=self.owner,
            connect=connect,
            sign_in=self._sign_ins.place,
            write=self._desk.write,
            first=settings.first_return,
        )
        self._is_alone = True
        self._beaten = float("-inf")
        self._skew = skew
        self._refusal = ""

    @property
    def settings(self) -> WorkerSettings:
        return self._settings

    @property
    def connect(self) -> Connect:
        return self._connect

    @property
    def carried(self) -> frozenset[int]:
        """The managed nodes; thread-safe."""
        return self._carried

    # -- interface to connections ------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        return self._is_alone

    def sign_in(self) -> AbstractAsyncContextManager[None]:
        """Wait for a place among the concurrent sign-ins."""
        return self._sign_ins.place()

    def post(self, news: NodeReport) -> None:
        self._desk.post(news)

    async def confirm(self, news: NodeReport) -> bool:
        """Queue a report and wait for its turn; returns whether it was written."""
        return await self._desk.confirm(news)

    def line_to(self, node_id: int) -> Transport | None:
        """Return the transport of a managed node that responds now, or None."""
        carrier = self._carriers.get(node_id)
        return carrier.line if carrier is not None else None

    def wake(self) -> None:
        self._desk.wake()

    async def flush(self, node_id: int) -> None:
        """Wait until all reports of a node so far have been written, except slow ones."""
        await self._desk.flush(node_id)

    def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return self._desk.read(function, *args, **kwargs)

    def on_disk(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._disk, partial(function, *args, **kwargs))

    def send_signal(self, signal: Signal, **arguments: Any) -> None:
        """Send a signal from a separate thread; pages that miss one fetch again."""
        if not signal.has_listeners(None) or self._unsent >= MOST_UNSENT:
            return
        self._unsent += 1
        loop = asyncio.get_running_loop()
        sent = loop.run_in_executor(
            self._sender, partial(signal.send_robust, sender=None, **arguments)
        )
        sent.add_done_callback(self._signal_sent)

    def _signal_sent(self, _: object) -> None:
        self._unsent -= 1

    # -- the service -------------------------------------------------------------------------

    async def run(self) -> None:
        """Manage nodes until cancelled; then release them for other services."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._desk.run(lambda: self._epochs, self._carriers))
                tasks.create_task(self._look_around())
                tasks.create_task(self._reap())
        finally:
            await self._end()

    async def _look_around(self) -> None:
        was_frozen = False
        while True:
            # After a freeze of this process, replies may be unread: silence proves nothing.
            silences = {} if was_frozen else self._silences()
            try:
                look = await self._desk.write(self._look, frozenset(self._carriers), silences)
            except DatabaseError as error:
                log.warning("the rows of nodes could not be read: %s", error)
            else:
                self._follow(look)
            begun = time.monotonic()
            await asyncio.sleep(self._settings.look_every)
            was_frozen = time.monotonic() - begun > self._settings.look_every + FROZEN_SECONDS

    def _silences(self) -> dict[int, Silence]:
        now = time.monotonic()
        return {node_id: carrier.silence(now) for node_id, carrier in self._carriers.items()}

    def _look(self, carried: frozenset[int], silences: Mapping[int, Silence]) -> RowChanges:
        """Send a heartbeat, claim nodes, and read the addresses of all nodes; runs in a thread."""
        now, lease = database_now(), timedelta(seconds=self._settings.node_lease)
        refusal = self._check_clock()
        if refusal != self._refusal or self._is_beat_due():
            facts = heartbeats.host_facts(self._settings.data_dir, skew=self._skew())
            heartbeats.beat(
                process=self.owner,
                kind=node_leases.SERVICE_KIND,
                now=now,
                facts=facts,
                refusal=refusal,
            )
            self._beaten, self._refusal = time.monotonic(), refusal
        if refusal:
            return RowChanges(taken={}, surplus=sorted(carried), addresses=_addresses())
        claim = {"owner": self.owner, "carried": carried, "now": now, "fresh": lease}
        living = node_leases.fellows(owner=self.owner, now=now, fresh=lease)
        keys = current_keyring().ssh_keys
        outdated = node_keys.nodes_to_replace(carried, keys, now=now)
        if not outdated:
            node_keys.drop_replaced_keys(keys)
        taken = node_leases.claim_nodes(**claim, lease=lease)  # type: ignore[arg-type]
        return RowChanges(
            taken=taken,
            surplus=node_leases.surplus(**claim),  # type: ignore[arg-type]
            addresses=_addresses(),
            unreached=node_leases.unreached(
                owner=self.owner, silences=silences, living=living, now=now
            ),
            is_alone=not living,
            keys=keys,
            outdated=outdated,
        )

    def _is_beat_due(self) -> bool:
        return time.monotonic() - self._beaten >= self._settings.node_lease / 3

    def _check_clock(self) -> str:
        """Return the reason why this service must not manage nodes; empty if it may."""
        skew = self._skew()
        refusal = node_leases.CLOCK_SKEW if is_skewed(skew) else ""
        if refusal and not self._refusal:
            log.error(
                "this host manages no nodes: its clock differs from the database clock by "
                "%+.1f s; at most %g s are allowed; synchronize it with NTP",
                skew.total_seconds(),
                MOST_SKEW.total_seconds(),
            )
        elif self._refusal and not refusal:
            log.warning("this host manages nodes again: its clock agrees with the database clock")
        return refusal

    def _follow(self, look: RowChanges) -> None:
        self._is_alone = look.is_alone
        self._backoffs.follow(look.addresses)
        for node_id in list(self._carriers):
            if look.addresses.get(node_id) != self._carriers[node_id].address:
                self._restart(node_id, look.addresses.get(node_id))
        for node_id, claim in look.taken.items():
            if node_id in look.addresses:
                self._epochs[node_id] = claim.epoch
                self._backoffs.end(node_id)
                self._start(look.addresses[node_id], silent=claim.silent)
        for node_id, silence in look.unreached.items():
            carrier = self._carriers.get(node_id)
            if carrier is not None:
                log.warning(
                    "%s has not responded for %.0f s and is released to other services",
                    carrier.address.name,
                    silence.seconds,
                )
                self._drop([node_id])
                self._backoffs.begin(carrier.address, silent=silence.noted)
        for node_id in look.outdated:
            if node_id in self._carriers:
                self._carriers[node_id].replace_key(look.keys)
        if look.surplus:
            log.warning("releases nodes %s to other services", look.surplus)
            self._drop(look.surplus)
            self._releasing = asyncio.create_task(self._release(look.surplus))

    async def _release(self, node_ids: Collection[int]) -> None:
        try:
            await self._desk.write(
                lambda: node_leases.release(
                    owner=self.owner, node_ids=node_ids, now=database_now()
                )
            )
        except DatabaseError as error:
            log.warning("nodes could not be released; their leases expire: %s", error)

    def _start(self, address: NodeAddress, *, silent: float | None = None) -> None:
        carrier = NodeConnection(address, self, silent=silent)
        self._carriers[address.node_id] = carrier
        self._carried = frozenset(self._carriers)
        self._tasks[address.node_id] = asyncio.get_running_loop().create_task(carrier.carry())

    def _restart(self, node_id: int, address: NodeAddress | None) -> None:
        if address is None:
            self._drop([node_id])
            return
        self._tasks.pop(node_id).cancel()
        self._start(address)

    def _drop(self, node_ids: Collection[int]) -> None:
        """Disconnect from nodes that other services manage now."""
        dropped = sorted(self._carriers.keys() & set(node_ids))
        if dropped:
            log.warning("nodes %s are no longer managed by this service", dropped)
        for node_id in dropped:
            del self._carriers[node_id]
            self._tasks.pop(node_id).cancel()
        for node_id in node_ids:
            self._epochs.pop(node_id, None)
        self._carried = frozenset(self._carriers)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(self._settings.reap_every)
            try:
                gone = await self._desk.read(self._find_gone, list(self._carriers))
            except DatabaseError as error:
                log.warning("lost members could not be checked: %s", error)
                continue
            for news in gone:
                self.post(news)

    def _find_gone(self, node_ids: Collection[int]) -> list[NodeReport]:
        return reconcile.find_gone(node_ids=node_ids, settings=self._settings, now=database_now())

    async def _end(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._backoffs.close(), return_exceptions=True)
        try:
            await self._desk.write(self._sign_off, list(self._carriers))
        except DatabaseError as error:
            log.warning("could not sign off: %s", error)
        self._carriers.clear()
        await self._desk.close()
        self._disk.shutdown(wait=True)
        await asyncio.to_thread(end_threads, self._sender, 1)

    def _sign_off(self, node_ids: Collection[int]) -> None:
        node_leases.release(owner=self.owner, node_ids=node_ids, now=database_now())
        node_leases.end_backoffs(owner=self.owner)
        heartbeats.forget(processes=[self.owner])


def _addresses() -> dict[int, NodeAddress]:
    rows = Node.objects.exclude(host="").values_list(
        "id", "name", "host", "port", "user", "host_key", "jump_host"
    )
    return {
        node_id: NodeAddress(
            node_id=node_id,
            name=name,
            host=host,
            port=port,
            user=user,
            host_key=host_key,
            jump=jump_host_of(jump),
        )
        for node_id, name, host, port, user, host_key, jump in rows
    }
