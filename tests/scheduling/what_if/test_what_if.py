"""Past days replayed under another policy: from stored rounds to winners and losers."""

from datetime import timedelta

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.core.policy_interface import Kind
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.models import WhatIf
from scheduling.what_if.services.recorded_days import recorded_days
from scheduling.what_if.services.replays import replay
from scheduling.what_if.services.what_if import (
    MOST_OPEN,
    answer_what_if,
    ask_what_if,
    forget_what_ifs,
    what_if_for,
)
from tenants.errors import ConflictError, InvalidError, NotFoundError
from tests.factories.attempts import run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.job_history import run_round_at, seconds_after_now, three_finished_jobs
from tests.factories.tenants import make_viewer
from tests.support.interleaving import before_query, raising

__all__ = ["three_finished_jobs"]

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def days_of(tmp_path, since=NOW, until=NOW + DAY):
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")
    return recorded_days(
        vc=vc, since=since, until=until, storage=DirectoryStorage(tmp_path), now=until
    )


def ask(viewer="alice", **changes):
    return ask_what_if(
        **{
            "viewer": make_viewer(viewer),
            "virtual_cluster": "vision-a",
            "policy": "srtf",
            "policy_args": {},
            "since": NOW,
            "until": NOW + DAY,
            "size_aware": True,
            "now": NOW + DAY,
            **changes,
        }
    )


def works_of(days):
    """Jobs that ran: submission in seconds after the first round, and work."""
    begin = days.snapshot.now
    return {
        job.id: (job.submitted - begin, job.work) for job in days.jobs.values() if not job.assumed
    }


def test_stored_rounds_and_attempts_contain_the_whole_cluster(tmp_path, three_finished_jobs):
    long, first, second = three_finished_jobs

    days = days_of(tmp_path)

    assert works_of(days) == {
        long.pk: (0.0, 1000.0),
        first.pk: (0.0, 100.0),
        second.pk: (0.0, 100.0),
    }
    assert [vc.name for vc in days.snapshot.vcs] == ["language-a", "vision-a"]
    assert len(days.snapshot.queued) == 4
    assert days.rounds == 3
    assert days.jobs[first.pk].finished - days.snapshot.now == 1100.0


@pytest.mark.parametrize("content", [b"", b"half", None])
def test_a_damaged_round_is_skipped(tmp_path, three_finished_jobs, content):
    row = Round.objects.exclude(snapshot_path="").latest("number")
    file = tmp_path / row.snapshot_path
    file.write_bytes(file.read_bytes()[:-20] if content is None else content)

    assert days_of(tmp_path).jobs.keys() >= {job.pk for job in three_finished_jobs}


def test_the_replay_of_the_actual_policy_gives_the_actual_times(tmp_path, three_finished_jobs):
    accuracy = replay(days_of(tmp_path), "srtf", {}, size_aware=True)["accuracy"]

    assert accuracy == {
        "round_s": 10.0,
        "starts": {
            "jobs": 3, "within_one_round": 1.0, "median_s": 0.0, "p90_s": 0.0, "missing": 0,
        },
        "ends": {
            "jobs": 3, "within_one_round": 1.0, "median_s": 0.0, "p90_s": 0.0, "missing": 0,
        },
    }  # fmt: skip


def test_under_shortest_first_the_short_jobs_win_and_the_long_one_loses(
    tmp_path, three_finished_jobs
):
    long, first, second = three_finished_jobs

    answer = replay(days_of(tmp_path), "srtf", {}, size_aware=True)

    jobs = {row["job"]: row for row in answer["jobs"]}
    assert (answer["winner"], answer["loser"], answer["same"]) == (2, 1, 0)
    assert jobs[long.pk]["was_s"] == 1000.0
    assert jobs[first.pk]["was_s"] == jobs[first.pk]["in_fact_s"] == 1100.0
    assert jobs[first.pk]["would_be_s"] == 100.0
    assert jobs[second.pk]["would_be_s"] == 200.0
    assert jobs[long.pk]["would_be_s"] == 1200.0
    assert jobs[long.pk]["verdict"] == "loser"
    assert answer["was"]["avg_jct_h"] == pytest.approx(1100 / 3600, abs=1e-6)
    assert answer["would_be"]["avg_jct_h"] == pytest.approx(500 / 3600, abs=1e-6)
    assert replay(days_of(tmp_path), "srtf", {}, size_aware=True) == answer


def test_under_its_own_policy_nobody_wins_or_loses(tmp_path, three_finished_jobs):
    answer = replay(days_of(tmp_path), "fifo", {})

    assert (answer["winner"], answer["loser"], answer["same"]) == (0, 0, 3)


