"""Orders of lists of jobs: their rows, their pages, and who sees them."""

from datetime import timedelta

import pytest

from scheduling.common.paging import make_cursor
from scheduling.jobs.models import Job
from scheduling.jobs.queries import ordered_jobs
from scheduling.jobs.queries.jobs import JobFilter
from scheduling.jobs.queries.ordered_jobs import JobOrder, job_order, page_in_order
from tenants.errors import InvalidError
from tenants.roles import Role
from tests.factories.cluster import NOW, job_document, make_job, make_shared_cluster
from tests.factories.running import put_into
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


def _figures(job: Job, **values: object) -> int:
    Job.objects.unscoped().filter(pk=job.pk).update(**values)
    return job.pk


@pytest.fixture
def jobs() -> dict[str, int]:
    make_shared_cluster(alice=Role.MEMBER, lena=Role.LEAD)
    hour = timedelta(hours=1)
    return {
        "waits": _figures(make_job(), submitted_at=NOW - 2 * hour, devices=1),
        "wide": _figures(
            put_into(make_job(), "running", now=NOW),
            started_at=NOW - 3 * hour,
            devices=8,
            gpu_seconds=0.0,
        ),
        "first": _figures(
            put_into(make_job(), "succeeded", now=NOW),
            started_at=NOW - 9 * hour,
            finished_at=NOW - 5 * hour,
            devices=2,
            gpu_seconds=100_000.0,
        ),
        "last": _figures(
            put_into(make_job("lena"), "failed", now=NOW),
            started_at=NOW - 2 * hour,
            finished_at=NOW - hour,
            devices=4,
            gpu_seconds=10.0,
        ),
    }


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (JobOrder.NEWEST, ["last", "first", "wide", "waits"]),
        (JobOrder.OLDEST, ["waits", "wide", "first", "last"]),
        (JobOrder.STARTED, ["last", "wide", "first", "waits"]),
        (JobOrder.ENDED, ["last", "first", "wide", "waits"]),
        (JobOrder.LONGEST, ["first", "wide", "waits", "last"]),
        (JobOrder.DEVICES, ["wide", "last", "first", "waits"]),
        (JobOrder.DEVICE_HOURS, ["first", "wide", "last", "waits"]),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 50])
def test_each_order_lists_every_job_once_on_pages_of_any_size(
    jobs: dict[str, int], order: JobOrder, expected: list[str], limit: int
) -> None:
    make_job("bob", job_document(virtual_cluster="language"))
    viewer, seen, cursor = make_viewer("alice"), list[int](), None
    while True:
        page = page_in_order(viewer, order=order, now=NOW, cursor=cursor, limit=limit)
        seen += [row.id for row in page.results]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == [jobs[name] for name in expected]


def test_later_submits_do_not_move_the_rows_of_the_next_page(jobs: dict[str, int]) -> None:
    viewer = make_viewer("alice")
    first = page_in_order(viewer, order=JobOrder.DEVICES, now=NOW, limit=2)
    _figures(make_job(), devices=64)

    second = page_in_order(
        viewer, order=JobOrder.DEVICES, now=NOW, cursor=first.next_cursor, limit=2
    )

    assert [row.id for row in second.results] == [jobs["first"], jobs["waits"]]


def test_only_the_newest_jobs_are_sorted(
    jobs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_jobs, "SORTED_JOBS", 2)

    page = page_in_order(make_viewer("alice"), order=JobOrder.DEVICES, now=NOW)

    assert [row.id for row in page.results] == [jobs["last"], jobs["first"]]
    assert page.next_cursor is None


def test_filters_apply_before_the_order(jobs: dict[str, int]) -> None:
    filters = JobFilter(states=frozenset({"live", "failed"}), mine=True)

    page = page_in_order(make_viewer("alice"), filters, JobOrder.DEVICES, now=NOW)

    assert [row.id for row in page.results] == [jobs["wide"], jobs["waits"]]


@pytest.mark.parametrize("cursor", ["x", "WzFd", "WzEsMiwzXQ"])
def test_a_cursor_that_no_page_gave_is_refused(jobs: dict[str, int], cursor: str) -> None:
    with pytest.raises(InvalidError) as caught:
        page_in_order(make_viewer("alice"), order=JobOrder.ENDED, now=NOW, cursor=cursor)

    assert caught.value.field == "cursor"


@pytest.mark.parametrize("key", [(-5, -1), (5, 999_999), (10**18, -1)])
def test_a_cursor_beyond_the_list_ends_it(jobs: dict[str, int], key: tuple[int, int]) -> None:
    cursor = make_cursor(*key)

    page = page_in_order(make_viewer("alice"), order=JobOrder.ENDED, now=NOW, cursor=cursor)

    assert page.results == ()
    assert page.next_cursor is None


def test_an_unknown_order_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidError) as caught:
        job_order("size")

    assert caught.value.field == "order"
    assert "device-hours" in caught.value.remedy
