"""Receipts of preemptions: opened with the notice, completed by reports of the job."""

from datetime import timedelta

import pytest

from scheduling.clusters.services.nodes import drain_node
from scheduling.core.lifecycle import PreemptionRule
from scheduling.jobs.models import Job, JobEvent
from scheduling.rounds.snapshot import take_snapshot
from scheduling.runs.models import Attempt, Member, Preemption
from scheduling.runs.queries.receipts import receipts_of_job
from scheduling.runs.services import attempts, progress
from scheduling.runs.services.progress import Leading, add_attempt_progress, record_training_events
from scheduling.runs.services.receipts import settle_receipts
from scheduling.runs.services.stopping import preempt_job
from tenants.viewers import Viewer
from tessera import protocol
from tests.factories.attempts import members_of, run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import CONFIG, run_round

pytestmark = pytest.mark.django_db
ASKED = NOW + timedelta(seconds=100)
LEFT = ASKED + timedelta(seconds=4)
SHA = "ab" * 32


@pytest.fixture
def job():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)
    made = make_job(worker={"devices": 4})
    run_round(NOW)
    run_members(made)
    return made


def report(job, steps, seconds=50.0):
    leading = Leading(seconds=seconds, steps=steps, step=steps - 1, loss=None)
    add_attempt_progress(attempt_id=attempt_of(job).pk, samples=0.0, leading=leading)


def tell(job, kind, **facts):
    text = f"{kind} {facts}"
    record_training_events(job_id=job.pk, attempt=1, notes=[(kind, text, facts)], now=ASKED)


def preempt(job, for_job=0):
    return preempt_job(
        job_id=job.pk, for_job=for_job, rule="A rule", cause=PreemptionRule.INTRA_VC, now=ASKED
    )


def leave(job, signal=15):
    record = protocol.ExitRecord(
        cause=protocol.CAUSE_STOPPED, failure="", at=LEFT.timestamp(), code=None, signal=signal
    )
    ids = [member.pk for member in members_of(job)]
    for member_id in ids:
        attempts.mark_exited(member_id=member_id, record=record, now=LEFT)
    return ids


def attempt_of(job):
    return Attempt.objects.get(job=job, number=1)


def test_events_fetched_after_a_job_has_left_are_not_dated_after_it(job):
    preempt(job)
    leave(job)
    record_training_events(
        job_id=job.pk,
        attempt=1,
        notes=[("acknowledged", "", {}), ("checkpoint", "", {"step": 3, "sha256": SHA})],
        now=LEFT + timedelta(seconds=2),
    )

    settle_receipts(attempt_ids=[attempt_of(job).pk])

    found = Preemption.objects.get(job=job)
    assert found.acknowledged_at == found.checkpoint_at == found.released_at == LEFT


def test_the_last_of_very_many_checkpoints_counts(job):
    most = progress.MOST_OF_AN_ATTEMPT
    report(job, most + 2)
    preempt(job)
    notes = [
        ("checkpoint", f"checkpoint {step}", {"step": step, "sha256": SHA})
        for step in range(1, most + 3)
    ]
    record_training_events(job_id=job.pk, attempt=1, notes=notes, now=ASKED)

    leave(job)

    found = Preemption.objects.get(job=job)
    assert (found.checkpoint_step, found.lost_steps) == (most + 2, 0)
    assert JobEvent.objects.filter(job=job, kind="checkpoint").count() == most


def test_many_receipts_are_settled_in_a_few_queries(job, django_assert_num_queries):
    other = make_job(worker={"devices": 4})
    run_round(NOW)
    run_members(other)
    for one, steps in ((job, 100), (other, 60)):
        preempt(one)
        report(one, steps)
        for step in (20, 50):
            tell(one, "checkpoint", step=step, sha256=SHA)
        leave(one)

    ids = [attempt_of(one).pk for one in (job, other)]
    with django_assert_num_queries(6):
        settle_receipts(attempt_ids=ids)

    lost = Preemption.objects.order_by("job_id").values_list("lost_steps", flat=True)
    assert list(lost) == [50, 10]


