"""Start estimates, steps that let jobs start, and certificates, on a database."""

import math
from datetime import timedelta
from pathlib import Path

import pytest

from scheduling.core.amending import version_of
from scheduling.core.forecast.futures import Futures
from scheduling.models import EstimateRecord, Job, StartEstimate
from scheduling.selectors.estimates import calibration
from scheduling.selectors.why import why
from scheduling.services import estimates, rounds
from scheduling.services.amendments import amend_job
from scheduling.services.certificates import checked_reason
from scheduling.services.corrections import lessons_of
from scheduling.services.drafts import InvalidJobError, read_ground
from scheduling.services.estimates import estimate_starts
from scheduling.services.evidence import store_round
from scheduling.services.stopping import stop_job
from scheduling.services.unblocking import seek_now
from tenants.errors import ConflictError, ForbiddenError, NotFoundError, StaleEditError
from tests.factories.cluster import NOW
from tests.factories.scheduling import CONFIG, end, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db(transaction=False)
LATER = NOW + timedelta(seconds=60)


def full_cluster() -> Job:
    """A job of alice that waits for another one of hers, which holds the whole guarantee."""
    make_two_tenants(nodes=2)
    first = submit(devices=8, name="train-8")
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
    assert row.ahead == 0
    assert row.p10 is not None
    assert row.p50 is not None
    assert row.p90 is not None
    assert LATER <= row.p10 <= row.p50 <= row.p90
    answer = why(make_viewer("alice"), job.pk, now=LATER, round_seconds=1000.0)
    assert answer.eta is not None
    assert answer.ahead == 0
    assert answer.unblock[0] == answer.steps[0]["text"]


def test_starts_that_nobody_waited_for_count_as_the_longest_look_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = full_cluster()
    few_never = Futures(waits={job.pk: (60.0,) * 17 + (math.inf,) * 3}, tried=20)
    monkeypatch.setattr(estimates, "try_futures", lambda *_args, **_options: few_never)

    made = estimate_starts(config=CONFIG, now=LATER)

    row = StartEstimate.objects.get(pk=job.pk)
    assert made == 1
    assert (row.p50, row.p90) == (LATER + timedelta(seconds=60), LATER + timedelta(days=14))


def test_an_estimate_that_has_not_moved_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = full_cluster()
    monkeypatch.setattr(estimates, "seek_for_all", lambda **_options: {})
    made = []
    for seconds, wait in ((0, 600.0), (10, 590.0), (20, 5000.0)):
        told = Futures(waits={job.pk: (wait,) * 20}, tried=20)
        monkeypatch.setattr(estimates, "try_futures", lambda *_args, told=told, **_options: told)
        estimate_starts(config=CONFIG, now=LATER + timedelta(seconds=seconds))
        made.append(StartEstimate.objects.get(pk=job.pk).made_at)

    assert made == [LATER, LATER, LATER + timedelta(seconds=20)]


def test_the_truth_is_written_beside_an_estimate_when_the_job_gets_devices() -> None:
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


def test_kept_estimates_tell_how_fast_a_queue_drains() -> None:
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
        ground=read_ground(viewer=alice, images_ignored=False),
        now=LATER,
    )
    outcome = run_round(LATER)

    assert job.pk in outcome.started


def test_only_some_fields_of_a_job_change_while_it_waits() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    ground = read_ground(viewer=alice, images_ignored=False)

    for changes in ({"name": "x"}, {"roles.worker.command": "rm"}, {"roles.ps.devices": 1}, {}):
        with pytest.raises(InvalidJobError):
            amend_job(job=job, changes=changes, viewer=alice, ground=ground, now=LATER)
    with pytest.raises(InvalidJobError):
        amend_job(
            job=job, changes={"roles.worker.devices": 0}, viewer=alice, ground=ground, now=LATER
        )

    with pytest.raises(InvalidJobError):
        amend_job(
            job=job,
            changes={"virtual_cluster": "language-a"},
            viewer=alice,
            ground=ground,
            now=LATER,
        )
    job.refresh_from_db()
    assert job.devices == 8


