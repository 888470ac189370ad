"""Execution of the directives of one node; a directive may arrive twice."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from scheduling.jobs.services.archives import archive_name
from scheduling.runs.queries.node_members import DirectiveKind
from scheduling.storage.base import NotStoredError
from tessera import protocol
from tessera.isolation import NOT_AVAILABLE
from tessera.protocol import RunStatus
from workers.node_service.handover import LOOK_EVERY_SECONDS, bring
from workers.node_service.ports import Service
from workers.services.dispatch import Directive, is_to_leave
from workers.services.node_reports import Cancelled, Lost, Prepared, PrepareFailed, Shared, Tuned
from workers.transports.base import Preparation, PrepareError, RefusedError, Transport

log = logging.getLogger(__name__)

MOST_PREPARING: Final = 16
SPEC_DIFFERS: Final = "spec-differs"
ALREADY_STARTED: Final = "already-started"
NOT_STARTED: Final = "not-started"
UNKNOWN_RUN: Final = "unknown-run"


def begin(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> bool:
    """Start ``work`` in ``tasks``; if the group is ending, close ``work`` and return False."""
    try:
        tasks.create_task(work)
    except RuntimeError:
        work.close()
        return False
    return True


class DirectiveRunner:
    """Runs the directives of one node, at most one per member at a time."""

    def __init__(
        self,
        *,
        transport: Transport,
        service: Service,
        tasks: asyncio.TaskGroup,
        saw: Callable[[RunStatus], None],
        less_isolated: Callable[[], None],
        look_every: float = LOOK_EVERY_SECONDS,
    ) -> None:
        """Args:
        look_every: seconds between two checks whether a job in preparation has to stop.
        saw: is called with the status of a run from a reply.
        less_isolated: is called when a run does not start, since the node cannot isolate it.
        """
        self._transport = transport
        self._service = service
        self._tasks = tasks
        self._saw = saw
        self._look_every = look_every
        self._less_isolated = less_isolated
        self._busy: set[int] = set()
        self._bringing: dict[int, asyncio.Lock] = {}
        self._preparing = asyncio.Semaphore(MOST_PREPARING)

    @property
    def busy(self) -> frozenset[int]:
        """Members with a directive in progress, or with a stop whose end is awaited."""
        return frozenset(self._busy)

    def take(self, directive: Directive) -> None:
        """Start a directive, unless the member has one in progress."""
        if directive.rank.member_id in self._busy:
            return
        self._busy.add(directive.rank.member_id)
        if not begin(self._tasks, self._carry_out(directive)):
            # The next service of this node derives the same directive from the rows.
            self._busy.discard(directive.rank.member_id)

    def done(self, member_id: int) -> None:
        """Drop the state of a member that has ended."""
        self._busy.discard(member_id)

    async def _carry_out(self, directive: Directive) -> None:
        # Between two awaits, this process may have been suspended and lost its nodes. Nodes
        # tolerate late directives: a run starts at most once, and never after it was cancelled.
        is_stopping = False
        try:
            match directive.kind:
                case DirectiveKind.PREPARE:
                    await self._prepare(directive)
                case DirectiveKind.GO:
                    await self._go(directive)
                case DirectiveKind.CANCEL:
                    is_stopping = await self._cancel(directive)
                case DirectiveKind.STOP:
                    is_stopping = await self._stop(directive)
                case DirectiveKind.TUNE:
                    await self._tune(directive)
                case DirectiveKind.SHARE:
                    await self._share(directive)
        finally:
            if not is_stopping:
                self._busy.discard(directive.rank.member_id)

    async def _prepare(self, directive: Directive) -> None:
        if directive.preparation is None:
            self._refuse(directive, PrepareError("not-dispatchable", directive.refusal))
            return
        try:
            async with self._preparing:
                if not await self._fetch_archive(directive.preparation):
                    return  # the next turn derives the same directive
                await self._bring_checkpoint(directive)
                is_prepared = await self._prepare_unless_leaving(directive, directive.preparation)
        except PrepareError as error:
            self._refuse(directive, error)
        else:
            rank = directive.rank
            if is_prepared:
                self._service.post(Prepared(node_id=rank.node_id, member_id=rank.member_id))

    async def _prepare_unless_leaving(
        self, directive: Directive, preparation: Preparation
    ) -> bool:
        """Prepare a run; cancel the pull of its image if the job is stopped meanwhile.

        Returns:
            Whether the run is prepared. Otherwise the next directive of the member cancels it.
        """
        if preparation.container is None:
            await self._prepare_afresh(preparation)
            return True
        work = asyncio.ensure_future(self._prepare_afresh(preparation))
        try:
            while not (await asyncio.wait([work], timeout=self._look_every))[0]:
                if await self._service.read(is_to_leave, directive.rank.member_id):
                    return False
            work.result()
        finally:
            work.cancel()
            await asyncio.wait([work])
        return True

    async def _fetch_archive(self, preparation: Preparation) -> bool:
        """Copy the source archive to this host; returns False if the storage is not available."""
        archive = preparation.run.source_archive
        if preparation.archive is None or archive is None:
            return True
        storage = self._service.settings.storage
        name = archive_name(archive.sha256)
        try:
            await self._service.on_disk(storage.fetch, name, sha256=archive.sha256)
        except NotStoredError:
            return True  # the upload reports the missing archive
        except OSError as error:
            log.warning("%s is prepared later: %s", preparation.run.run_id, error)
            return False
        return True

    async def _bring_checkpoint(self, directive: Directive) -> None:
        """Copy the job's last checkpoint to this node, one member of a node at a time."""
        last = directive.preparation.last if directive.preparation is not None else None
        if last is None:
            return
        lock = self._bringing.setdefault(directive.rank.job_id, asyncio.Lock())
        try:
            async with lock:
                await bring(
                    service=self._service, line=self._transport, rank=directive.rank, last=last
                )
        finally:
            if not lock.locked():
                self._bringing.pop(directive.rank.job_id, None)

    async def _prepare_afresh(self, preparation: Preparation) -> None:
        """Prepare a run; replace a different preparation by an earlier version."""
        try:
            await self._transport.prepare(preparation)
        except PrepareError as error:
            if error.code != SPEC_DIFFERS:
                raise
            try:
                await self._transport.cancel(preparation.run.run_id)
            except RefusedError as refused:
                raise PrepareError(refused.code, refused.message) from refused
            await self._transport.prepare(preparation)

    async def _go(self, directive: Directive) -> None:
        try:
            status = await self._transport.go(directive.rank.run_id)
        except RefusedError as error:
            self._refuse(directive, error)
        else:
            self._saw(status)

    async def _tune(self, directive: Directive) -> None:
        """Send training settings to a job; one that cannot read them continues unchanged."""
        rank = directive.rank
        try:
            await self._transport.tune(rank.run_id, directive.settings)
        except RefusedError as error:
            log.warning("%s keeps its current settings: %s", rank.run_id, error)
        # Confirmed, or the same directive would be derived again before the report is written.
        await self._service.confirm(
            Tuned(
                node_id=rank.node_id, member_id=rank.member_id, version=directive.settings_version
            )
        )

    async def _share(self, directive: Directive) -> None:
        """Send the guests of its devices to the coordinator of a holder.

        A holder that has ended needs no order: its guests see that it is gone.
        """
        rank = directive.rank
        try:
            await self._transport.share(
                rank.run_id, directive.share_version, list(directive.devices)
            )
        except RefusedError as error:
            log.warning("%s keeps its guests: %s", rank.run_id, error)
        await self._service.confirm(
            Shared(node_id=rank.node_id, member_id=rank.member_id, version=directive.share_version)
        )

    async def _cancel(self, directive: Directive) -> bool:
        """Cancel, or stop a run that has started; returns whether its end is awaited."""
        rank = directive.rank
        try:
            await self._transport.cancel(rank.run_id)
        except RefusedError as error:
            if error.code == ALREADY_STARTED:
                return await self._stop(directive)
            log.warning("cannot cancel %s: %s", rank.run_id, error)
            return False
        self._service.post(Cancelled(node_id=rank.node_id, member_id=rank.member_id))
        return False

    async def _stop(self, directive: Directive) -> bool:
        """Stop a run; returns whether its end is awaited."""
        rank = directive.rank
        try:
            await self._transport.stop(
                rank.run_id, grace_seconds=directive.grace_seconds, reason=directive.reason
            )
        except RefusedError as error:
            if error.code == NOT_STARTED:
                return await self._cancel(directive)
            if error.code == UNKNOWN_RUN:
                # Cancelled by a service that could not report it any more. This releases a member
                # that has not run; for one that has, its later reports hold.
                self._service.post(Cancelled(node_id=rank.node_id, member_id=rank.member_id))
            message = f"its run cannot be stopped: {error}"
            self._service.post(
                Lost(node_id=rank.node_id, member_id=rank.member_id, message=message)
            )
            return False
        return True

    def _refuse(self, directive: Directive, error: RefusedError) -> None:
        if error.code == NOT_AVAILABLE:
            self._less_isolated()
        known = error.failure_class in protocol.FAILURES
        self._service.post(
            PrepareFailed(
                node_id=directive.rank.node_id,
                member_id=directive.rank.member_id,
                failure_class=error.failure_class if known else protocol.PLATFORM,
                code=error.code,
                message=error.message,
            )
        )
