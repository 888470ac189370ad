"""What one transaction of a node service writes, and in which order."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.jobs.models import Job
from scheduling.runs.models import EvictionTally, Member, WaitTally
from scheduling.runs.services import attempts
from tessera.protocol import CAUSE_EXITED, CAUSE_LOST, ExitRecord
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from tests.support.writes import writes_to
from workers.conf import WorkerSettings
from workers.models import NodeLease
from workers.services.node_reports import Exited, NodeReport, Running
from workers.services.turns import Turn, take_turn

pytestmark = pytest.mark.django_db
STARTED = NOW + timedelta(seconds=7)

TOO_LARGE = 1 << 70
"""No integer column takes this number."""


@pytest.fixture
def members() -> list[Member]:
    """The members of two prepared jobs; a third waits for its directives."""
    return prepared_members(2, waiting=1)


def prepared_members(jobs: int, *, waiting: int = 0) -> list[Member]:
    """Return the members of prepared jobs of one device; further ones wait for directives."""
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=3)
    prepared = [make_job() for _ in range(jobs)]
    for _ in range(waiting):
        make_job()
    Job.objects.unscoped().update(submitted_at=NOW)
    run_round()
    first = Member.objects.filter(attempt__job__in=prepared)
    for member in first:
        NodeLease.objects.get_or_create(
            node_id=member.node_id,
            defaults={"owner": "service", "epoch": 1, "expires_at": NOW + timedelta(hours=1)},
        )
    attempts.mark_preparing(member_ids=[member.pk for member in first], now=NOW)
    for member in first:
        attempts.mark_prepared(member_id=member.pk, now=NOW)
    return list(first)


def started(member: Member, number: int = 1) -> Running:
    return Running(
        node_id=member.node_id,
        member_id=member.pk,
        pid=number,
        boot_id="boot",
        started_at=STARTED,
    )


def failed(member: Member) -> Exited:
    record = ExitRecord(cause=CAUSE_LOST, failure="platform", at=STARTED.timestamp())
    return Exited(node_id=member.node_id, member_id=member.pk, record=record)


def succeeded(member: Member) -> Exited:
    record = ExitRecord(cause=CAUSE_EXITED, failure="", at=STARTED.timestamp(), code=0)
    return Exited(node_id=member.node_id, member_id=member.pk, record=record)


def turn(members: list[Member], news: list[NodeReport], tmp_path: Path) -> Turn:
    """A turn of the service that carries these members' nodes."""
    nodes = {member.node_id for member in members}
    return take_turn(
        owner="service",
        epochs=dict.fromkeys(nodes, 1),
        news=news,
        listening=list(nodes),
        busy=[],
        settings=WorkerSettings(data_dir=tmp_path, installation="here"),
        now=STARTED,
    )


def test_rows_shared_by_all_jobs_of_a_virtual_cluster_are_written_last(
    members: list[Member], tmp_path: Path
) -> None:
    with CaptureQueriesContext(connection) as asked:
        turn(members, [*map(started, members), failed(members[0])], tmp_path)

    shared = [WaitTally, EvictionTally]
    writes = writes_to(asked, *shared)
    assert writes == [*[None] * (len(writes) - 2), *shared]
    assert WaitTally.objects.values_list("count", "seconds").get() == (2, 14.0)
    assert EvictionTally.objects.values_list("reason", "count").get() == ("platform", 1)


def test_a_start_that_cannot_be_written_is_not_counted_and_the_others_are_once(
    members: list[Member], tmp_path: Path
) -> None:
    told = turn(members, [started(members[0]), started(members[1], TOO_LARGE)], tmp_path)

    assert len(told.failed) == 1
    assert WaitTally.objects.values_list("count", "seconds").get() == (1, 7.0)


def test_an_end_that_cannot_be_written_evicts_nobody_and_the_others_count_once(
    members: list[Member], tmp_path: Path
) -> None:
    turn(members, [started(member) for member in members], tmp_path)
    end = failed(members[1])
    unwritable = replace(end, record=replace(end.record, code=TOO_LARGE))

    told = turn(members, [failed(members[0]), unwritable], tmp_path)

    assert len(told.failed) == 1
    assert EvictionTally.objects.values_list("reason", "count").get() == ("platform", 1)


def statements(jobs: int, tmp_path: Path) -> int:
    """Return the number of statements that start and end so many jobs in two turns."""
    members = prepared_members(jobs)
    assert len(members) == jobs
    with CaptureQueriesContext(connection) as asked:
        turn(members, [started(member) for member in members], tmp_path)
        told = turn(members, [succeeded(member) for member in members], tmp_path)
    assert told.failed == ()
    return len(asked)


@pytest.mark.parametrize("jobs", [2, 6])
def test_the_statements_of_a_turn_do_not_depend_on_the_number_of_its_jobs(
    jobs: int, tmp_path: Path
) -> None:
    # PostgreSQL locks the rows of attempts and jobs by statements of their own.
    locks = 6 if connection.features.has_select_for_update else 0
    assert statements(jobs, tmp_path) == 34 + locks