def test_a_job_of_somebody_else_or_one_that_runs_is_not_changed() -> None:
    job = full_cluster()
    bob, alice = make_viewer("bob"), make_viewer("alice")
    running = Job.objects.unscoped().get(name="train-8")
    changes = {"roles.worker.devices": 4}

    ground = read_ground(viewer=bob, images_ignored=False)
    with pytest.raises(ForbiddenError):
        amend_job(job=job, changes=changes, viewer=bob, ground=ground, now=LATER)
    ground = read_ground(viewer=alice, images_ignored=False)
    with pytest.raises(ConflictError):
        amend_job(job=running, changes=changes, viewer=alice, ground=ground, now=LATER)


def test_of_two_who_change_a_job_at_once_the_second_is_told() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    ground = read_ground(viewer=alice, images_ignored=False)
    stale = Job.objects.unscoped().get(pk=job.pk)
    amend_job(job=job, changes={"roles.worker.devices": 4}, viewer=alice, ground=ground, now=LATER)

    with pytest.raises(ConflictError, match="Somebody else has changed"):
        amend_job(
            job=stale,
            changes={"class": "opportunistic"},
            viewer=alice,
            ground=ground,
            now=LATER,
        )

    job.refresh_from_db()
    assert (job.devices, job.job_class) == (4, "guaranteed")


def test_who_read_a_job_before_it_was_changed_is_stale_also_between_check_and_write() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    ground = read_ground(viewer=alice, images_ignored=False)
    read = Job.objects.unscoped().get(pk=job.pk)
    amend_job(job=job, changes={"note": "first"}, viewer=alice, ground=ground, now=LATER)

    for late in (read, Job.objects.unscoped().get(pk=job.pk)):
        with pytest.raises(StaleEditError):
            amend_job(
                job=late,
                changes={"note": "second"},
                viewer=alice,
                ground=ground,
                now=LATER,
                seen=version_of(read.spec),
            )

    assert Job.objects.unscoped().get(pk=job.pk).note == "first"


@pytest.mark.parametrize("is_held", [True, False])
def test_who_is_held_stays_so_while_something_else_changes(is_held: bool) -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    ground = read_ground(viewer=alice, images_ignored=False)
    Job.objects.unscoped().filter(pk=job.pk).update(
        held=is_held, spec={**job.spec, "held": not is_held}
    )
    job.refresh_from_db()

    amend_job(job=job, changes={"roles.worker.devices": 4}, viewer=alice, ground=ground, now=LATER)
    assert job.held is is_held

    amend_job(job=job, changes={"held": False}, viewer=alice, ground=ground, now=LATER)
    assert job.held is False


def test_a_job_that_waits_cannot_be_made_to_wait_for_itself_or_for_more() -> None:
    job = full_cluster()
    alice = make_viewer("alice")
    ground = read_ground(viewer=alice, images_ignored=False)
    other = Job.objects.unscoped().get(name="train-8").pk

    for after in ([job.pk], [other]):
        with pytest.raises(InvalidJobError, match="fewer jobs"):
            amend_job(job=job, changes={"after": after}, viewer=alice, ground=ground, now=LATER)


def test_a_reason_holds_on_the_stored_snapshot_of_its_round(tmp_path: Path) -> None:
    make_two_tenants(nodes=2)
    start(submit(devices=8))
    job = submit(devices=8)
    with pytest.raises(NotFoundError):
        checked_reason(job=job, data_dir=tmp_path)

    rounds.run_round(
        now=lambda: LATER,
        config=CONFIG,
        store=lambda number, reading, result: store_round(
            data_dir=tmp_path, number=number, reading=reading, result=result
        ),
    )

    checked = checked_reason(job=job, data_dir=tmp_path)
    assert checked.holds
    assert checked.certificate.job == job.pk
    assert checked.certificate.kind == "count"
