"""Start estimates, steps that let jobs start, and certificates, on a database."""

import math
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.models import VirtualCluster
from scheduling.core.jobspec.amending import version_of
from scheduling.core.reasons import Reason
from scheduling.estimates.models import EstimateRecord, StartEstimate
from scheduling.estimates.queries import calibration
from scheduling.estimates.services import explanations
from scheduling.estimates.services.cached_decision import standing_now
from scheduling.estimates.services.corrections import lessons_of
from scheduling.estimates.services.estimates import (
    Budget,
    estimate_new_waits,
    estimate_starts,
    new_waits,
)
from scheduling.estimates.services.explanations import checked_reason, seek_now
from scheduling.estimates.services.submit_plans import plan_job
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import rows_of_jobs
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.queries.why import why
from scheduling.jobs.services.amendments import amend_job
from scheduling.jobs.validation import InvalidJobError
from scheduling.rounds.models import QueueOrder
from scheduling.rounds.services import rounds
from scheduling.rounds.services.evidence import store_round
from scheduling.rounds.snapshot import take_snapshot
from scheduling.runs.services.stopping import stop_job
from scheduling.signals import answers_found, round_committed
from scheduling.storage.directory import DirectoryStorage
from tenants.errors import ConflictError, ForbiddenError, NotFoundError, StaleEditError
from tessera.messages import plain
from tessera.reasons import ReasonCode
from tests.factories.cluster import NOW
from tests.factories.estimates import store_waits
from tests.factories.scheduling import CONFIG, end, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer
from tests.support.interleaving import before_query

pytestmark = pytest.mark.django_db(transaction=False)
LATER = NOW + timedelta(seconds=60)


def full_cluster() -> Job:
    """A job of alice that waits for another one of hers, which holds the whole guarantee."""
    make_two_tenants(nodes=2)
    first = submit(devices=8, name="train-8", max_duration="30m")
    start(first)
    second = submit(devices=8, name="train-9")
    run_round(NOW)
    second.refresh_from_db()
    assert second.reason_code
    return second


def test_a_waiting_job_gets_an_estimate_and_its_place() -> None:
    job = full_cluster()

    made = estimate_starts(config=CONFIG, now=LATER)

    assert made == 1
    row = StartEstimate.objects.get(pk=job.pk)
    assert row.p10 is not None
    assert row.p50 is not None
    assert row.p90 is not None
    assert LATER <= row.p10 <= row.p50 <= row.p90
    answer = why(make_viewer("alice"), job.pk, now=LATER, round_seconds=1000.0)
    assert answer.eta is not None
    assert answer.ahead == 0
    assert answer.unblock[0] == answer.steps[0]["text"]


def ahead_of(*jobs: Job) -> list[int | None]:
    """The text of REST and of the list, which are equal."""
    alice = make_viewer("alice")
    answers = [why(alice, job.pk, now=LATER, round_seconds=1000.0).ahead for job in jobs]
    rows = rows_of_jobs(alice, [job.pk for job in jobs])
    assert [rows[job.pk].ahead for job in jobs] == answers
    return answers


def test_the_jobs_ahead_are_those_of_the_newest_round_without_any_estimate() -> None:
    second = full_cluster()
    third, held = submit(devices=8, name="train-10"), submit(devices=8, name="t", held=True)
    borrower = submit(devices=8, worker={"instances": 2}, **{"class": "opportunistic"})
    assert ahead_of(third) == [None]

    run_round(LATER)

    assert ahead_of(second, third, held, borrower) == [0, 1, None, 0]
    stop_job(job=second, viewer=make_viewer("alice"), now=LATER)
    run_round(LATER)
    assert ahead_of(third, borrower) == [0, 0]
    end(Job.objects.unscoped().get(name="train-8"), at=LATER)
    assert third.pk in run_round(LATER).started
    assert ahead_of(third, borrower) == [None, 0]


