"""A run whose image is being pulled: it can be stopped, and its progress is stored."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scheduling.runs.models import Member
from scheduling.runs.queries.node_members import DirectiveKind
from tests.factories.cluster import NOW
from tests.factories.scheduling import make_two_tenants, start, submit
from tests.support.transport_runs import run_spec
from workers.node_service.directives import DirectiveRunner
from workers.services.dispatch import Directive, MemberRef
from workers.services.node_reports import Prepared, PrepareFailed, Preparing
from workers.transports.base import Container, Preparation, PrepareError


class Pulling:
    """A node that pulls until it is told to end, in whichever way."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.fault: PrepareError | None = None
        self.is_abandoned = False

    async def prepare(self, preparation: Preparation) -> None:
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.is_abandoned = True
            raise
        if self.fault is not None:
            raise self.fault


class Service:
    """What the node service knows of the job, and what it is told."""

    def __init__(self) -> None:
        self.is_leaving = False
        self.told: list[Any] = []

    async def read(self, function: Callable[..., bool], member_id: int) -> bool:
        return self.is_leaving

    def post(self, news: Any) -> None:
        self.told.append(news)


def directive() -> Directive:
    run = run_spec("true")
    rank = MemberRef(
        member_id=3, node_id=1, run_id=run.run_id, job_id=7, attempt_id=1, attempt_number=1,
        role="worker", rank=0, node_rank=0, gang_devices=1,
    )  # fmt: skip
    return Directive(
        kind=DirectiveKind.PREPARE,
        rank=rank,
        preparation=Preparation(run=run, container=Container(image="a/b:1")),
    )


async def prepared(act: Callable[[Pulling, Service], None]) -> tuple[Pulling, Service]:
    """Prepare a run, and act as soon as the pull has begun."""
    node, service = Pulling(), Service()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        runner = DirectiveRunner(
            transport=node,  # type: ignore[arg-type]
            service=service,  # type: ignore[arg-type]
            tasks=tasks,
            saw=lambda status: None,
            less_isolated=lambda: None,
            look_every=0.01,
        )
        runner.take(directive())
        await node.begun.wait()
        assert runner.busy
        act(node, service)
    assert not runner.busy
    return node, service


async def test_a_job_that_is_stopped_does_not_wait_for_the_end_of_a_pull() -> None:
    node, service = await prepared(lambda node, service: setattr(service, "is_leaving", True))

    assert node.is_abandoned
    assert service.told == []


async def test_a_pull_that_ends_prepares_the_run() -> None:
    node, service = await prepared(lambda node, service: node.may_end.set())

    (told,) = service.told
    assert isinstance(told, Prepared)
    assert not node.is_abandoned


async def test_a_pull_that_fails_is_told() -> None:
    def fail(node: Pulling, service: Service) -> None:
        node.fault = PrepareError("image-not-found", "a/b:1", "image")
        node.may_end.set()

    _node, service = await prepared(fail)

    (told,) = service.told
    assert isinstance(told, PrepareFailed)
    assert told.failure_class == "image"


@pytest.mark.django_db
def test_the_progress_of_a_pull_is_the_message_of_the_member_until_it_is_prepared() -> None:
    make_two_tenants()
    start(submit())
    member = Member.objects.get()
    Member.objects.update(step="preparing")
    news = [
        Preparing(node_id=member.node_id, member_id=member.pk, message=text)
        for text in ("pulling a/b:1", "pulling a/b:1: 1 kB of 2 kB (50 %)")
    ]

    Preparing.write_all(news, NOW)
    member.refresh_from_db()
    said = member.message
    Prepared.write_all([Prepared(node_id=member.node_id, member_id=member.pk)], NOW)
    Preparing.write_all(news, NOW)

    member.refresh_from_db()
    assert said == "pulling a/b:1: 1 kB of 2 kB (50 %)"
    assert member.message == ""
