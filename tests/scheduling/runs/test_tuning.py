"""Batches of running jobs: chosen from what they report, sent down once, and not too often."""

from datetime import timedelta

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.jobs.models import JobEvent
from scheduling.rounds.snapshot import take_snapshot
from scheduling.runs.models import Attempt, Member, StepTally
from scheduling.runs.queries.node_members import DirectiveKind, directive_of
from scheduling.runs.services.attempts import mark_tuned
from scheduling.runs.services.progress import Leading, add_attempt_progress
from scheduling.runs.services.tuning import choose_batches
from tests.factories.attempts import run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import CONFIG, run_round

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(seconds=300)
ADAPTIVE = {"mode": "adaptive_batch", "initial_batch": 64, "max_batch": 1024}
NOISY = (1.0, 400.0)


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def a_running_job(**elastic):
    job = make_job(elastic=ADAPTIVE | elastic, worker={"devices": 4})
    run_round(NOW)
    run_members(job)
    return job, Attempt.objects.get(job=job)


def report(attempt, *, batch=64, steps=50, noise=NOISY):
    kinds = ((batch, 1, steps, steps * (0.1 + 0.0001 * batch)),)
    leading = Leading(
        seconds=30.0,
        steps=steps,
        step=steps,
        loss=1.0,
        batch=batch,
        accumulation=1,
        noise=noise,
        kinds=kinds,
    )
    add_attempt_progress(attempt_id=attempt.pk, samples=steps * batch, leading=leading)


def leader_of(attempt):
    return Member.objects.get(attempt=attempt, node_rank=0)


def test_a_batch_is_chosen_after_some_steps_and_sent_to_the_first_member():
    job, attempt = a_running_job()
    assert choose_batches(now=LATER) == 0
    report(attempt)

    assert choose_batches(now=LATER) == 1

    leader = leader_of(attempt)
    batch = leader.settings["batch"]
    assert 64 < batch <= 128
    assert leader.settings == {"batch": batch, "accumulation": 1}
    assert directive_of(leader) is DirectiveKind.TUNE
    event = JobEvent.objects.get(job=job, kind="batch")
    assert event.text.startswith(f"Its batch is now {batch} samples in 1 pass per device")
    assert (event.attempt, event.detail["before"]) == (1, 64)


def test_what_the_node_has_been_told_is_not_told_again():
    _, attempt = a_running_job()
    report(attempt)
    choose_batches(now=LATER)
    leader = leader_of(attempt)

    mark_tuned(member_id=leader.pk, version=leader.settings_version)
    mark_tuned(member_id=leader.pk, version=0)

    assert directive_of(leader_of(attempt)) is DirectiveKind.NOTHING
    assert choose_batches(now=LATER + timedelta(seconds=5)) == 0


def test_a_job_that_cannot_take_its_batch_up_is_not_told_the_same_again():
    job, attempt = a_running_job()
    for turn in range(3):
        report(attempt, batch=64)
        choose_batches(now=LATER + turn * timedelta(seconds=60))

    assert leader_of(attempt).settings_version == 1
    assert JobEvent.objects.filter(job=job, kind="batch").count() == 1


def test_a_batch_grows_step_by_step_while_it_pays_and_then_stays():
    job, attempt = a_running_job()
    batches = [64]
    for turn in range(12):
        report(attempt, batch=batches[-1])
        if choose_batches(now=LATER + turn * timedelta(seconds=60)):
            batches.append(leader_of(attempt).settings["batch"])

    assert batches == sorted(batches)
    assert batches[-1] <= 1024
    assert len(batches) < 8
    assert JobEvent.objects.filter(job=job, kind="batch").count() == len(batches) - 1


def test_a_job_that_leaves_or_reports_nothing_of_its_noise_keeps_its_batch():
    _, quiet = a_running_job()
    report(quiet, noise=None)
    _, attempt = a_running_job()
    report(attempt)
    Member.objects.filter(attempt=attempt).update(stop_asked_at=LATER)

    assert choose_batches(now=LATER) == 0


def test_policies_know_the_noise_and_the_steps_by_batch():
    job, attempt = a_running_job()
    VirtualCluster.objects.unscoped().update(policy="tessera")
    report(attempt)
    report(attempt, steps=10)

    known = take_snapshot(number=9, now=LATER, config=CONFIG).snapshot.known[job.pk]

    assert known.noise == NOISY
    assert [(one.batch, one.steps, one.devices) for one in known.timed] == [(64, 60, 4)]
    assert (known.terms.batch, known.terms.max_batch) == (64, 1024)


def test_an_attempt_keeps_so_many_kinds_of_steps():
    _, attempt = a_running_job()
    for batch in range(64, 164):
        report(attempt, batch=batch, steps=1)

    assert StepTally.objects.filter(attempt=attempt).count() == 64


def test_policies_know_the_skew_of_the_parameters():
    job, attempt = a_running_job()
    VirtualCluster.objects.unscoped().update(policy="tiresias")
    report(attempt)
    leading = Leading(seconds=1.0, steps=1, step=51, loss=None, parameters=(390, 520))
    add_attempt_progress(attempt_id=attempt.pk, samples=0.0, leading=leading)

    known = take_snapshot(number=9, now=LATER, config=CONFIG).snapshot.known[job.pk]

    assert known.facts.skew == 0.75