def test_a_job_that_was_changed_has_no_place_until_a_round_has_tried_it() -> None:
    first = full_cluster()
    second = submit(devices=8, name="train-10")
    run_round(LATER)
    assert ahead_of(first, second) == [0, 1]

    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    amend_job(
        job=second,
        changes={"class": "opportunistic"},
        viewer=alice,
        submit_context=submit_context,
        now=LATER,
    )

    assert ahead_of(first, second) == [0, None]


def test_a_line_that_has_not_changed_is_not_written_again() -> None:
    full_cluster()

    with CaptureQueriesContext(connection) as asked:
        run_round(LATER)

    assert [query["sql"] for query in asked if "waitingline" in query["sql"]] == [
        query["sql"]
        for query in asked
        if query["sql"].startswith("SELECT") and "waitingline" in query["sql"]
    ]
    assert QueueOrder.objects.get().guaranteed


def pending(job: Job) -> tuple[str, ...]:
    return why(make_viewer("alice"), job.pk, now=LATER, round_seconds=1000.0).pending


def test_missing_results_for_a_new_wait_are_pending_until_stored(
    django_capture_on_commit_callbacks: Any,
) -> None:
    job = full_cluster()
    assert pending(job) == ("steps", "eta")
    heard: list[tuple[int, ...]] = []

    def hear(*, job_ids: tuple[int, ...], **_: Any) -> None:
        heard.append(job_ids)

    answers_found.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            handled = estimate_new_waits(config=CONFIG, now=LATER)
        with django_capture_on_commit_callbacks(execute=True):
            again = estimate_new_waits(config=CONFIG, now=LATER)
    finally:
        answers_found.disconnect(hear)

    assert (handled, again) == (frozenset({job.pk}), frozenset())
    assert heard == [(job.pk,)]
    answer = why(make_viewer("alice"), job.pk, now=LATER, round_seconds=1000.0)
    assert answer.steps
    assert answer.eta is not None
    assert answer.pending == ()
    assert EstimateRecord.objects.get().job_id == job.pk


def test_steps_for_another_reason_are_neither_shown_nor_stored() -> None:
    job = full_cluster()
    estimate_new_waits(config=CONFIG, now=LATER)
    running = Job.objects.unscoped().get(name="train-8")
    Job.objects.unscoped().filter(pk=job.pk).update(priority=job.priority - 1)
    VirtualCluster.objects.unscoped().update(policy_args={"backfill": False})
    submit(devices=8, name="train-10")
    run_round(LATER)
    job.refresh_from_db()
    assert job.reason_code == "behind-higher-priority"

    assert "steps" in pending(job)
    assert not why(make_viewer("alice"), job.pk, now=LATER, round_seconds=1000.0).steps
    assert not any(
        "it starts now" in text
        for text in rows_of_jobs(make_viewer("alice"), [job.pk])[job.pk].unblock
    )
    assert job.pk in estimate_new_waits(config=CONFIG, now=LATER)

    assert pending(job) == ()
    assert running.pk not in new_waits()


@pytest.mark.parametrize("estimate", [estimate_new_waits, estimate_starts])
def test_results_for_a_job_before_an_amendment_are_neither_stored_nor_shown(
    estimate: Any,
) -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)

    def be_changed_meanwhile() -> None:
        amend_job(
            job=job,
            changes={"roles.worker.devices": 6},
            viewer=alice,
            submit_context=submit_context,
            now=LATER,
        )
        run_round(LATER)  # for the same reason

    # The search for steps is over, and nothing is stored yet.
    with before_query('DELETE FROM "scheduling_startestimate"', be_changed_meanwhile):
        estimate(config=CONFIG, now=LATER)

    job.refresh_from_db()
    assert (job.devices, job.reason_code) == (6, "vc-guarantee-in-use")
    assert not StartEstimate.objects.exists()
    assert pending(job) == ("steps", "eta")
    assert job.pk in estimate_new_waits(config=CONFIG, now=LATER)
    assert pending(job) == ()
    StartEstimate.objects.update(amendments=0)  # as if it had been stored in between
    assert pending(job) == ("steps", "eta")
    (row,) = rows_of_jobs(alice, [job.pk]).values()
    assert row.eta is None
    assert not any("it starts now" in text for text in row.unblock)
    assert job.pk in new_waits()