def test_a_job_that_has_not_ended_is_neither_winner_nor_loser(tmp_path, three_finished_jobs):
    late = make_job(worker={"devices": 8})
    Job.objects.unscoped().filter(pk=late.pk).update(submitted_at=seconds_after_now(1200))
    run_round_at(tmp_path, 1200)
    run_members(late, seconds_after_now(1200))

    answer = replay(days_of(tmp_path), "srtf", {}, size_aware=True)

    (row,) = (row for row in answer["jobs"] if row["job"] == late.pk)
    assert (row["verdict"], row["has_ended"], row["in_fact_s"]) == ("unknown", False, None)
    assert answer["unknown"] == 1
    # Its simulated end says nothing about its completion.
    assert (answer["was"]["jobs"], answer["was"]["completed"]) == (4, 3)
    assert answer["was"]["avg_jct_h"] == pytest.approx(1100 / 3600, abs=1e-6)


def test_a_span_counts_only_the_work_within_it(tmp_path, three_finished_jobs):
    days = days_of(tmp_path, since=seconds_after_now(900))

    assert works_of(days) == {
        three_finished_jobs[1].pk: (0.0, 100.0),
        three_finished_jobs[2].pk: (0.0, 100.0),
    }


def test_jobs_change_in_a_replay_what_they_change_in_rounds(tmp_path):
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)
    adaptive = {"mode": "adaptive_batch", "initial_batch": 64, "max_batch": 1024}
    jobs = [
        make_job(worker={"devices": 4}, **given)
        for given in ({}, {"elastic": {"min": 1, "max": 4}}, {"elastic": adaptive})
    ]
    run_round_at(tmp_path, 0)
    for job in jobs:
        run_members(job)

    days = days_of(tmp_path)

    kinds = [days.snapshot.known[job.pk].terms.kind for job in jobs]
    assert kinds == [Kind.RIGID, Kind.ELASTIC, Kind.ADAPTIVE]


def test_a_what_if_is_answered_once_and_stored_for_a_day(tmp_path, three_finished_jobs):
    asked = ask()

    done = [
        answer_what_if(pk=asked.pk, storage=DirectoryStorage(tmp_path), now=NOW + DAY)
        for _ in range(2)
    ]

    found = what_if_for(make_viewer("alice"), asked.pk, now=NOW + DAY)
    assert done == [True, False]
    assert (found.fault, found.result["winner"]) == ("", 2)
    with pytest.raises(NotFoundError):
        what_if_for(make_viewer("bob"), asked.pk, now=NOW + DAY)
    with pytest.raises(NotFoundError):
        what_if_for(make_viewer("alice"), asked.pk, now=NOW + 2 * DAY + timedelta(seconds=1))
    assert forget_what_ifs(now=NOW + 3 * DAY) == 1
    assert not WhatIf.objects.unscoped().exists()


def test_a_span_without_stored_rounds_has_a_result(tmp_path, three_finished_jobs):
    asked = ask(since=NOW - 2 * DAY, until=NOW - DAY)

    answer_what_if(pk=asked.pk, storage=DirectoryStorage(tmp_path), now=NOW + DAY)

    assert "contains no stored rounds" in WhatIf.objects.unscoped().get().fault


def test_a_what_if_that_fails_stores_its_error(tmp_path, three_finished_jobs):
    asked = ask()

    with before_query('FROM "scheduling_round"', raising(ZeroDivisionError())):
        assert answer_what_if(pk=asked.pk, storage=DirectoryStorage(tmp_path), now=NOW + DAY)

    found = WhatIf.objects.unscoped().get()
    assert (found.fault, found.result) == ("It failed with ZeroDivisionError.", {})
    assert found.finished_at is not None


def test_a_what_if_is_queued_again_when_its_message_or_its_worker_was_lost(
    tmp_path, three_finished_jobs, requested
):
    sent = requested.what_ifs
    asked = ask()
    rows = WhatIf.objects.unscoped().filter(pk=asked.pk)

    def look(after, **state):
        rows.update(**state)
        sent.clear()
        what_if_for(make_viewer("alice"), asked.pk, now=NOW + DAY + timedelta(seconds=after))
        return sent == [asked.pk]

    other = ask()
    WhatIf.objects.unscoped().filter(pk=other.pk).update(begun_at=NOW + DAY)
    assert not look(40), "the worker that answers another question takes it next"
    other.delete()

    told = [look(10), look(40), look(600, begun_at=NOW + DAY), look(1300)]
    begun_again = answer_what_if(
        pk=asked.pk, storage=DirectoryStorage(tmp_path), now=NOW + DAY + timedelta(seconds=1300)
    )

    assert told == [False, True, False, True]
    assert begun_again
    assert not look(3000)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"policy": "no-such"}, InvalidError),
        ({"policy_args": {"x": 1}}, InvalidError),
        ({"since": NOW, "until": NOW}, InvalidError),
        ({"since": NOW - 40 * DAY}, InvalidError),
        ({"since": NOW + 2 * DAY, "until": NOW + 3 * DAY}, InvalidError),
        ({"virtual_cluster": "no-such"}, NotFoundError),
        ({"viewer": "bob"}, NotFoundError),
    ],
)
def test_bad_questions_are_refused(three_finished_jobs, changes, error):
    with pytest.raises(error):
        ask(**changes)


def test_a_user_has_at_most_a_few_open_what_ifs(three_finished_jobs):
    for _ in range(MOST_OPEN):
        ask()

    with pytest.raises(ConflictError):
        ask()
