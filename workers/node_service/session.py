"""One session with one node, from the greeting until the connection breaks."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from scheduling.clusters.services.storages import sources_to_probe
from scheduling.enums import MemberStep
from tenants.clock import estimated_now
from tenants.keyring import SshKey
from tessera import protocol
from tessera.isolation import NOT_AVAILABLE
from tessera.protocol import NodeHello, RunStatus
from workers.node_service.directives import DirectiveRunner, begin
from workers.node_service.follower import FETCHERS, Fetching
from workers.node_service.ports import NodeAddress, Service
from workers.node_service.rekeying import KeyReplacement
from workers.services import reconcile, telemetry
from workers.services.dispatch import Directive, MemberRef
from workers.services.logs import path_of
from workers.services.node_reports import (
    ContactBack,
    Coordinated,
    Exited,
    Lost,
    Probed,
    Read,
    Renewed,
    Running,
    StoragesFound,
)
from workers.services.reconcile import Finding, KnownMember, RunVerdict
from workers.signals import telemetry_seen
from workers.transports.base import NodeEvent, NodeLoad, RefusedError, Transport

log = logging.getLogger(__name__)

FENCE_GRACE_SECONDS: Final = 30.0
MINUTE: Final = 60.0
OLDEST_SECONDS: Final = 10 * 366 * 86_400.0
"""Age limit of timestamps of a node; an older one means that its clock was wrong."""


class NodeSession:
    """State and tasks of one node during one session.

    Attributes:
        directives: executes the directives of the node.
        is_listening: whether it accepts directives now.
    """

    def __init__(
        self,
        address: NodeAddress,
        transport: Transport,
        service: Service,
        heard: Callable[[], None],
    ) -> None:
        """Args: heard: is called after the first reconciliation of the node."""
        self.is_listening = False
        self._contact_at = time.monotonic()
        self._node = address
        self._transport = transport
        self._service = service
        self._heard = heard
        self._tasks = asyncio.TaskGroup()
        self._fetching = Fetching(transport, service)
        self._ranks: dict[str, MemberRef] = {}
        self._running: set[str] = set()
        self._over: set[str] = set()
        self._strays: set[str] = set()
        self._early: dict[tuple[str, str], NodeEvent] | None = None
        self._boot_id = ""
        self._numbers: dict[str, int] = {}
        self._inventories = 0
        self._rekeying = KeyReplacement(address, transport, service, self._tasks)
        self.directives = DirectiveRunner(
            transport=transport,
            service=service,
            tasks=self._tasks,
            saw=self._saw,
            less_isolated=self._probe_soon,
        )

    async def stay(self, hello: NodeHello) -> None:
        """Reconcile, then follow events and execute directives until an error or cancellation."""
        self._boot_id = hello.boot_id
        settings = self._service.settings
        try:
            async with self._tasks as tasks:
                hearing = tasks.create_task(self._hear())
                tasks.create_task(self._every(settings.contact_every, self._ask_for_contact))
                await self._reconcile()
                self._service.post(ContactBack(node_id=self._node.node_id, boot_id=self._boot_id))
                self._heard()
                self.is_listening = True
                self._service.wake()
                for _ in range(FETCHERS):
                    tasks.create_task(self._fetching.work())
                tasks.create_task(self._every(settings.reconcile_every, self._reconcile))
                tasks.create_task(self._every(settings.renew_every, self._renew, at_once=True))
                tasks.create_task(self._every(settings.probe_every, self._probe, at_once=True))
                tasks.create_task(self._sum_up())
                tasks.create_task(self._read_telemetry())
                await hearing
        finally:
            self.is_listening = False

    def replace_key(self, keys: Sequence[SshKey]) -> None:
        """Replace the control plane's key on the node by the first of ``keys``."""
        self._rekeying.begin(keys)

    def take(self, directive: Directive) -> None:
        self._ranks[directive.rank.run_id] = directive.rank
        self.directives.take(directive)

    @property
    def transport(self) -> Transport:
        return self._transport

    @property
    def heard_at(self) -> float:
        """Instant of the last bytes from the node, by the monotonic clock.

        If this is the only service, it does not poll the node, which then counts as responding.
        """
        return max(self._contact_at, self._transport.heard_at or 0.0)

    def rank(self, run_id: str) -> MemberRef | None:
        """Return the rank that a run belongs to."""
        return self._ranks.get(run_id)

    # -- events of the node ------------------------------------------------------------------

    async def _hear(self) -> None:
        async for event in self._transport.events():
            if self._early is not None and event.run_id not in self._ranks:
                self._early[type(event).__name__, event.run_id] = event
            await self._heard_of(event)

    async def _heard_of(self, event: NodeEvent) -> None:
        if isinstance(event, RunStatus):
            self._saw(event)
        rank = self._ranks.get(event.run_id)
        if rank is not None and event.run_id not in self._over:
            await self._fetching.grew(rank, log_end=event.log_end, reports_end=event.reports_end)

    def _saw(self, status: RunStatus) -> None:
        """Report a changed status of a run once."""
        rank = self._ranks.get(status.run_id)
        if rank is None:
            self._saw_stray(status)
            return
        if status.run_id in self._over:
            return
        has_run = status.phase == protocol.RUNNING or (
            status.phase == protocol.EXITED and status.pid is not None
        )
        if has_run and status.run_id not in self._running:
            self._running.add(status.run_id)
            self._service.post(
                Running(
                    node_id=rank.node_id,
                    member_id=rank.member_id,
                    pid=status.pid,
                    boot_id=status.boot_id or self._boot_id,
                    started_at=self._instant(status.started_at),
                    isolation=status.isolation,
                    network=status.network,
                    warnings=tuple(status.warnings),
                )
            )
        if status.phase == protocol.EXITED and status.exit is not None:
            if NOT_AVAILABLE in status.exit.message and status.exit.failure == protocol.NODE:
                self._probe_soon()
            end = Exited(
                node_id=rank.node_id,
                member_id=rank.member_id,
                record=status.exit,
                ended_at=self._instant(status.exit.at),
            )
            self._finish(rank, status, end)

    def _instant(self, node_time: float | None) -> datetime | None:
        """Convert a time of the node's clock to the control plane's clock; None if unknown."""
        clock = self._transport.clock
        if clock is None or node_time is None:
            return None
        age = clock.age(node_time, observer_time=time.monotonic())
        return estimated_now() - timedelta(seconds=min(max(age, 0.0), OLDEST_SECONDS))

    def _finish(self, rank: MemberRef, status: RunStatus, end: Exited | None = None) -> None:
        """Finish an ended run; ``end`` is its exit if the rows do not have it yet."""
        if rank.run_id in self._over:
            return
        self._over.add(rank.run_id)
        begin(self._tasks, self._finish_and_forget(rank, status, end))

    async def _finish_and_forget(
        self, rank: MemberRef, status: RunStatus, end: Exited | None
    ) -> None:
        # Until the end is stored in the rows, the run directory is its only proof.
        if end is not None and not await self._service.confirm(end):
            self._over.discard(rank.run_id)
            return  # compared again, by this service or the next one of the node
        await self._fetching.finish(rank, status)
        self.directives.done(rank.member_id)
        self._ranks.pop(rank.run_id, None)
        self._running.discard(rank.run_id)
        self._over.discard(rank.run_id)

    # -- comparing ---------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """Compare rows with run directories, and resolve every difference.

        Events of the node about unknown runs wait until afterwards, since they may be newer than
        the comparison.
        """
        await self._service.flush(self._node.node_id)
        self._early = {}
        try:
            for finding in await self._compare():
                await self._act(finding)
        finally:
            early, self._early = self._early, None
        for event in early.values():
            await self._heard_of(event)

    async def _compare(self) -> list[Finding]:
        node_id = self._node.node_id
        expected = await self._service.read(reconcile.expected_members, node_id=node_id)
        runs = await self._transport.runs()
        run_ids = frozenset(status.run_id for status in runs)
        rows = await self._service.read(
            reconcile.members_of_runs, node_id=node_id, run_ids=run_ids
        )
        return reconcile.compare(
            runs=runs,
            expected=expected,
            rows=rows,
            installation=self._service.settings.installation,
        )

    async def _act(self, finding: Finding) -> None:
        known, status = finding.known, finding.status
        if finding.run_id in self._over:
            return
        if known is None:
            if status is not None and finding.verdict is RunVerdict.FENCE_STRAY:
                await self._fence(status)
        elif status is None:
            await self._act_on_absent(finding.verdict, known)
        elif finding.verdict is RunVerdict.FOLLOW:
            await self._adopt(known, status)
        elif finding.verdict is RunVerdict.FINISH:
            await self._adopt_streams(known, status)
            self._finish(known.rank, status)
        elif known.rank.member_id not in self.directives.busy:
            await self._fence(status)

    async def _adopt(self, known: KnownMember, status: RunStatus) -> None:
        self._ranks[status.run_id] = known.rank
        if known.step == MemberStep.RUNNING:
            self._running.add(status.run_id)
        await self._adopt_streams(known, status)
        self._saw(status)

    async def _adopt_streams(self, known: KnownMember, status: RunStatus) -> None:
        if status.log_end or status.reports_end:
            await self._fetching.follow(
                known.rank, log_first=known.log_first, reports_end=known.reports_end
            )
            await self._fetching.grew(
                known.rank, log_end=status.log_end, reports_end=status.reports_end
            )

    async def _act_on_absent(self, verdict: RunVerdict, known: KnownMember) -> None:
        rank = known.rank
        if verdict is RunVerdict.LOST:
            message = "its run directory no longer exists on the node"
            self._service.post(
                Lost(node_id=rank.node_id, member_id=rank.member_id, message=message)
            )
            return
        stored = self._service.settings.storage.logs
        try:
            kept = await self._service.on_disk(stored.extent, path_of(rank), first=known.log_first)
        except OSError as error:
            log.warning("%s: compared again later: %s", rank.run_id, error)
            return
        self._fetching.forget(rank, first=kept.first, end=kept.end)

    # -- fencing -----------------------------------------------------------------------------

    async def _fence(self, status: RunStatus) -> None:
        """Stop a run without a live row, and remove it when it has ended."""
        log.warning("%s: ending the stray run %s", self._node.name, status.run_id)
        self._strays.add(status.run_id)
        try:
            if status.phase == protocol.EXITED:
                await self._transport.remove(status.run_id)
            elif status.phase in (protocol.PREPARED, protocol.PREPARING):
                await self._transport.cancel(status.run_id)
            else:
                await self._transport.stop(
                    status.run_id, grace_seconds=FENCE_GRACE_SECONDS, reason="fenced"
                )
                return
        except RefusedError as error:
            log.warning("%s: %s could not be ended yet: %s", self._node.name, status.run_id, error)
        self._strays.discard(status.run_id)

    def _saw_stray(self, status: RunStatus) -> None:
        if status.run_id in self._strays and status.phase == protocol.EXITED:
            begin(self._tasks, self._fence(status))

    # -- periodic tasks ----------------------------------------------------------------------

    async def _every(
        self,
        seconds: float,
        act: Callable[[], Coroutine[None, None, None]],
        *,
        at_once: bool = False,
    ) -> None:
        if not at_once:
            await asyncio.sleep(seconds)
        while True:
            await act()
            await asyncio.sleep(seconds)

    async def _ask_for_contact(self) -> None:
        """Send a request: a silent connection breaks too late for a takeover."""
        if not self._service.is_alone:
            try:
                await self._transport.renew([], self._service.settings.run_lease)
            except RefusedError as error:
                log.warning("%s: leases could not be renewed: %s", self._node.name, error)
        self._contact_at = time.monotonic()

    async def _renew(self) -> None:
        ranks = [rank for run_id, rank in self._ranks.items() if run_id not in self._over]
        if not ranks:
            return
        run_ids = [rank.run_id for rank in ranks if rank.run_id in self._running]
        if not run_ids:
            return
        confirmed = await self._transport.renew(run_ids, self._service.settings.run_lease)
        members = [rank.member_id for rank in ranks if rank.run_id in confirmed]
        if members:
            self._service.post(Renewed(node_id=self._node.node_id, member_ids=members))

    async def _probe(self) -> None:
        try:
            inventory = await self._transport.probe()
            await self._service.confirm(Probed(node_id=self._node.node_id, inventory=inventory))
            self._numbers, self._inventories = {}, self._inventories + 1
            sources = await self._service.read(sources_to_probe)
            if sources:
                found = await self._transport.storages(sources)
                self._service.post(StoragesFound(node_id=self._node.node_id, probes=found))
        except RefusedError as error:
            log.warning("%s cannot be probed: %s", self._node.name, error)

    def _probe_soon(self) -> None:
        """Probe the node at once, since it isolates jobs less than its last probe reported."""
        begin(self._tasks, self._probe())

    async def _sum_up(self) -> None:
        """Sum up at fixed clock times, so that samples contain all ranks of a gang."""
        every = self._service.settings.goodput_every
        while True:
            await asyncio.sleep(every - estimated_now().timestamp() % every)
            self._fetching.sum_up()

    async def _numbered(self, reading: NodeLoad) -> NodeLoad:
        """Return a reading by the numbers of the GPUs, which only a probe changes."""
        uuids = {device.uuid for device in reading.devices if device.uuid}
        numbers = self._numbers
        if not uuids <= numbers.keys():
            before = self._inventories
            numbers = await self._service.read(
                telemetry.device_numbers, node_id=self._node.node_id
            )
            if before == self._inventories:  # no inventory was written since then
                self._numbers = numbers
        return telemetry.numbered(reading, numbers)

    async def _read_telemetry(self) -> None:
        readings: list[NodeLoad] = []
        minute = estimated_now().timestamp() // MINUTE
        while True:
            try:
                reading = await self._numbered(await self._transport.telemetry())
            except RefusedError as error:
                log.warning("%s: no telemetry: %s", self._node.name, error)
            else:
                now = estimated_now()
                self._service.send_signal(
                    telemetry_seen,
                    node_id=self._node.node_id,
                    at=now,
                    reading=telemetry.as_json(reading),
                )
                shared = tuple(device for device in reading.devices if device.company is not None)
                if shared:
                    self._service.post(Coordinated(node_id=self._node.node_id, devices=shared))
                if now.timestamp() // MINUTE != minute:
                    at = datetime.fromtimestamp(minute * MINUTE, UTC)
                    self._service.post(
                        Read(node_id=self._node.node_id, readings=tuple(readings), at=at)
                    )
                    minute, readings = now.timestamp() // MINUTE, []
                readings.append(reading)
            await asyncio.sleep(self._service.settings.telemetry_every)