def test_steps_sought_on_demand_before_an_amendment_are_not_stored() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    read_before = Job.objects.unscoped().get(pk=job.pk)
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    amend_job(
        job=job, changes={"note": "x"}, viewer=alice, submit_context=submit_context, now=LATER
    )
    run_round(LATER)

    seek_now(job=read_before, config=CONFIG, now=LATER)
    assert not StartEstimate.objects.exists()
    job.refresh_from_db()
    seek_now(job=job, config=CONFIG, now=LATER)

    assert pending(job) == ("eta",)


def test_the_cached_snapshot_is_replaced_after_an_amendment() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    standing_now(config=CONFIG, now=LATER)

    # As many devices as before, in other numbers.
    split = {"roles.worker.devices": 4, "roles.worker.instances": 2}
    amend_job(job=job, changes=split, viewer=alice, submit_context=submit_context, now=LATER)

    (waiting,) = standing_now(config=CONFIG, now=LATER).snapshot.queued
    (member,) = waiting.demand.members
    assert (member.count, member.devices) == (2, 4)


def test_new_waits_get_no_estimate_from_few_futures_and_retain_the_earlier_one() -> None:
    job = full_cluster()
    few = Budget(walking=100.0, seeking=100.0, futures=3, fewest=10)

    estimate_new_waits(config=CONFIG, now=LATER, budget=few)
    assert pending(job) == ("eta",)
    assert not EstimateRecord.objects.exists()

    estimate_starts(config=CONFIG, now=LATER)
    assert pending(job) == ()
    StartEstimate.objects.update(sought_for="held")
    estimate_new_waits(config=CONFIG, now=LATER, budget=few)
    assert pending(job) == ()
    assert StartEstimate.objects.get().p50 is not None


def test_without_time_new_waits_are_estimated_once_and_steps_sought_on_demand() -> None:
    job = full_cluster()

    estimate_new_waits(config=CONFIG, now=LATER, budget=Budget(walking=100.0, seeking=-1.0))

    assert pending(job) == ("steps",)
    assert new_waits() == frozenset()
    seek_now(job=job, config=CONFIG, now=LATER)
    assert pending(job) == ()


def test_a_job_behind_a_gate_has_a_remedy_and_no_start_estimate() -> None:
    make_two_tenants(nodes=2)
    run_round(NOW)
    job = submit(held=True)
    assert pending(job) == ("steps", "eta")
    run_round(NOW)

    estimate_new_waits(config=CONFIG, now=LATER)

    answer = why(make_viewer("alice"), job.pk, now=LATER, round_seconds=1000.0)
    assert [step["changes"] for step in answer.steps] == [{"held": False}]
    assert (answer.eta, answer.pending) == (None, ())


def test_jobs_without_steps_come_first_when_all_are_renewed() -> None:
    known, unknown = full_cluster(), submit(devices=4, name="train-10")
    run_round(LATER)
    seek_now(job=known, config=CONFIG, now=LATER)

    with CaptureQueriesContext(connection) as queries:
        estimate_starts(config=CONFIG, now=LATER)

    # Before the search for a job, its document is read.
    read = re.compile(r'SELECT "scheduling_job"\."spec"[^,]* WHERE .*"id" = (\d+)')
    found = [match for query in queries if (match := read.search(query["sql"]))]
    assert [int(match[1]) for match in found] == [unknown.pk, known.pk]


