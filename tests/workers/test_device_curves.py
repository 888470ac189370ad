"""What a job's devices did: whose time counts, in which spans, and how many points there are."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduling.clusters.models import Device, Node
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Member
from tenants.errors import NotFoundError
from tenants.models import User
from tenants.selectors import viewer_of
from tests.factories.cluster import (
    job_document,
    make_job,
    make_shared_cluster,
)
from tests.factories.running import run_attempt
from workers.device_curves import MOST_POINTS, JobCurves, device_curves
from workers.models import NodeTelemetry

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def nodes() -> list[Node]:
    return make_shared_cluster()


def ran(
    job: Job,
    node: Node,
    *,
    since: datetime,
    until: datetime | None = None,
    devices: tuple[int, ...] = (0,),
) -> Attempt:
    attempt = run_attempt(job, node, now=until or NOW, devices=devices, ended=until is not None)
    Member.objects.filter(attempt=attempt).update(started_at=since, exited_at=until)
    return attempt


def told(node: Node, at: datetime, busy: float | None, memory: int = 7, span: int = 60) -> None:
    NodeTelemetry.objects.create(
        node=node, at=at, span_seconds=span, utilisation=[busy, 0.5], memory_bytes=[memory, 8]
    )


def curves(job: Job, who: str = "alice", **more: int) -> JobCurves:
    return device_curves(viewer_of(User.objects.get(username=who)), job.pk, now=NOW, **more)


def utilisations(found: JobCurves, device: int = 0) -> list[float | None]:
    return [point.utilisation for point in found.ranks[0].devices[device].points]


def test_only_minutes_that_lie_wholly_in_the_job_are_told(nodes: list[Node]) -> None:
    job = make_job()
    ran(job, nodes[0], since=NOW - 3.5 * MINUTE, until=NOW - 0.5 * MINUTE)
    for minutes, busy in ((4, 0.1), (3, 0.3), (2, 0.2), (1, 0.9)):
        told(nodes[0], NOW - minutes * MINUTE, busy)
    told(nodes[1], NOW - 3 * MINUTE, 0.7)

    found = curves(job)

    assert utilisations(found) == [0.3, 0.2]
    assert (found.since, found.until) == (NOW - 3.5 * MINUTE, NOW - 0.5 * MINUTE)
    assert (found.span_seconds, found.total) == (60, 1)


def test_each_device_of_a_rank_has_its_own_curve_and_what_is_not_known_stays_out(
    nodes: list[Node],
) -> None:
    job = make_job()
    ran(job, nodes[0], since=NOW - 5 * MINUTE, devices=(1, 0))
    told(nodes[0], NOW - 3 * MINUTE, None)
    told(nodes[0], NOW - 2 * MINUTE, 0.25)
    Device.objects.filter(node=nodes[0], index=0).update(memory_bytes=99, is_gpu=True)

    second, first = curves(job).ranks[0].devices

    assert [point.utilisation for point in second.points] == [0.5, 0.5]
    assert [(p.utilisation, p.memory_bytes) for p in first.points] == [(None, 7), (0.25, 7)]
    assert (first.index, first.memory_bytes, first.is_gpu) == (0, 99, True)


def test_a_rank_that_moved_is_one_curve_named_after_where_it_is_now(nodes: list[Node]) -> None:
    job = make_job()
    ran(job, nodes[0], since=NOW - 9 * MINUTE, until=NOW - 6 * MINUTE)
    ran(job, nodes[1], since=NOW - 4 * MINUTE)
    for minutes in range(1, 10):
        told(nodes[0], NOW - minutes * MINUTE, 0.1)
        told(nodes[1], NOW - minutes * MINUTE, 0.9)

    found = curves(job)

    assert utilisations(found) == [0.1] * 3 + [0.9] * 4
    assert found.ranks[0].devices[0].node == nodes[1].name


def test_a_long_job_is_told_in_longer_spans_with_its_end_from_minutes(nodes: list[Node]) -> None:
    job = make_job()
    begun = NOW - timedelta(hours=20)
    ran(job, nodes[0], since=begun)
    for turn in range(20 * 6 - 1):
        told(nodes[0], begun + turn * 10 * MINUTE, 0.5, span=600)
    for minutes in range(1, 30):
        told(nodes[0], NOW - minutes * MINUTE, 1.0)

    found = curves(job)

    # The last ten minutes have not been put together yet; they are ten minutes' mean all the same.
    assert found.span_seconds == 600
    assert utilisations(found) == [0.5] * 119 + [1.0]


@pytest.mark.parametrize(("days", "most"), [(5, 120), (40, MOST_POINTS), (300, 366)])
def test_the_number_of_points_is_bounded_whatever_the_age(
    nodes: list[Node], days: int, most: int
) -> None:
    job = make_job()
    begun = NOW - timedelta(days=days)
    ran(job, nodes[0], since=begun)
    NodeTelemetry.objects.bulk_create(
        NodeTelemetry(
            node=nodes[0],
            at=begun + timedelta(hours=hour),
            span_seconds=3600,
            utilisation=[0.5],
            memory_bytes=[1],
        )
        for hour in range(days * 24)
    )

    found = curves(job)

    assert found.span_seconds == 3600
    assert most / 2 < len(utilisations(found)) <= most


def test_a_job_whose_minutes_are_gone_is_told_in_what_is_kept(nodes: list[Node]) -> None:
    job = make_job()
    begun = NOW - timedelta(days=3)
    ran(job, nodes[0], since=begun, until=begun + 60 * MINUTE)
    told(nodes[0], begun + 10 * MINUTE, 0.4, span=600)

    found = curves(job)

    assert (found.span_seconds, utilisations(found)) == (600, [0.4])


def test_ranks_are_told_some_at_a_time_in_five_queries(
    nodes: list[Node], django_assert_num_queries: object
) -> None:
    job = make_job()
    attempt = ran(job, nodes[0], since=NOW - 5 * MINUTE)
    for rank in range(1, 6):
        Member.objects.create(
            attempt=attempt, node=nodes[1], role="worker", rank=rank, node_rank=rank,
            devices=[rank % 2], step="running", step_since=NOW, started_at=NOW - 5 * MINUTE,
        )  # fmt: skip
    told(nodes[1], NOW - 2 * MINUTE, 0.5)
    viewer = viewer_of(User.objects.get(username="alice"))

    with django_assert_num_queries(5):  # type: ignore[operator]
        found = device_curves(viewer, job.pk, now=NOW, first=1, most=3)

    assert [rank.rank for rank in found.ranks] == [1, 2, 3]
    assert (found.first, found.total) == (1, 6)
    assert curves(job, first=6).ranks == ()


def test_a_job_that_never_ran_has_no_devices(nodes: list[Node]) -> None:
    assert curves(make_job()) == JobCurves()


def test_what_devices_of_another_tenant_did_is_not_told(nodes: list[Node]) -> None:
    theirs = make_job("bob", job_document(virtual_cluster="language"))

    with pytest.raises(NotFoundError):
        curves(theirs)
