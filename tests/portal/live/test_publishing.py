"""What open pages are told of."""

import pytest

from portal.live.topics import job_group, overview_group, rounds_group
from scheduling.services.amendments import amend_job
from scheduling.services.announce import tell_answers
from scheduling.services.drafts import read_ground
from tests.factories.scheduling import NOW, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer
from tests.support.heard_news import heard_news

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def news(django_capture_on_commit_callbacks):
    make_two_tenants(2)
    with django_capture_on_commit_callbacks(execute=True):
        start(submit(devices=8))
    with heard_news() as news:
        yield news


def test_a_job_that_will_wait_shows_on_the_overview_as_soon_as_it_is_there(
    news, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        submit(devices=8)

    assert news.heard == {overview_group(): 1}


def test_a_round_that_only_finds_why_jobs_wait_is_news_once(
    news, django_capture_on_commit_callbacks
):
    submit(devices=8)

    with django_capture_on_commit_callbacks(execute=True):
        run_round()
    assert news.heard == {rounds_group(): 1, overview_group(): 1}
    with django_capture_on_commit_callbacks(execute=True):
        run_round()

    assert news.heard == {rounds_group(): 2, overview_group(): 1}


def test_a_job_that_was_changed_while_it_waits_is_news(news, django_capture_on_commit_callbacks):
    job, alice = submit(devices=8), make_viewer("alice")

    with django_capture_on_commit_callbacks(execute=True):
        ground = read_ground(viewer=alice, images_ignored=False)
        amend_job(job=job, changes={"priority": "prod"}, viewer=alice, ground=ground, now=NOW)

    assert news.heard == {overview_group(): 1}


def test_what_was_found_for_waiting_jobs_is_news_of_each_and_of_the_overview(
    news, django_capture_on_commit_callbacks
):
    jobs = [submit(devices=8).pk for _ in range(2)]

    with django_capture_on_commit_callbacks(execute=True):
        tell_answers(jobs)
        tell_answers([])

    assert news.heard == {**{job_group(job): 1 for job in jobs}, overview_group(): 1}