def test_jobs_with_equal_demands_get_the_same_steps_after_the_time_limit() -> None:
    alike, other = [full_cluster(), submit(devices=8, name="train-9")], submit(devices=4)
    run_round(LATER)
    clock = iter([0.0, 1.0])
    reading = take_snapshot(number=2, now=LATER, config=CONFIG)
    reasons = {
        job.pk: Reason(code=ReasonCode.WAITING_FOR_ROUND, message=plain("It waits."))
        for job in (*alike, other)
    }

    found = explanations.seek_for_all(
        snapshot=reading.snapshot,
        moving=(),
        reasons=reasons,
        seconds=5.0,
        clock=lambda: next(clock, 1e9),
    )

    assert found.keys() == {job.pk for job in alike}


def test_jobs_without_any_estimate_come_first() -> None:
    known = full_cluster()
    estimate_new_waits(config=CONFIG, now=LATER)
    StartEstimate.objects.update(sought_for="held")
    unknown = submit(devices=8, name="train-10")
    run_round(LATER)
    assert new_waits() == {known.pk, unknown.pk}

    assert new_waits(most=1) == {unknown.pk}


def test_a_round_signals_whether_jobs_have_begun_to_wait(
    django_capture_on_commit_callbacks: Any,
) -> None:
    make_two_tenants(nodes=2)
    start(submit(devices=8, name="train-8"))
    heard: list[bool] = []

    def hear(*, new_waits: bool, **_: Any) -> None:
        heard.append(new_waits)

    def round_at(seconds: int) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            run_round(NOW + timedelta(seconds=seconds))

    round_committed.connect(hear)
    try:
        submit(devices=8, name="train-9")
        round_at(1)
        Job.objects.unscoped().queued().update(reason_text="The same in other words.")
        round_at(2)
        submit(devices=8, name="train-10")
        round_at(3)
    finally:
        round_committed.disconnect(hear)

    assert heard == [True, False, True]


def test_starts_after_the_horizon_count_as_starts_at_the_horizon() -> None:
    job = full_cluster()
    two_days = 2 * 86_400.0  # from sooner on, the range would be too wide to be shown

    made = store_waits((two_days,) * 17 + (math.inf,) * 3, of=job, now=LATER)

    row = StartEstimate.objects.get(pk=job.pk)
    assert made == 1
    assert (row.p50, row.p90) == (LATER + timedelta(days=2), LATER + timedelta(days=14))


def test_an_estimate_that_has_not_moved_is_not_written_again() -> None:
    job = full_cluster()
    made = []
    for seconds, wait in ((0, 600.0), (10, 590.0), (20, 5000.0)):
        store_waits((wait,) * 20, of=job, now=LATER + timedelta(seconds=seconds))
        made.append(StartEstimate.objects.get(pk=job.pk).made_at)

    assert made == [LATER, LATER, LATER + timedelta(seconds=20)]


def test_the_actual_start_is_stored_with_an_estimate_when_the_job_gets_devices() -> None:
    job = full_cluster()
    estimate_starts(config=CONFIG, now=LATER)
    estimate_starts(config=CONFIG, now=LATER + timedelta(seconds=10))
    running = Job.objects.unscoped().get(name="train-8")
    end(running, at=LATER + timedelta(seconds=100))

    run_round(LATER + timedelta(seconds=120))
    estimate_starts(config=CONFIG, now=LATER + timedelta(seconds=130))

    (record,) = EstimateRecord.objects.all()
    assert record.job_id == job.pk
    assert record.wait == pytest.approx(120.0)
    assert not StartEstimate.objects.exists()
    (row,) = calibration(make_viewer("alice"), now=LATER + timedelta(hours=1))
    assert row.virtual_cluster == "vision-a"
    assert row.estimates == 1
    assert row.inside + row.below + row.above == pytest.approx(1.0)
    assert calibration(make_viewer("bob"), now=LATER) == ()


