"""A node service on a real database with nodes in memory."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Member
from tessera.inventory import NodeHello
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from tests.support.databases import migrated_template, real_database
from tests.support.fake_transport import FakeNode, FakeRun, FakeTransport
from workers.conf import WorkerSettings
from workers.node_service.ports import NodeAddress
from workers.node_service.service import NodeService
from workers.node_service.thread import NodeServiceThread
from workers.transports.base import NodeEvent, Transport

__all__ = ["migrated_template", "real_database"]


class World:
    """Three nodes in memory, the rows of a cluster, and as many services as a test wants."""

    def __init__(self, data_dir: Path) -> None:
        self.nodes = {f"node-{number}": FakeNode() for number in (1, 2, 3)}
        self.services: list[NodeServiceThread] = []
        self.cuts: set[tuple[str, str]] = set()
        """Service and node between which nothing passes."""
        self.busy: dict[str, NodeEvent] = {}
        """Nodes that answer no request for now, with the event that they send instead."""
        self.settings = WorkerSettings(
            data_dir=data_dir,
            installation="here",
            tick=0.2,
            look_every=0.2,
            reap_every=0.2,
            node_lease=1.0,
            renew_every=0.2,
            reconcile_every=0.5,
            probe_every=0.5,
            telemetry_every=0.2,
            goodput_every=0.3,
            down_after=0.5,
            first_backoff=0.05,
            longest_backoff=0.2,
        )

    def connect(
        self, owner: str, node: NodeAddress, progress: Callable[[str, str], None]
    ) -> Transport:
        return CutTransport(
            self.nodes[node.name],
            lambda: (owner, node.name) in self.cuts,
            lambda: self.busy.get(node.name),
        )

    def start(
        self, owner: str = "service-1", *, skew: Callable[[], timedelta] = timedelta
    ) -> NodeServiceThread:
        """Begin one more service, on a host whose clock is ``skew`` ahead of the database's."""
        thread = NodeServiceThread(
            lambda: NodeService(
                settings=self.settings,
                connect=partial(self.connect, owner),
                owner=owner,
                skew=skew,
            )
        )
        thread.start()
        self.services.append(thread)
        return thread

    def submit(self, command: str = "true", **changes: Any) -> Job:
        """Submit a job and run a round."""
        role = {"command": command, **changes.pop("worker", {})}
        job = make_job(worker=role, **changes)
        self.run_round()
        return job

    def run_round(self) -> None:
        run_round(timezone.now())

    def state(self, job: Job) -> JobState:
        return JobState(Job.objects.unscoped().values_list("state", flat=True).get(pk=job.pk))

    def members(self, job: Job) -> list[Member]:
        members = Member.objects.filter(attempt__job=job).select_related("attempt", "node")
        return list(members.order_by("attempt_id", "node_rank"))

    def run_id(self, member: Member) -> str:
        return f"{member.attempt.uid}.{member.role}.{member.rank}"

    def node_of(self, member: Member) -> FakeNode:
        return self.nodes[member.node.name]

    def wait_for_state(self, job: Job, state: JobState) -> None:
        wait_for(lambda: self.state(job) is state, lambda: f"{self.state(job)}, not {state}")

    def run_of(self, member: Member) -> FakeRun:
        return self.node_of(member).runs[self.run_id(member)]

    def attempts(self, job: Job) -> list[Attempt]:
        return list(Attempt.objects.filter(job=job).order_by("number"))

    def logs(self, job: Job, rank: int = 0) -> bytes:
        path = f"{job.pk}/1/worker-{rank}.log"
        return self.settings.storage.logs.read(path, offset=0, limit=1 << 30).data

    def asked(self, operation: str) -> list[str]:
        """What all nodes have been asked by that name."""
        return [
            subject
            for node in self.nodes.values()
            for name, subject in node.asked
            if name == operation
        ]


class CutTransport(FakeTransport):
    """A line on which nothing arrives, and nobody hears of that, while ``is_cut`` is true."""

    def __init__(
        self,
        node: FakeNode,
        is_cut: Callable[[], bool],
        busy: Callable[[], NodeEvent | None],
    ) -> None:
        super().__init__(node)
        self._is_cut = is_cut
        self._busy = busy

    async def open(self) -> NodeHello:
        await self._pass()
        return await super().open()

    def take(self, event: NodeEvent) -> None:
        if not self._is_cut():
            super().take(event)

    async def _ask(self, operation: str, subject: str = "") -> None:
        await self._pass()
        await super()._ask(operation, subject)

    async def _pass(self) -> None:
        while self._is_cut() or (event := self._busy()) is not None:
            if not self._is_cut() and event is not None:
                self.take(event)
            await asyncio.sleep(0.01)


class Frozen:
    """A service whose loop stands still, as that of a stopped process does."""

    def __init__(self, thread: NodeServiceThread) -> None:
        self._thaw = threading.Event()
        stands = threading.Event()

        def stand_still() -> None:
            stands.set()
            self._thaw.wait(60)

        loop = thread._loop
        assert loop is not None
        loop.call_soon_threadsafe(stand_still)
        assert stands.wait(60)

    def thaw(self) -> None:
        """Let it go on."""
        self._thaw.set()


def wait_for(
    condition: Callable[[], object],
    say: Callable[[], object] = lambda: "it did not come true",
    *,
    seconds: float = 60.0,
) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, say()
        time.sleep(0.01)


@pytest.fixture
def world(real_database: None, tmp_path: Path) -> Iterator[World]:
    make_cluster()
    Node.objects.update(state="down", contact="down")
    make_priority_classes()
    make_virtual_cluster(cells=3)
    world = World(tmp_path / "data")
    Node.objects.update(state="ready", contact="ready")
    yield world
    for service in world.services:
        service.stop()
