"""From the submit through a round to the end of a gang, on the database."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.services import node_rows
from scheduling.core.lifecycle import FailureClass, JobState
from scheduling.core.round import engine_setup
from scheduling.core.round.ports import FIRST_PORT, LAST_PORT
from scheduling.enums import MemberStep
from scheduling.jobs.models import Job, JobEvent
from scheduling.rounds.models import Round
from scheduling.rounds.services import rounds
from scheduling.runs.models import Attempt, EvictionTally, Lease, Member
from scheduling.runs.queries.node_members import DirectiveKind, directive_of
from scheduling.runs.services import attempts, stopping
from tenants.models import User
from tenants.selectors import viewer_of
from tessera import protocol
from tests.factories.attempts import end_member, members_of, prepare_members, run_members
from tests.factories.cluster import (
    NOW,
    OPPORTUNISTIC,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import CONFIG, run_round
from tests.support.writes import writes_to
from workers.services import dispatch

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def state_of(job):
    return JobState(Job.objects.unscoped().get(pk=job.pk).state)


def test_a_round_gives_a_gang_its_leases_members_and_directives_in_one_commit():
    job = make_job(worker={"instances": 2, "devices": 4})

    outcome = run_round()

    assert outcome.started == (job.pk,)
    assert state_of(job) is JobState.ADMITTED
    assert Lease.objects.filter(job=job, released_at=None).count() == 8
    assert [(m.role, m.rank, m.node_rank, len(m.devices)) for m in members_of(job)] == [
        ("worker", 0, 0, 4),
        ("worker", 1, 1, 4),
    ]
    assert [directive_of(member) for member in members_of(job)] == [DirectiveKind.PREPARE] * 2
    assert Round.objects.get().started == 1


def test_a_job_is_running_when_every_rank_runs_and_not_before():
    job = make_job(worker={"instances": 2, "devices": 4})
    run_round()

    assert prepare_members(job) == [False, True]
    first, second = members_of(job)
    assert state_of(job) is JobState.STARTING
    attempts.mark_running(member_id=first.pk, pid=1, boot_id="b", started_at=NOW, now=NOW)
    assert state_of(job) is JobState.STARTING
    attempts.mark_running(member_id=second.pk, pid=2, boot_id="b", started_at=NOW, now=NOW)

    assert state_of(job) is JobState.RUNNING
    assert {directive_of(member) for member in members_of(job)} == {DirectiveKind.NOTHING}


def test_a_gang_that_ends_well_succeeds_and_frees_its_devices_once():
    job = make_job(worker={"instances": 2, "devices": 1})
    run_round()
    run_members(job)
    first, second = members_of(job)

    end_member(first)
    assert state_of(job) is JobState.RUNNING
    assert Lease.objects.filter(released_at=None).count() == 2
    end_member(second)
    end_member(second, 3)

    job.refresh_from_db()
    assert (job.state, job.exit_code, job.failure_class) == ("succeeded", 0, "")
    assert Lease.objects.filter(released_at=None).count() == 0
    assert Attempt.objects.get().outcome == "succeeded"


def test_one_failure_ends_the_gang_and_its_code_is_kept():
    job = make_job(worker={"instances": 2, "devices": 1})
    run_round()
    run_members(job)
    first, second = members_of(job)

    end_member(first, 7)

    second.refresh_from_db()
    assert second.stop_asked_at == NOW
    assert state_of(job) is JobState.RUNNING
    assert directive_of(second) is DirectiveKind.STOP
    end_member(second, None, protocol.CAUSE_STOPPED, signal=15)
    job.refresh_from_db()
    assert (job.state, job.exit_code, job.failure_class) == ("failed", 7, "user")


def test_members_whose_directories_are_gone_leave_the_index_of_their_node():
    job = make_job(worker={"instances": 2, "devices": 1})
    run_round()
    run_members(job)
    first, second = members_of(job)
    end_member(first, 0)

    attempts.mark_removed(member_ids=[first.pk, second.pk], now=NOW)

    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.removed_at, second.removed_at) == (NOW, None)
    with pytest.raises(IntegrityError, match="member_removed_has_ended"), transaction.atomic():
        Member.objects.filter(pk=second.pk).update(removed_at=NOW)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="asks SQLite for its plan")
def test_orders_and_open_members_are_found_by_the_index_of_what_is_on_the_node():
    for rows in (dispatch._waiting([1], []), node_rows.open_members_on([1])):
        assert "member_on_node" in rows.order_by().explain()


def test_a_signal_is_reported_as_a_shell_would():
    job = make_job()
    run_round()
    run_members(job)

    end_member(members_of(job)[0], None, signal=9)

    job.refresh_from_db()
    assert job.exit_code == 137


def test_a_node_failure_is_tried_again_elsewhere():
    job = make_job(worker={"devices": 8})
    run_round()
    run_members(job)
    (member,) = members_of(job)

    attempts.mark_lost(member_id=member.pk, message="the node was declared dead", now=NOW)

    job.refresh_from_db()
    assert (job.state, job.excluded_nodes) == ("queued", [member.node.name])
    assert job.failures == {"node": 1}
    run_round(NOW + timedelta(seconds=30))
    second = members_of(job)[-1]
    assert second.attempt.number == 2
    assert second.node_id != member.node_id


def test_a_user_error_is_not_tried_again_unless_the_job_says_so():
    plain, stubborn = make_job(), make_job(retries={"user": 1})
    run_round()
    for job in (plain, stubborn):
        run_members(job)
        end_member(members_of(job)[0], 1)

    assert state_of(plain) is JobState.FAILED
    stubborn.refresh_from_db()
    assert stubborn.state == "queued"
    assert stubborn.backoff_until == NOW + timedelta(seconds=10)
    run_round(NOW + timedelta(seconds=5))
    stubborn.refresh_from_db()
    assert stubborn.reason_code == "backoff-after-failure"
    run_round(NOW + timedelta(seconds=11))
    run_members(stubborn)
    end_member(members_of(stubborn)[-1], 1)
    assert state_of(stubborn) is JobState.FAILED


def test_a_failed_prepare_cancels_the_gang_and_excludes_the_node():
    job = make_job(worker={"instances": 2, "devices": 8})
    run_round()
    first, second = members_of(job)
    attempts.mark_preparing(member_ids=[first.pk, second.pk], now=NOW)
    attempts.mark_prepared(member_id=first.pk, now=NOW)

    attempts.mark_prepare_failed(
        member_id=second.pk,
        failure=FailureClass.NODE,
        code="disk-full",
        message="no space left",
        now=NOW,
    )

    first.refresh_from_db()
    second.refresh_from_db()
    assert directive_of(first) is DirectiveKind.CANCEL
    assert second.step == MemberStep.EXITED
    attempts.mark_cancelled(member_id=first.pk, now=NOW)
    job.refresh_from_db()
    assert job.state == "queued"
    assert job.excluded_nodes == [second.node.name]
    assert Lease.objects.filter(released_at=None).count() == 0


def test_stopping_a_queued_job_is_immediate_and_a_running_one_waits_for_its_processes():
    queued, running = make_job(held=True), make_job()
    run_round()
    run_members(running)
    viewer = viewer_of(User.objects.get(username="alice"))

    queued.refresh_from_db()
    running.refresh_from_db()
    assert stopping.stop_job(job=queued, viewer=viewer, now=NOW) is JobState.STOPPED
    assert stopping.stop_job(job=running, viewer=viewer, now=NOW) is JobState.STOPPING
    assert stopping.stop_job(job=running, viewer=viewer, now=NOW) is JobState.STOPPING
    assert Lease.objects.filter(released_at=None).count() == 1
    end_member(members_of(running)[0], None, protocol.CAUSE_STOPPED, signal=15)

    assert state_of(running) is JobState.STOPPED
    assert Lease.objects.filter(released_at=None).count() == 0


@pytest.mark.parametrize(
    ("failure", "state"),
    [("node", JobState.STOPPED), ("platform", JobState.STOPPED), ("user", JobState.FAILED)],
)
def test_a_stopping_job_whose_runner_dies_is_stopped_and_the_event_says_why(failure, state):
    job = make_job()
    run_round()
    run_members(job)
    job.refresh_from_db()
    stopping.stop_job(job=job, viewer=viewer_of(User.objects.get(username="alice")), now=NOW)

    message = "the runner ended without an exit record"
    end_member(members_of(job)[0], None, protocol.CAUSE_LOST, failure, message=message)

    assert state_of(job) is state
    last = JobEvent.objects.filter(job=job).latest("id")
    assert (last.state, last.text) == (state, message)
    assert Lease.objects.filter(released_at=None).count() == 0


def test_a_job_that_never_reached_its_node_is_stopped_at_once():
    job = make_job()
    run_round()
    job.refresh_from_db()

    stopping.stop_job(job=job, viewer=viewer_of(User.objects.get(username="alice")), now=NOW)

    assert state_of(job) is JobState.STOPPED


def test_a_preempted_job_is_queued_again_and_keeps_its_turn():
    borrower = make_job(worker={"instances": 3, "devices": 8}, **OPPORTUNISTIC)
    run_round()
    run_members(borrower)
    owner = make_job(worker={"devices": 8})

    outcome = run_round()

    assert outcome.preempted == (borrower.pk,)
    assert state_of(borrower) is JobState.PREEMPTING
    owner.refresh_from_db()
    assert owner.reason_code == "waiting-victim-checkpoint"
    for member in members_of(borrower):
        end_member(member, None, protocol.CAUSE_STOPPED, signal=15)
    assert state_of(borrower) is JobState.QUEUED
    run_round()
    assert state_of(owner) is JobState.ADMITTED


def test_a_preemption_under_way_outlives_the_process_that_ordered_it():
    borrowers = [make_job(worker={"devices": 8}, **OPPORTUNISTIC) for _ in "123"]
    run_round()
    for borrower in borrowers:
        run_members(borrower)
    owner = make_job(worker={"devices": 8, "instances": 2})
    ordered = run_round()
    owner.refresh_from_db()
    claimed = {leaf for _, leaves, _ in owner.reason["claims"]["parts"][0] for leaf in leaves}
    first, second = (job for job in borrowers if job.pk in ordered.preempted)

    # Another process has built nothing yet: all that it knows is in the database.
    _forget_engines()
    for member in members_of(first):
        end_member(member, None, protocol.CAUSE_STOPPED, signal=15)
    between = run_round()
    _forget_engines()
    for member in members_of(second):
        end_member(member, None, protocol.CAUSE_STOPPED, signal=15)
    last = run_round()

    assert len(ordered.preempted) == 2
    assert between.preempted == last.preempted == ()
    assert owner.pk in last.started
    held = Lease.objects.filter(job=owner, released_at=None)
    assert set(held.values_list("device__address", flat=True)) == claimed
    owner.refresh_from_db()
    assert owner.reason == {}


def _forget_engines():
    engine_setup._pristine.cache_clear()


def test_evictions_are_counted_by_reason_and_ends_of_ones_own_are_not():
    borrower = make_job(worker={"instances": 3, "devices": 8}, **OPPORTUNISTIC)
    run_round()
    run_members(borrower)
    make_job(worker={"devices": 8})
    run_round()
    for member in members_of(borrower):
        end_member(member, None, protocol.CAUSE_STOPPED, signal=15)
    run_round()
    (owner,) = Member.objects.filter(step=MemberStep.WAITING)
    attempts.mark_preparing(member_ids=[owner.pk], now=NOW)
    attempts.mark_prepare_failed(
        member_id=owner.pk, failure=FailureClass.NODE, code="x", message="no disk", now=NOW
    )
    other = make_job()
    run_round()
    run_members(other)
    end_member(members_of(other)[0], 3)

    counted = EvictionTally.objects.values_list("reason", "count")
    assert set(counted) == {("preempted", 1), ("node", 1)}
    assert state_of(other) is JobState.FAILED


def test_a_round_counts_once_and_last_whom_it_evicts_before_they_began():
    for _ in range(3):
        make_job(worker={"devices": 8}, **OPPORTUNISTIC)
    run_round()
    make_job(worker={"instances": 2, "devices": 8})

    with CaptureQueriesContext(connection) as asked:
        outcome = run_round()

    writes = writes_to(asked, EvictionTally)
    assert len(outcome.preempted) == 2
    assert writes == [*[None] * (len(writes) - 1), EvictionTally]
    assert EvictionTally.objects.values_list("reason", "count").get() == ("preempted", 2)


def test_a_job_that_moved_before_the_commit_drops_out_and_nothing_else_is_lost():
    first, second = make_job(), make_job()
    viewer = viewer_of(User.objects.get(username="alice"))

    def stop_first_then_store(*_):
        stopping.stop_job(job=first, viewer=viewer, now=NOW)
        return "", "", 0

    outcome = rounds.run_round(now=lambda: NOW, config=CONFIG, store=stop_first_then_store)

    assert outcome.dropped == (first.pk,)
    assert outcome.started == (second.pk,)
    assert state_of(first) is JobState.STOPPED


def test_of_two_rounds_with_one_number_the_second_writes_nothing():
    job = make_job()

    def another_is_faster(*_):
        run_round()
        return "", "", 0

    with pytest.raises(rounds.LostRoundError):
        rounds.run_round(now=lambda: NOW, config=CONFIG, store=another_is_faster)

    assert Round.objects.count() == 1
    assert Attempt.objects.filter(job=job).count() == 1


def test_the_reason_of_a_waiting_job_is_stored_and_goes_when_it_starts():
    make_job(worker={"instances": 2, "devices": 8})
    waiting = make_job()
    run_round()

    waiting.refresh_from_db()
    assert waiting.reason_code == "vc-guarantee-in-use"
    assert waiting.reason["blocked_by"]


def test_a_round_costs_the_same_number_of_statements_however_many_jobs_start(
    django_assert_max_num_queries,
):
    for _ in range(3):
        make_job()
    with django_assert_max_num_queries(40) as few:
        run_round()
    for _ in range(12):
        make_job()
    with django_assert_max_num_queries(40) as many:
        run_round()

    assert len(many) == len(few)
    writes = [q["sql"] for q in many if q["sql"].startswith(("INSERT", "UPDATE", "DELETE"))]
    assert len(writes) <= 8, writes


def test_no_two_live_gangs_share_a_port():
    jobs = [make_job(worker={"ports": {"http": 3}}) for _ in range(8)]

    run_round()

    taken = [attempt.port for attempt in Attempt.objects.all()]
    for job in jobs:
        (member,) = members_of(job)
        taken += member.ports["http"]
    assert len(taken) == len(set(taken)) == 8 * 4


def test_a_job_without_enough_ports_waits_and_holds_nobody_up():
    holder = make_job()
    run_round()
    Member.objects.filter(attempt__job=holder).update(
        ports={"all": list(range(FIRST_PORT, LAST_PORT - 3))}
    )
    hungry, modest = make_job(worker={"ports": {"http": 9}}), make_job()

    outcome = run_round()

    assert outcome.started == (modest.pk,)
    hungry.refresh_from_db()
    assert (hungry.state, hungry.reason_code) == ("queued", "behind-higher-priority")
    assert "it needs 10" in hungry.reason_text
    assert not Attempt.objects.filter(job=hungry).exists()
    Member.objects.filter(attempt__job=holder).update(ports={})
    assert run_round().started == (hungry.pk,)


def test_a_job_that_waits_for_ports_changes_no_round():
    holder = make_job()
    run_round()
    Member.objects.filter(attempt__job=holder).update(
        ports={"all": list(range(FIRST_PORT, LAST_PORT - 3))}
    )
    make_job(worker={"ports": {"http": 9}})
    run_round()

    outcome = run_round(at=NOW + timedelta(seconds=1))

    assert (outcome.started, outcome.dropped) == ((), ())
    assert Round.objects.get(number=outcome.number).snapshot_path == ""


def test_a_job_whose_stored_demand_names_no_ports_yet_drops_out_of_the_round():
    holder = make_job()
    run_round()
    Member.objects.filter(attempt__job=holder).update(
        ports={"all": list(range(FIRST_PORT, LAST_PORT - 3))}
    )
    old = make_job(worker={"ports": {"http": 9}})
    (member,) = old.demand["members"]
    Job.objects.unscoped().filter(pk=old.pk).update(demand={"members": [member[:8]]})

    outcome = run_round()

    assert (outcome.started, outcome.dropped) == ((), (old.pk,))
    assert state_of(old) is JobState.QUEUED


@pytest.mark.parametrize(
    ("failed_before", "seconds"), [(0, 10), (1, 20), (3, 80), (6, 600), (99, 600)]
)
def test_each_failure_of_a_class_doubles_the_pause_up_to_ten_minutes(failed_before, seconds):
    job = make_job(retries={"user": 100})
    Job.objects.unscoped().filter(pk=job.pk).update(failures={"user": failed_before, "node": 1})
    run_round()
    run_members(job)

    end_member(members_of(job)[0], 1)

    job.refresh_from_db()
    assert job.backoff_until == NOW + timedelta(seconds=seconds)
    assert job.failures == {"user": failed_before + 1, "node": 1}


def test_after_the_fault_of_a_node_a_job_is_tried_again_at_once_elsewhere():
    job = make_job()
    Job.objects.unscoped().filter(pk=job.pk).update(failures={"node": 2})
    run_round()
    run_members(job)

    attempts.mark_lost(member_id=members_of(job)[0].pk, message="the node is gone", now=NOW)

    job.refresh_from_db()
    assert job.backoff_until == NOW + timedelta(seconds=1)
