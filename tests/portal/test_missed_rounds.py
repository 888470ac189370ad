"""Beat runs a round by itself when none comes: soon without a broker, later with one."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from portal.heartbeats import MissedRounds, run_directly
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from tenants.clock import database_now
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.support.databases import migrated_template, real_database

__all__ = ["migrated_template", "real_database"]
Look = Callable[..., bool]


def add_round(*, age: float) -> None:
    at = database_now() - timedelta(seconds=age)
    Round.objects.all().delete()
    Round.objects.create(number=1, started_at=at, committed_at=at, duration_ms=1.0)


@pytest.mark.django_db
@pytest.mark.parametrize(("age", "runs"), [(9.0, False), (11.0, True)])
def test_without_a_broker_a_round_runs_after_ten_seconds(age: float, runs: bool) -> None:
    add_round(age=age)
    missed = MissedRounds(run=lambda: None, clock=lambda: 0.0)

    assert missed.look(has_broker=False) is runs
    missed.wait(10)


@pytest.mark.django_db
@pytest.mark.parametrize(("age", "runs"), [(19.0, False), (21.0, True)])
def test_with_a_broker_round_workers_have_longer(age: float, runs: bool) -> None:
    add_round(age=age)
    ticks = [0.0]
    missed = MissedRounds(run=lambda: None, clock=lambda: ticks[0])
    # They may be starting, as this process is.
    assert missed.look(has_broker=True) is False
    ticks[0] += 21

    assert missed.look(has_broker=True) is runs
    missed.wait(10)


def test_one_runs_at_a_time_and_one_that_fails_is_followed(real_database: None) -> None:
    add_round(age=60)
    going = threading.Event()
    runs: list[int] = []

    def run() -> None:
        runs.append(1)
        assert going.wait(60)
        raise RuntimeError("the round failed")

    missed = MissedRounds(run=run)
    assert missed.look(has_broker=False)
    assert not missed.look(has_broker=False)
    going.set()
    missed.wait(60)
    assert missed.look(has_broker=False)
    missed.wait(60)

    assert len(runs) == 2


def test_the_round_admits_jobs(real_database: None) -> None:
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=3)
    job = make_job()
    missed = MissedRounds(run=run_directly)

    assert missed.look(has_broker=False)
    missed.wait(60)

    assert Job.objects.unscoped().get(pk=job.pk).state == "admitted"
    assert Round.objects.get().cause == "no-round"