def test_stored_estimates_show_how_fast_a_queue_drains() -> None:
    make_two_tenants(nodes=2)
    jobs = [submit(devices=1, name=f"train-{number}") for number in range(9)]
    waiting = submit(devices=8, name="train-large")
    for number, job in enumerate([*jobs, waiting]):
        EstimateRecord.objects.create(
            job=job,
            virtual_cluster_id=job.virtual_cluster_id,
            round_number=1,
            made_at=NOW if job != waiting else NOW + timedelta(hours=2),
            waited=0.0,
            wait=3600.0 + 60.0 * number if job != waiting else None,
            **dict.fromkeys(("raw_p10", "raw_p50", "raw_p90", "p10", "p50", "p90"), 60.0),
        )
    now = NOW + timedelta(hours=2, minutes=1)

    lessons = lessons_of([waiting.virtual_cluster_id], now=now)[waiting.virtual_cluster_id]
    mine, behind, larger = (
        lessons.mend((60.0, 60.0, 60.0), now=now.timestamp(), devices=devices, job=job)
        for devices, job in ((1, waiting.pk), (1, None), (9, waiting.pk))
    )

    assert mine[1] < behind[1]
    assert behind == larger


def short_waits(vc_id: int, *jobs: Job) -> None:
    """Estimates of old, each of a job that had to wait for a second."""
    for number, job in enumerate(jobs):
        EstimateRecord.objects.create(
            job=job,
            virtual_cluster_id=vc_id,
            round_number=1,
            made_at=NOW + timedelta(seconds=number),
            waited=0.0,
            wait=1.0,
            closed_at=NOW + timedelta(minutes=1),
            **dict.fromkeys(("raw_p10", "raw_p50", "raw_p90", "p10", "p50", "p90"), 1.0),
        )


def test_no_start_is_estimated_before_the_time_before_which_a_job_may_not_start() -> None:
    make_two_tenants(nodes=2)
    opens = LATER + timedelta(hours=2)
    job = submit(devices=1, not_before=opens.isoformat())
    short_waits(job.virtual_cluster_id, *(submit(devices=1, name=f"t-{n}") for n in range(9)))
    run_round(LATER)

    estimate_starts(config=CONFIG, now=LATER)
    alice = make_viewer("alice")
    plan = plan_job(
        document=job.spec,
        viewer=alice,
        submit_context=read_submit_context(viewer=alice, images_ignored=False),
        config=CONFIG,
        now=LATER,
    )

    row = StartEstimate.objects.get(pk=job.pk)
    assert row.p10 is not None
    assert row.p50 is not None
    assert row.p90 is not None
    assert opens <= row.p10 <= row.p50 <= row.p90
    assert not EstimateRecord.objects.filter(job=job).exists()  # nothing to learn from a gate
    assert plan.starts is not None
    assert min(plan.starts) >= 7200.0


def test_an_estimate_of_a_job_that_never_starts_is_closed_without_a_truth() -> None:
    job = full_cluster()
    estimate_starts(config=CONFIG, now=LATER)
    stop_job(job=job, viewer=make_viewer("alice"), now=LATER)

    estimate_starts(config=CONFIG, now=LATER + timedelta(seconds=10))

    (record,) = EstimateRecord.objects.all()
    assert record.wait is None
    assert record.closed_at is not None


def test_a_job_starts_in_the_next_round_after_its_first_step_was_applied() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    found = seek_now(job=job, config=CONFIG, now=LATER)

    amend_job(
        job=job,
        changes=found.steps[0].changes,
        viewer=alice,
        submit_context=read_submit_context(viewer=alice, images_ignored=False),
        now=LATER,
    )
    outcome = run_round(LATER)

    assert job.pk in outcome.started


def test_only_some_fields_of_a_job_change_while_it_waits() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)

    for changes in ({"name": "x"}, {"roles.worker.command": "rm"}, {"roles.ps.devices": 1}, {}):
        with pytest.raises(InvalidJobError):
            amend_job(
                job=job, changes=changes, viewer=alice, submit_context=submit_context, now=LATER
            )
    with pytest.raises(InvalidJobError):
        amend_job(
            job=job,
            changes={"roles.worker.devices": 0},
            viewer=alice,
            submit_context=submit_context,
            now=LATER,
        )

    with pytest.raises(InvalidJobError):
        amend_job(
            job=job,
            changes={"virtual_cluster": "language-a"},
            viewer=alice,
            submit_context=submit_context,
            now=LATER,
        )
    job.refresh_from_db()
    assert job.devices == 8


