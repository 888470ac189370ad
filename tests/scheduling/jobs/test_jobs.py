"""Pages of jobs: filters, cursors, and a constant number of queries."""

from datetime import timedelta

import pytest

from scheduling.common.paging import MOST_ROWS
from scheduling.jobs.queries.jobs import (
    JobFilter,
    counts_by_reason,
    counts_by_state,
    page_of_jobs,
    page_of_queue,
    rows_of_jobs,
    rows_of_new_jobs,
    visible_job,
)
from tenants.errors import InvalidError, NotFoundError
from tests.factories.scheduling import (
    NOW,
    end,
    make_many_jobs,
    make_two_tenants,
    start,
    submit,
)
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def names(page):
    return [row.name for row in page.results]


def test_a_row_reports_what_a_job_wants_who_owns_it_and_why_it_waits():
    job = submit(devices=8, worker={"instances": 2, "device_types": ["a"]}, labels={"team": "x"})
    start()

    (row,) = page_of_jobs(make_viewer("alice")).results

    assert (row.id, row.state, row.owner, row.tenant) == (job.pk, "queued", "alice", "vision")
    assert row.wants == "2 × 8 × a in one node each"
    assert row.devices == 16
    assert row.reason_code in {"exceeds-vc-max", "vc-guarantee-in-use"}
    assert row.labels == {"team": "x"}


def test_a_new_job_has_the_row_that_would_be_read_of_it():
    job = submit(
        devices=8,
        worker={"instances": 2, "device_types": ["a"]},
        labels={"team": "x"},
        held=True,
        max_duration="1h",
    )
    viewer = make_viewer("alice")

    assert rows_of_new_jobs(viewer, [job]) == rows_of_jobs(viewer, [job.pk])


def test_the_pages_follow_one_another_without_gap_or_repetition(clusters):
    vc, _ = clusters
    jobs = make_many_jobs(25, owner="alice", virtual_cluster=vc, tenant=vc.tenant)
    viewer, seen, cursor = make_viewer("alice"), [], None

    while True:
        page = page_of_jobs(viewer, cursor=cursor, limit=10)
        seen += [row.id for row in page.results]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == sorted((job.pk for job in jobs), reverse=True)


def test_a_page_that_ends_with_the_last_row_has_no_next(clusters):
    vc, _ = clusters
    make_many_jobs(10, owner="alice", virtual_cluster=vc, tenant=vc.tenant)

    assert page_of_jobs(make_viewer("alice"), limit=10).next_cursor is None


def test_the_queue_is_in_the_order_of_priority_then_of_arrival():
    first = submit(priority="test", name="first")
    second = submit(priority="test", name="second")
    urgent = submit(priority="crit", name="urgent")
    viewer = make_viewer("alice")

    page = page_of_queue(viewer, limit=2)
    rest = page_of_queue(viewer, limit=2, cursor=page.next_cursor)

    assert names(page) + names(rest) == [urgent.name, first.name, second.name]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (JobFilter(states=frozenset({"running"})), {"runs"}),
        (JobFilter(states=frozenset({"live"})), {"runs", "waits"}),
        (JobFilter(states=frozenset({"ended"})), {"ended"}),
        (JobFilter(user="ALICE"), {"runs", "waits", "ended"}),
        (JobFilter(user="bob"), set()),
        (JobFilter(virtual_cluster="vision-a"), {"runs", "waits", "ended"}),
        (JobFilter(virtual_cluster="language-a"), set()),
        (JobFilter(tenant="language"), set()),
        (JobFilter(text="ait"), {"waits"}),
        (JobFilter(text="team=x"), {"waits"}),
        (JobFilter(text="team=y"), set()),
        (JobFilter(text="100% _"), set()),
        (JobFilter(text="nul\x00"), set()),
        (JobFilter(mine=True), {"runs", "waits", "ended"}),
        (JobFilter(submitted_since=NOW + timedelta(seconds=1)), set()),
        (JobFilter(submitted_until=NOW - timedelta(days=1)), set()),
        (JobFilter(submitted_until=NOW), {"runs", "waits", "ended"}),
        (JobFilter(ended_since=NOW - timedelta(days=1)), {"runs", "waits", "ended"}),
        (JobFilter(ended_since=NOW + timedelta(days=1)), {"runs", "waits"}),
        (
            JobFilter(ended_since=NOW + timedelta(days=1), states=frozenset({"live", "ended"})),
            {"runs", "waits"},
        ),
    ],
)
def test_filters_narrow_the_page(filters, expected):
    ended = submit(name="ended")
    start(ended)
    end(ended)
    runs = submit(name="runs")
    start(runs)
    submit(name="waits", held=True, labels={"team": "x"})
    submit("bob", name="foreign")

    assert set(names(page_of_jobs(make_viewer("alice"), filters))) == expected


def test_a_number_finds_the_job_of_that_number():
    job = submit(name="needle")
    submit(name="hay")

    assert names(page_of_jobs(make_viewer("alice"), JobFilter(text=str(job.pk)))) == ["needle"]


@pytest.mark.parametrize("cursor", ["x", "!!", "W10", "WzEsMl0", "W3RydWVd", "WyIxIl0", "é"])
def test_a_cursor_that_no_page_gave_is_refused(cursor):
    with pytest.raises(InvalidError) as caught:
        page_of_jobs(make_viewer("alice"), cursor=cursor)

    assert caught.value.field == "cursor"


@pytest.mark.parametrize("limit", [0, -1, MOST_ROWS + 1, True])
def test_a_limit_out_of_range_is_refused(limit):
    with pytest.raises(InvalidError) as caught:
        page_of_jobs(make_viewer("alice"), limit=limit)

    assert caught.value.field == "limit"


def test_an_unknown_state_is_refused_with_those_there_are():
    with pytest.raises(InvalidError) as caught:
        page_of_jobs(make_viewer("alice"), JobFilter(states=frozenset({"sleeping"})))

    assert caught.value.value == "sleeping"
    assert "running" in caught.value.remedy


def test_counts_name_every_state_and_reason_of_what_is_visible():
    runs = submit()
    start(runs)
    submit(held=True)
    submit("bob")
    start()

    counts = counts_by_state(make_viewer("alice"))

    assert counts["running"] == 1
    assert counts["queued"] == 1
    assert counts["failed"] == 0
    assert counts_by_reason(make_viewer("alice")) == {"held": 1}


@pytest.mark.parametrize("job_id", [0, -1, 10**30])
def test_a_number_that_no_job_can_have_is_not_found(job_id):
    with pytest.raises(NotFoundError):
        visible_job(make_viewer("alice"), job_id)


@pytest.mark.parametrize("jobs", [5, 50])
def test_a_page_takes_two_queries_whatever_its_size(jobs, clusters, django_assert_num_queries):
    vc, _ = clusters
    make_many_jobs(jobs, owner="alice", virtual_cluster=vc, tenant=vc.tenant)
    viewer = make_viewer("alice")

    with django_assert_num_queries(2):
        page_of_jobs(viewer)
    with django_assert_num_queries(2):
        page_of_queue(viewer)
    with django_assert_num_queries(1):
        counts_by_state(viewer)
