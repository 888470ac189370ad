"""Daily sums of what was held: kinds, days, months that are closed, and repeating it."""

from datetime import UTC, date, datetime, timedelta

import pytest

from scheduling.jobs.models import JobEvent
from scheduling.runs.models import Attempt, Lease, Member, Preemption
from scheduling.usage.models import UsageDay, UsageJob, UsageMark, UsageMonth
from scheduling.usage.queries.device_hours import leases_since
from scheduling.usage.queries.usage import usage
from scheduling.usage.services import usage as sums
from scheduling.usage.services.usage import close_months, month_digest, sum_usage
from tenants.models import User
from tests.factories.running import ran
from tests.factories.tenants import make_viewer
from tests.support.cluster_pages import Stage, make_stage
from tests.support.interleaving import before_query

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def stage() -> Stage:
    """Alice's job holds two devices from noon on, bob's four for two hours, borrowed."""
    made = make_stage(2)
    ran(made.running, NOON)
    Lease.objects.filter(job=made.running).update(virtual_cell="vc/0")
    Attempt.objects.filter(job=made.running).update(created_at=NOON)
    ran(made.foreign, NOON, NOON + 2 * HOUR)
    return made


def hours(day: date, name: str) -> tuple[float, float, float, float]:
    """Guaranteed, borrowed, lost to preemption and to failure of one person."""
    row = UsageDay.objects.unscoped().get(day=day, owner__username=name)
    seconds = (row.guaranteed, row.borrowed, row.lost_preempted, row.lost_failed)
    return tuple(round(value / 3600, 6) for value in seconds)  # type: ignore[return-value]


def test_each_day_has_the_device_hours_by_kind(stage: Stage) -> None:
    sum_usage(now=NOON + 15 * HOUR)

    assert hours(date(2026, 3, 31), "alice") == (24.0, 0.0, 0.0, 0.0)
    assert hours(date(2026, 4, 1), "alice") == (6.0, 0.0, 0.0, 0.0)
    assert hours(date(2026, 3, 31), "bob") == (0.0, 8.0, 0.0, 0.0)


def test_summing_up_in_pieces_or_again_gives_the_same(stage: Stage) -> None:
    for hour in (1, 3, 3, 14, 15):
        sum_usage(now=NOON + hour * HOUR)

    assert hours(date(2026, 3, 31), "alice") == (24.0, 0.0, 0.0, 0.0)
    assert hours(date(2026, 4, 1), "alice") == (6.0, 0.0, 0.0, 0.0)
    assert UsageDay.objects.unscoped().count() == 3


@pytest.mark.parametrize(
    ("columns", "place"),
    [
        ({"outcome": "failed", "failure_class": "preempted"}, 2),
        ({"outcome": "failed", "failure_class": "node"}, 3),
    ],
)
def test_lost_work_is_the_work_after_the_last_checkpoint(
    stage: Stage, columns: dict[str, str], place: int
) -> None:
    end = NOON + 5 * HOUR
    Attempt.objects.filter(job=stage.running).update(ended_at=end, **columns)
    ran(stage.running, until=end)
    for hour in (1, 4):
        JobEvent.objects.create(
            job=stage.running, at=NOON + hour * HOUR, kind="checkpoint", attempt=1
        )

    sum_usage(now=NOON + 6 * HOUR)

    found = hours(date(2026, 3, 31), "alice")
    assert found[0] == 10.0
    assert found[place] == 2.0


@pytest.mark.parametrize(
    ("outcome", "failure", "cause", "lost"),
    [
        ("stopped", "", "intra-vc", 2.0),  # it saved its work and left cleanly
        ("failed", "user", "intra-vc", 2.0),
        ("stopped", "", "drain", 2.0),
        ("succeeded", "", "intra-vc", 0.0),
        ("stopped", "", None, 0.0),
    ],
)
def test_a_job_that_leaves_in_time_has_lost_to_preemption_what_it_had_not_saved(
    stage: Stage, outcome: str, failure: str, cause: str | None, lost: float
) -> None:
    end = NOON + 5 * HOUR
    Attempt.objects.filter(job=stage.running).update(
        ended_at=end, outcome=outcome, failure_class=failure
    )
    if cause is not None:
        attempt = Attempt.objects.get(job=stage.running)
        Preemption.objects.create(
            attempt=attempt, job=stage.running, cause=cause, grace_seconds=30, asked_at=end
        )
    ran(stage.running, until=end)
    JobEvent.objects.create(job=stage.running, at=NOON + 4 * HOUR, kind="checkpoint", attempt=1)

    sum_usage(now=NOON + 6 * HOUR)

    assert hours(date(2026, 3, 31), "alice")[2:] == (lost, 0.0)


def test_a_month_is_closed_a_day_after_its_end_and_not_written_again(stage: Stage) -> None:
    sum_usage(now=NOON + 20 * HOUR)
    early = close_months(now=NOON + 20 * HOUR)
    sum_usage(now=NOON + 40 * HOUR)
    closed = close_months(now=NOON + 40 * HOUR)
    ran(stage.running, NOON - 5 * HOUR)
    UsageDay.objects.unscoped().filter(day__month=4).delete()
    sum_usage(now=NOON + 41 * HOUR)

    assert (early, closed) == ([], [date(2026, 3, 1)])
    assert hours(date(2026, 3, 31), "alice")[0] == 24.0
    assert UsageMonth.objects.get().sha256 == month_digest(date(2026, 3, 1))[0]
    assert close_months(now=NOON + 41 * HOUR) == []