def test_a_job_of_another_user_or_a_running_one_is_not_amended() -> None:
    job = full_cluster()
    bob, alice = make_viewer("bob"), make_viewer("alice")
    running = Job.objects.unscoped().get(name="train-8")
    changes = {"roles.worker.devices": 4}

    submit_context = read_submit_context(viewer=bob, images_ignored=False)
    with pytest.raises(ForbiddenError):
        amend_job(job=job, changes=changes, viewer=bob, submit_context=submit_context, now=LATER)
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    with pytest.raises(ConflictError):
        amend_job(
            job=running, changes=changes, viewer=alice, submit_context=submit_context, now=LATER
        )


def test_of_two_concurrent_amendments_the_second_is_refused() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    stale = Job.objects.unscoped().get(pk=job.pk)
    amend_job(
        job=job,
        changes={"roles.worker.devices": 4},
        viewer=alice,
        submit_context=submit_context,
        now=LATER,
    )

    with pytest.raises(ConflictError, match="Another user has changed"):
        amend_job(
            job=stale,
            changes={"class": "opportunistic"},
            viewer=alice,
            submit_context=submit_context,
            now=LATER,
        )

    job.refresh_from_db()
    assert (job.devices, job.job_class) == (4, "guaranteed")


def test_an_amendment_of_an_old_version_is_stale_also_between_check_and_write() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    read = Job.objects.unscoped().get(pk=job.pk)
    amend_job(
        job=job, changes={"note": "first"}, viewer=alice, submit_context=submit_context, now=LATER
    )

    for late in (read, Job.objects.unscoped().get(pk=job.pk)):
        with pytest.raises(StaleEditError):
            amend_job(
                job=late,
                changes={"note": "second"},
                viewer=alice,
                submit_context=submit_context,
                now=LATER,
                seen=version_of(read.spec),
            )

    assert Job.objects.unscoped().get(pk=job.pk).note == "first"


@pytest.mark.parametrize("is_held", [True, False])
def test_a_hold_stays_when_another_field_changes(is_held: bool) -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    Job.objects.unscoped().filter(pk=job.pk).update(
        held=is_held, spec={**job.spec, "held": not is_held}
    )
    job.refresh_from_db()

    amend_job(
        job=job,
        changes={"roles.worker.devices": 4},
        viewer=alice,
        submit_context=submit_context,
        now=LATER,
    )
    assert job.held is is_held

    amend_job(
        job=job, changes={"held": False}, viewer=alice, submit_context=submit_context, now=LATER
    )
    assert job.held is False


def test_a_job_that_waits_cannot_be_made_to_wait_for_itself_or_for_more() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    submit_context = read_submit_context(viewer=alice, images_ignored=False)
    other = Job.objects.unscoped().get(name="train-8").pk

    for after in ([job.pk], [other]):
        with pytest.raises(InvalidJobError, match="more dependencies"):
            amend_job(
                job=job,
                changes={"after": after},
                viewer=alice,
                submit_context=submit_context,
                now=LATER,
            )


def test_a_reason_holds_on_the_stored_snapshot_of_its_round(tmp_path: Path) -> None:
    make_two_tenants(nodes=2)
    start(submit(devices=8))
    job = submit(devices=8)
    with pytest.raises(NotFoundError):
        checked_reason(job=job, storage=DirectoryStorage(tmp_path))

    rounds.run_round(
        now=lambda: LATER,
        config=CONFIG,
        store=lambda number, reading, result: store_round(
            storage=DirectoryStorage(tmp_path), number=number, reading=reading, result=result
        ),
    )

    checked = checked_reason(job=job, storage=DirectoryStorage(tmp_path))
    assert checked.holds
    assert checked.certificate.job == job.pk
    assert checked.certificate.kind == "count"
