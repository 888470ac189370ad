"""Replays of the whole cluster: accuracy, other tenants, guarantees, changes within the period."""

import json
from datetime import timedelta

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.jobs.models import Job
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.models import WhatIf
from scheduling.what_if.services.recorded_days import recorded_days
from scheduling.what_if.services.replays import replay
from scheduling.what_if.services.what_if import answer_what_if, ask_what_if
from tests.factories.attempts import run_members
from tests.factories.cluster import NOW, OPPORTUNISTIC
from tests.factories.job_history import run_round_at, seconds_after_now
from tests.factories.scheduling import change_vc, end, make_two_tenants, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def days_of(tmp_path, vc="vision-a", **span):
    row = VirtualCluster.objects.unscoped().get(name=vc)
    given = {"since": NOW, "until": NOW + DAY, "now": NOW + DAY, **span}
    return recorded_days(vc=row, storage=DirectoryStorage(tmp_path), **given)


def came_at(job, seconds):
    Job.objects.unscoped().filter(pk=job.pk).update(submitted_at=seconds_after_now(seconds))


def start_all(tmp_path, seconds):
    run_round_at(tmp_path, seconds)
    for job in Job.objects.unscoped().filter(state="admitted"):
        run_members(job, seconds_after_now(seconds))


def finish(job, seconds):
    end(job, at=seconds_after_now(seconds))


def lent_node(tmp_path):
    """Bob borrows the third node; alice waits for her own node twice."""
    make_two_tenants()
    first, second = submit(devices=8), submit(devices=8)
    borrower = submit("bob", devices=8, **OPPORTUNISTIC)
    start_all(tmp_path, 0)
    finish(first, 600)
    start_all(tmp_path, 600)
    finish(second, 1000)
    finish(borrower, 2000)
    run_round_at(tmp_path, 2000)
    return first, second, borrower


def test_jobs_of_other_tenants_are_only_counted(tmp_path):
    first, second, borrower = lent_node(tmp_path)

    answer = replay(days_of(tmp_path), "fifo", {}, guarantee={"a": 16})

    assert [row["job"] for row in answer["jobs"]] == [second.pk, first.pk]
    assert (answer["winner"], answer["loser"], answer["same"]) == (1, 0, 1)
    assert answer["others"] == {"winner": 0, "loser": 0, "same": 1, "unknown": 0}
    assert borrower.pk not in {row["job"] for row in answer["jobs"]}
    assert borrower.name not in json.dumps(answer)
    assert answer["guarantee"] == {"a": 8}
    assert answer["other_guarantee"] == {"a": 16}


def test_a_larger_guarantee_costs_borrowers_of_other_tenants_their_devices(tmp_path):
    make_two_tenants()
    borrowers = [submit("bob", devices=8, **OPPORTUNISTIC) for _ in range(2)]
    start_all(tmp_path, 0)
    late = [submit(devices=8) for _ in range(2)]
    for job in late:
        came_at(job, 100)
    start_all(tmp_path, 100)
    finish(late[0], 400)
    start_all(tmp_path, 400)
    finish(late[1], 700)
    for job in borrowers:
        finish(job, 3000)
    run_round_at(tmp_path, 3000)

    answer = replay(days_of(tmp_path), "fifo", {}, guarantee={"a": 16})

    assert answer["winner"] == 1
    assert answer["others"]["loser"] == 1


def test_a_change_within_the_period_is_replayed_at_its_time(tmp_path):
    make_two_tenants()
    jobs = [submit(devices=8) for _ in range(2)]
    start_all(tmp_path, 0)
    change_vc("vision-a", cells=[{"chain": "a-node", "level": "a-node", "count": 2}])
    start_all(tmp_path, 300)
    for job in jobs:
        finish(job, 1500)
    run_round_at(tmp_path, 1500)

    days = days_of(tmp_path)
    accuracy = replay(days, "srtf", {})["accuracy"]

    assert [event.at - days.snapshot.now for event in days.events] == [300.0]
    assert accuracy["starts"]["within_one_round"] == 1.0
    assert accuracy["ends"]["p90_s"] == 0.0


def test_a_withdrawn_job_blocks_others_until_it_leaves(tmp_path):
    make_two_tenants()
    VirtualCluster.objects.unscoped().filter(name="vision-a").update(
        policy_args={"backfill": False}
    )
    first, blocked, small = submit(devices=4), submit(devices=8), submit(devices=4)
    start_all(tmp_path, 0)
    Job.objects.unscoped().filter(pk=blocked.pk).update(
        state="stopped", finished_at=seconds_after_now(200)
    )
    start_all(tmp_path, 200)
    for job in (first, small):
        finish(job, 1000)
    run_round_at(tmp_path, 1000)

    answer = replay(days_of(tmp_path), "srtf", {})

    assert answer["assumed"] == 1
    assert answer["accuracy"]["starts"] == {
        "jobs": 2, "within_one_round": 1.0, "median_s": 0.0, "p90_s": 0.0, "missing": 0,
    }  # fmt: skip
    assert (answer["winner"], answer["same"]) == (1, 1)


def test_preparation_of_a_start_is_part_of_the_replay(tmp_path):
    make_two_tenants()
    job = submit(devices=8)
    run_round_at(tmp_path, 0)
    run_members(job, seconds_after_now(40))
    finish(job, 140)
    run_round_at(tmp_path, 140)

    days = days_of(tmp_path)

    assert (days.jobs[job.pk].work, days.jobs[job.pk].overhead.start) == (100.0, 40.0)
    assert replay(days, "srtf", {})["accuracy"]["ends"]["p90_s"] == 0.0


def test_a_guarantee_that_does_not_fit_fails_with_the_level(tmp_path):
    lent_node(tmp_path)
    asked = ask_what_if(
        viewer=make_viewer("alice"),
        virtual_cluster="vision-a",
        policy="fifo",
        policy_args={},
        since=NOW,
        until=NOW + DAY,
        size_aware=False,
        guarantee={"a": 24},
        now=NOW + DAY,
    )

    answer_what_if(pk=asked.pk, storage=DirectoryStorage(tmp_path), now=NOW + DAY)

    fault = WhatIf.objects.unscoped().get().fault
    assert "cannot guarantee 24 devices of type a" in fault
    assert "at level a" in fault


def test_deleted_jobs_are_left_out(tmp_path):
    first, second, _ = lent_node(tmp_path)
    Job.objects.unscoped().filter(pk=second.pk).delete()

    answer = replay(days_of(tmp_path), "srtf", {})

    assert answer["left_out"] == {"deleted": 1}
    assert [row["job"] for row in answer["jobs"]] == [first.pk]