def test_an_admin_sees_all_a_lead_the_tenant_and_a_member_the_own_use(stage: Stage) -> None:
    sum_usage(now=NOON + 3 * HOUR)
    first, last = date(2026, 3, 1), date(2026, 3, 31)

    def seen(name: str, by: str) -> list[str]:
        found = usage(make_viewer(name), since=first, until=last, by=by)
        return sorted(line.name for line in found.lines)

    assert seen("root", "tenant") == ["language", "vision"]
    assert seen("lena", "person") == ["alice"]
    assert seen("victor", "person") == []
    assert seen("bob", "job") == ["secret-name"]
    assert seen("alice", "virtual_cluster") == ["vision-a"]
    assert seen("root", "day") == ["2026-03-31"]


def test_use_of_a_job_outlives_the_job(stage: Stage) -> None:
    sum_usage(now=NOON + 3 * HOUR)
    stage.running.delete()

    found = usage(make_viewer("alice"), since=date(2026, 3, 1), until=date(2026, 3, 31), by="job")

    assert [line.name for line in found.lines] == ["train-a"]
    assert found.slot.held + found.gpu.held == 6.0
    assert UsageJob.objects.unscoped().count() == 2


def test_jobs_are_shown_as_they_are_summed_up_and_named_now(stage: Stage) -> None:
    viewer = make_viewer("alice")

    def seen() -> list[tuple[str, float]]:
        found = usage(viewer, since=date(2026, 3, 1), until=date(2026, 3, 31), by="job")
        return [(line.user, line.slot.held + line.gpu.held) for line in found.lines]

    sum_usage(now=NOON + 1 * HOUR)
    before = seen()
    sum_usage(now=NOON + 3 * HOUR)
    User.objects.filter(username="alice").update(username="alicia")

    assert before == [("alice", 2.0)]
    assert seen() == [("alicia", 6.0)]


def test_use_of_a_job_that_is_forgotten_on_the_same_day_stays_when_the_day_is_written_anew(
    stage: Stage,
) -> None:
    sum_usage(now=NOON + 3 * HOUR)
    stage.running.delete()

    sum_usage(now=NOON + 4 * HOUR)

    assert hours(date(2026, 3, 31), "alice") == (6.0, 0.0, 0.0, 0.0)
    assert UsageJob.objects.unscoped().filter(name="train-a").count() == 1


def test_a_job_that_ended_before_midnight_counts_for_that_day(stage: Stage) -> None:
    midnight = NOON + 12 * HOUR
    sum_usage(now=midnight + HOUR / 30)
    ran(stage.running, until=midnight - HOUR)

    sum_usage(now=midnight + HOUR / 12)

    assert hours(date(2026, 3, 31), "alice")[0] == 22.0
    assert not UsageDay.objects.unscoped().filter(day=date(2026, 4, 1)).exists()


def test_of_two_concurrent_sums_the_later_one_writes_nothing(stage: Stage) -> None:
    sum_usage(now=NOON + HOUR)
    others: list[int] = []

    with before_query("SAVEPOINT", lambda: others.append(sum_usage(now=NOON + 4 * HOUR))):
        assert sum_usage(now=NOON + 2 * HOUR) == 0
    assert others == [1]
    assert hours(date(2026, 3, 31), "alice")[0] == 8.0
    assert UsageMark.objects.get().summed_until == NOON + 4 * HOUR


def test_a_month_that_cannot_be_closed_whole_is_not_closed_at_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sum_usage(now=NOON + 40 * HOUR)
    ran(stage.running, NOON + HOUR)

    def broken(_day: date) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(sums, "add_days_before", broken)
        with pytest.raises(RuntimeError):
            close_months(now=NOON + 40 * HOUR)

    assert not UsageMonth.objects.exists()
    assert hours(date(2026, 3, 31), "alice")[0] == 24.0
    assert close_months(now=NOON + 40 * HOUR) == [date(2026, 3, 1)]
    assert hours(date(2026, 3, 31), "alice")[0] == 22.0


def test_an_end_that_is_observed_days_later_corrects_the_days_since(stage: Stage) -> None:
    sum_usage(now=NOON + 70 * HOUR)
    assert hours(date(2026, 4, 2), "alice")[0] == 48.0

    ended, observed = NOON + 14 * HOUR, NOON + 71 * HOUR
    Member.objects.filter(attempt__job=stage.running).update(
        exited_at=ended, step="exited", step_since=observed
    )
    Lease.objects.filter(job=stage.running).update(released_at=observed)
    sum_usage(now=observed + HOUR)

    assert hours(date(2026, 3, 31), "alice")[0] == 24.0
    assert hours(date(2026, 4, 1), "alice")[0] == 4.0
    assert not UsageDay.objects.unscoped().filter(day__gt=date(2026, 4, 1)).exists()


def test_a_device_is_free_until_its_process_starts_and_after_it_has_ended(stage: Stage) -> None:
    Member.objects.filter(attempt__job=stage.running).update(
        started_at=NOON + HOUR, exited_at=NOON + 2 * HOUR
    )
    Member.objects.filter(attempt__job=stage.foreign).update(started_at=None, exited_at=None)

    sum_usage(now=NOON + 5 * HOUR)

    assert hours(date(2026, 3, 31), "alice")[0] == 2.0
    assert not UsageDay.objects.unscoped().filter(owner__username="bob").exists()


def test_an_end_that_was_summed_up_adds_nothing_while_its_gang_runs_on(stage: Stage) -> None:
    ended = NOON + HOUR
    Member.objects.filter(attempt__job=stage.running).update(
        exited_at=ended, step="exited", step_since=ended
    )
    mark, now = NOON + 3 * HOUR, NOON + 20 * HOUR
    sum_usage(now=mark)

    leases = leases_since(mark, now=now).filter(job=stage.running)
    charged = [row.charged for row in leases]  # type: ignore[attr-defined]  # the query adds it

    assert charged
    assert set(charged) == {timedelta()}