def test_a_job_that_saved_its_last_step_has_lost_nothing(job):
    report(job, 100)
    assert preempt(job)
    tell(job, "acknowledged")
    tell(job, "checkpoint", step=100, sha256=SHA)

    leave(job)

    found = Preemption.objects.get(job=job)
    assert (found.cause, found.rule, found.grace_seconds) == ("intra-vc", "A rule", 30)
    assert (found.asked_at, found.acknowledged_at, found.released_at) == (ASKED, ASKED, LEFT)
    assert (found.checkpoint_step, found.checkpoint_sha256) == (100, SHA)
    assert (found.lost_steps, found.lost_seconds, found.forced) == (0, 0.0, False)


def test_events_after_the_end_complete_the_receipt(job):
    tell(job, "checkpoint", step=40, sha256=SHA)
    report(job, 90, seconds=45.0)
    preempt(job)
    members = leave(job, signal=9)
    early = Preemption.objects.get(job=job)
    report(job, 10, seconds=5.0)
    add_attempt_progress(
        attempt_id=attempt_of(job).pk,
        samples=0.0,
        leading=Leading(seconds=0.0, steps=0, step=99, loss=None),
    )

    attempts.mark_removed(member_ids=members, now=LEFT)

    late = Preemption.objects.get(job=job)
    assert (early.lost_steps, early.lost_seconds, early.forced) == (50, 25.0, True)
    assert (late.lost_steps, late.lost_seconds) == (60, 30.0)


def test_a_job_that_tells_nothing_may_have_lost_all_that_it_did(job):
    preempt(job)

    leave(job)

    found = Preemption.objects.get(job=job)
    assert (found.lost_steps, found.lost_seconds) == (None, 104.0)


def test_steps_before_the_place_where_it_went_on_are_not_lost(job):
    tell(job, "resumed", step=900, sha256=SHA)
    report(job, 10, seconds=5.0)
    add_attempt_progress(
        attempt_id=attempt_of(job).pk,
        samples=0.0,
        leading=Leading(seconds=0.0, steps=0, step=909, loss=None),
    )
    preempt(job)

    leave(job)

    found = Preemption.objects.get(job=job)
    assert (found.lost_steps, found.lost_seconds) == (10, 5.0)


def test_asking_twice_makes_one_receipt(job):
    assert preempt(job)
    assert not preempt(job)

    assert Preemption.objects.count() == 1


def test_a_drain_leaves_receipts_that_name_the_node(job):
    node = Member.objects.filter(attempt__job=job)[0].node

    drain_node(viewer=Viewer.system("admin"), node_id=node.pk, reason="new disks", now=ASKED)

    (found,) = receipts_of_job(Viewer.system("admin"), job.pk)
    assert (found.cause, found.by) == ("drain", f"the drain of {node.name}")
    assert (found.for_job, found.for_text, found.lost_seconds) == (None, "", None)


def test_rounds_store_the_other_job_and_the_rule(job):
    strong = make_job(worker={"instances": 2, "devices": 8}, priority=500)
    run_round(ASKED)

    receipts = Preemption.objects.filter(for_job=strong)

    assert {found.cause for found in receipts} == {"intra-vc"}
    assert Job.objects.unscoped().get(pk=job.pk).state == "preempting"


def test_a_checkpoint_leaves_less_of_a_job_at_stake_in_the_next_round(job):
    def held():
        (found,) = take_snapshot(number=2, now=LEFT, config=CONFIG).snapshot.holding
        return found

    before = held()
    tell(job, "resumed", step=3)
    unsaved = held()
    tell(job, "checkpoint", step=9, sha256=SHA)
    after, now = held(), LEFT.timestamp()

    assert (before.saved, unsaved.saved, after.saved) == (None, None, ASKED.timestamp())
    assert before.at_stake(now) == (LEFT - NOW).total_seconds() * 4
    assert after.at_stake(now) == (LEFT - ASKED).total_seconds() * 4
