"""What open pages are told of."""

import asyncio
import threading

import pytest
from channels.layers import InMemoryChannelLayer

from portal.live.access import job_group, overview_group, rounds_group
from portal.live.publishing import MOST_WAITING, Publisher
from scheduling.common.on_commit import signal_new_estimates
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.amendments import amend_job
from tests.factories.scheduling import NOW, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer
from tests.support.heard_news import heard_news
from tests.support.layers import layer_of
from tests.support.waiting import wait_until


@pytest.fixture
def news(db, django_capture_on_commit_callbacks):
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
        submit_context = read_submit_context(viewer=alice, images_ignored=False)
        amend_job(
            job=job,
            changes={"priority": "prod"},
            viewer=alice,
            submit_context=submit_context,
            now=NOW,
        )

    assert news.heard == {overview_group(): 1}


def test_what_was_found_for_waiting_jobs_is_news_of_each_and_of_the_overview(
    news, django_capture_on_commit_callbacks
):
    jobs = [submit(devices=8).pk for _ in range(2)]

    with django_capture_on_commit_callbacks(execute=True):
        signal_new_estimates(jobs)
        signal_new_estimates([])

    assert news.heard == {**{job_group(job): 1 for job in jobs}, overview_group(): 1}


class Stuck(InMemoryChannelLayer):
    """A broker that takes messages and answers none until it is let go."""

    def __init__(self):
        super().__init__()
        self.taken, self.sent, self.free = 0, 0, threading.Event()

    async def group_send(self, group, message):
        self.taken += 1
        await asyncio.to_thread(self.free.wait)
        self.sent += 1


def test_while_the_broker_hangs_so_many_messages_wait_and_no_more():
    with layer_of(Stuck()) as layer:
        publisher = Publisher(pace_seconds=0.01)

        for number in range(MOST_WAITING + 500):
            publisher.send(f"live.log.{number}", "log:1:worker:0", {"text": "x"})
        wait_until(lambda: layer.taken == MOST_WAITING, 60, "all that wait")
        layer.free.set()
        wait_until(lambda: layer.sent == MOST_WAITING, 60, "all that waited")
        publisher.send("live.log.1", "log:1:worker:0", {"text": "x"})

        wait_until(lambda: layer.sent == MOST_WAITING + 1, 60, "the next one")
        assert layer.taken == layer.sent
