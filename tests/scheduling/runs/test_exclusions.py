"""Which nodes a job avoids after failures that were a node's."""

from datetime import timedelta

import pytest

from scheduling.clusters.models import Node, PinnedCell
from scheduling.core.lifecycle import FailureClass
from scheduling.runs.models import Attempt, Member
from scheduling.runs.services import attempts
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round

pytestmark = pytest.mark.django_db


def prepare(nodes, cells=1):
    make_cluster(nodes)
    make_priority_classes()
    make_virtual_cluster(cells=cells)


def lose(job, *, at=NOW):
    """Start the job's next attempt and lose it; returns the name of its first node."""
    run_round(at)
    return hurt(job, at=at)


def hurt(job, *, at=NOW):
    """Lose the members of the job's open attempt, the one on the first node as the first."""
    rows = Member.objects.filter(attempt__job=job, attempt__ended_at=None)
    members = list(rows.order_by("node__name"))
    attempts.mark_preparing(member_ids=[member.pk for member in members], now=at)
    attempts.mark_all_prepared(member_ids=[member.pk for member in members], now=at)
    for member in members:
        attempts.mark_running(member_id=member.pk, pid=1, boot_id="b", started_at=at, now=at)
    for member in members:
        attempts.mark_lost(member_id=member.pk, message="it vanished", now=at)
    job.refresh_from_db()
    return members[0].node.name


def test_the_only_node_is_tried_again():
    prepare(nodes=1)
    job = make_job(worker={"devices": 8})

    lose(job)

    assert (job.state, job.excluded_nodes) == ("queued", [])
    run_round(NOW + timedelta(minutes=1))
    assert Attempt.objects.filter(job=job, ended_at=None).count() == 1


def test_older_faults_are_forgotten_when_every_node_has_had_one():
    prepare(nodes=2)
    job = make_job(worker={"devices": 8})

    first = lose(job)
    assert job.excluded_nodes == [first]
    second = lose(job, at=NOW + timedelta(minutes=1))

    assert second != first
    assert job.excluded_nodes == [second]
    third = lose(job, at=NOW + timedelta(minutes=2))
    assert third == first


def test_a_gang_that_needs_all_nodes_avoids_none():
    prepare(nodes=2, cells=2)
    job = make_job(worker={"instances": 2, "devices": 8})

    lose(job)

    assert job.excluded_nodes == []
    run_round(NOW + timedelta(minutes=1))
    assert Member.objects.filter(attempt__job=job, attempt__ended_at=None).count() == 2


def test_nodes_that_take_no_work_are_no_way_out():
    prepare(nodes=3)
    job = make_job(worker={"devices": 8})
    run_round(NOW)
    home = Member.objects.get(attempt__job=job).node
    others = Node.objects.exclude(pk=home.pk)
    others.update(held="cordoned", state="cordoned")

    lose(job)

    assert job.excluded_nodes == []


def test_a_job_of_a_pinned_cell_has_no_elsewhere():
    prepare(nodes=3)
    job = make_job(worker={"devices": 8})
    run_round(NOW)
    home = Member.objects.get(attempt__job=job).node.name
    PinnedCell.objects.create(virtual_cluster=job.virtual_cluster, name="mine", address=home)

    hurt(job)

    assert job.excluded_nodes == []


def test_a_failure_that_is_no_nodes_excludes_none():
    prepare(nodes=3)
    job = make_job(retries={"user": 1})
    run_round(NOW)
    member = Member.objects.get(attempt__job=job)
    attempts.mark_preparing(member_ids=[member.pk], now=NOW)

    attempts.mark_prepare_failed(
        member_id=member.pk, failure=FailureClass.USER, code="bad", message="bad", now=NOW
    )

    job.refresh_from_db()
    assert (job.state, job.excluded_nodes) == ("queued", [])
