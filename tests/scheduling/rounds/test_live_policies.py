"""Policies in live rounds, on the database: sizes, refusals, faults, and what they are told."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from scheduling.clusters.models import Node, VirtualCluster
from scheduling.core.jobspec import Demand
from scheduling.core.lifecycle import JobState
from scheduling.core.policies.wrapping import Guarded
from scheduling.core.policy_interface import Alloc, Part, Plan
from scheduling.core.reasons import Reason
from scheduling.core.values import RunObservation
from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.queries.why import why
from scheduling.rounds.services import rounds
from scheduling.rounds.snapshot import take_snapshot
from scheduling.runs.models import Attempt, Lease, Member
from scheduling.runs.queries.running import running_now
from scheduling.runs.services import attempts
from scheduling.runs.services.progress import Leading, add_attempt_progress
from tenants.models import AuditEntry
from tenants.viewers import Viewer
from tessera import protocol
from tessera.messages import plain
from tessera.reasons import ReasonCode
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.policies import Says, making
from tests.factories.scheduling import CONFIG, run_round

pytestmark = pytest.mark.django_db
IMPATIENT = replace(CONFIG, policy_seconds=0.2)
LATER = timedelta(seconds=400)


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2, policy="mine")


def elastic_job(**changes):
    return make_job(elastic={"min": 1, "max": 16}, worker={"devices": 4}, **changes)


def gives(job, devices):
    alloc = Alloc(parts=(Part(n=devices, type="a"),))
    return Plan(allocs={job.pk: alloc}, order=(job.pk,))


def round_under(answer, at=NOW):
    return run_round(at, make=making(answer))


def leave(job, at):
    for member in members_of(job):
        if member.exited_at is None:
            attempts.mark_exited(member_id=member.pk, record=stopped_at(at), now=at)


def stopped_at(at: datetime):
    return protocol.ExitRecord(
        cause=protocol.CAUSE_STOPPED, failure="", at=at.timestamp(), code=None, signal=15
    )


def test_a_resize_is_a_notice_a_checkpoint_and_a_start_at_the_new_size():
    job = elastic_job()
    round_under(gives(job, 2))
    run_members(job)
    (first,) = Attempt.objects.filter(job=job)
    assert (first.devices, first.nodes, first.device_type) == (2, 1, "a")

    early = round_under(gives(job, 16), NOW + timedelta(seconds=30))
    due = round_under(gives(job, 16), NOW + LATER)
    again = round_under(gives(job, 16), NOW + LATER)

    assert (early.preempted, due.preempted, again.preempted) == ((), (job.pk,), ())
    job.refresh_from_db()
    assert job.state == JobState.PREEMPTING
    event = JobEvent.objects.get(job=job, kind="preempt")
    assert event.text == "Its policy gives it 16 devices of type a instead of 2 devices of type a"

    leave(job, NOW + LATER)
    job.refresh_from_db()
    assert (job.state, job.gpu_seconds) == (JobState.QUEUED, 2 * LATER.total_seconds())
    round_under(gives(job, 16), NOW + LATER)

    second = Attempt.objects.get(job=job, ended_at=None)
    assert (second.devices, second.nodes) == (16, 2)
    assert second.demand is not None
    assert Demand.from_json(second.demand).devices == 16
    assert Lease.objects.filter(job=job, released_at=None).count() == 16
    assert [m.rank for m in Member.objects.filter(attempt=second)] == [0, 1, 2, 3]


def test_a_job_that_runs_at_another_size_is_restored_with_it_in_the_next_round():
    job = elastic_job()
    round_under(gives(job, 8))
    run_members(job)

    snapshot = take_snapshot(number=9, now=NOW, config=CONFIG).snapshot

    (holding,) = snapshot.holding
    asked = snapshot.known[job.pk].asked
    assert (holding.demand.devices, holding.devices) == (8, 8)
    assert asked is not None
    assert asked.devices == 4


def test_pages_and_previews_see_a_job_at_the_size_at_which_it_runs():
    job = elastic_job()
    round_under(gives(job, 16))
    run_members(job)

    (gang,) = running_now()

    assert sum(member.count * member.leaf_count for member in gang.request.members) == 16
    assert sum(len(placed.leaves) for placed in gang.placements) == 16


def test_resizes_never_follow_one_another_faster_than_a_job_may_be_restarted():
    job = elastic_job()
    moved = 0
    for step in range(60):
        at = NOW + timedelta(seconds=20 * step)
        outcome = round_under(gives(job, 2 if step % 2 else 8), at)
        moved += len(outcome.preempted)
        if outcome.started:
            run_members(job)
            Job.objects.unscoped().filter(pk=job.pk).update(state_since=at)
        if outcome.preempted:
            leave(job, at)

    assert 1 <= moved <= 60 * 20 / 300


def test_a_policy_that_fails_is_reported_once_and_so_is_its_recovery():
    job = elastic_job()

    def broken(_view):
        raise ValueError("no numbers")

    first = round_under(broken)
    round_under(broken, NOW + timedelta(seconds=10))

    vc = VirtualCluster.objects.unscoped().get()
    assert first.started == (job.pk,)
    assert vc.policy_fault == "policy mine failed with ValueError: no numbers"
    assert vc.policy_fault_at == NOW
    (entry,) = AuditEntry.objects.unscoped().filter(action="policy.fail")
    assert entry.tenant_id == vc.tenant_id
    assert entry.after == {"policy": "fifo", "fault": vc.policy_fault}

    round_under(gives(job, 4), NOW + timedelta(seconds=20))

    vc = VirtualCluster.objects.unscoped().get()
    assert (vc.policy_fault, vc.policy_fault_at) == ("", None)
    assert AuditEntry.objects.unscoped().filter(action="policy.recover").count() == 1


def test_a_policy_that_hangs_is_given_up_and_the_job_starts_all_the_same():
    job = elastic_job()

    def spin(_view):
        while True:
            pass

    outcome = rounds.run_round(
        now=lambda: NOW, config=IMPATIENT, store=lambda *_: ("", "", 0), make=making(spin)
    )

    assert outcome.started == (job.pk,)
    assert VirtualCluster.objects.unscoped().get().policy_fault == "policy mine took too long"


def test_a_job_that_its_policy_refuses_has_failed_with_the_reason():
    job = elastic_job(deadline="2026-03-02T10:00:00Z")
    reason = Reason(
        code=ReasonCode.DEADLINE_INFEASIBLE, message=plain("It cannot be done in time.")
    )

    outcome = round_under(Plan(allocs={}, order=(), reject={job.pk: reason}))

    job.refresh_from_db()
    assert outcome.rejected == (job.pk,)
    assert job.state == JobState.FAILED
    assert job.end_message == "deadline-infeasible: It cannot be done in time."


def test_policies_are_told_what_was_declared_had_and_reported():
    job = elastic_job(
        max_duration="2h", deadline="2026-03-03T00:00:00Z", labels={"application": "bert"}
    )
    round_under(gives(job, 4))
    run_members(job)
    attempt = Attempt.objects.get(job=job)
    first = Leading(seconds=10.0, steps=5, step=5, loss=2.5)
    second = Leading(seconds=10.0, steps=5, step=10, loss=2.0)
    for samples, leading in ((32.0, first), (32.0, None), (64.0, second)):
        add_attempt_progress(attempt_id=attempt.pk, samples=samples, leading=leading)
    at = NOW + timedelta(seconds=100)

    known = take_snapshot(number=9, now=at, config=CONFIG).snapshot.known[job.pk]

    assert known.seen == (
        RunObservation(type="a", nodes=1, devices=4, seconds=20.0, steps=10, samples=128.0),
    )
    assert (known.facts.executed, known.facts.gpu_seconds) == (100.0, 400.0)
    assert known.facts.by_type == {"a": 400.0}
    assert (known.facts.steps_done, known.facts.step_time) == (10.0, 2.0)
    assert known.facts.losses == ((5.0, 2.5), (10.0, 2.0))
    assert known.terms.estimate == 7200.0
    assert known.terms.application == "bert"
    assert known.terms.deadline == datetime.fromisoformat("2026-03-03T00:00:00Z").timestamp()
    assert known.terms.scale is not None
    assert (known.terms.scale.minimum, known.terms.scale.maximum) == (1, 16)
    assert known.start_seconds == 0.0


def test_policies_are_told_how_much_memory_the_smallest_device_of_a_type_has():
    elastic_job()
    larger, smaller, silent = Node.objects.order_by("name")[:3]
    # The last device is not in use, and one of those that are has nothing to tell.
    for node, gigabytes in ((larger, [80] * 8), (smaller, [40] + [48] * 5 + [0, 48, 1])):
        node.inventory = {
            "devices": [
                {"index": index, "type": "a", "memory_bytes": size << 30}
                for index, size in enumerate(gigabytes)
            ]
        }
        node.save()
    told: list[int | None] = []

    def note_memory(view):
        told.append(view.pool.types["a"].memory)
        return Plan(allocs={}, order=())

    round_under(note_memory)
    Node.objects.update(inventory={})
    round_under(note_memory)

    assert silent.inventory == {}
    assert told == [40 << 30, None]


def test_first_in_first_out_pays_for_none_of_it():
    VirtualCluster.objects.unscoped().update(policy="fifo")
    elastic_job()

    assert take_snapshot(number=9, now=NOW, config=CONFIG).snapshot.known == {}


def test_a_wish_for_an_earlier_round_requests_it(requested, django_capture_on_commit_callbacks):
    elastic_job()

    for wish in (NOW + timedelta(seconds=4), NOW + timedelta(seconds=60)):
        plan = Plan(allocs={}, order=(), wake=wish.timestamp())
        with django_capture_on_commit_callbacks(execute=True):
            round_under(plan)

    assert [one.at for one in requested.rounds if one.at] == [NOW + timedelta(seconds=4)]


def test_rules_around_a_policy_hold_in_live_rounds_and_keep_its_state():
    make_job(name="first")
    second = make_job(name="second")
    VirtualCluster.objects.unscoped().update(
        policy="fifo", policy_args={"wrap": {"quota": {"most": 1}}}, policy_state={"seen": 1}
    )

    run_round(NOW)

    second.refresh_from_db()
    vc = VirtualCluster.objects.unscoped().get()
    assert (vc.policy_fault, vc.policy_state) == ("", {"seen": 1})
    assert second.state == JobState.QUEUED
    assert second.reason_code == ReasonCode.HELD_BY_POLICY
    assert "limit of devices" in second.reason_text


def test_a_stand_in_of_ones_own_choice_decides_and_the_fault_is_told():
    job = elastic_job()
    args = {"wrap": {"guarded": {"fallback": "srtf"}}}
    VirtualCluster.objects.unscoped().update(policy_args=args)

    def torn(_view):
        raise RuntimeError("torn")

    guarded = Guarded(inner=Says(torn), fallback="srtf")
    result = run_round(NOW, make=lambda _name, _args: guarded)

    entry = AuditEntry.objects.unscoped().get(action="policy.fail")
    assert entry.after["policy"] == "srtf"
    assert entry.message.endswith("; srtf instead")
    assert "RuntimeError: torn" in VirtualCluster.objects.unscoped().get().policy_fault
    assert result.started == (job.pk,)


def test_first_in_first_out_is_named_where_a_rule_around_the_stand_in_fails():
    job = elastic_job()
    args = {"wrap": {"guarded": {"fallback": "srtf"}, "quota": {}}}
    VirtualCluster.objects.unscoped().update(policy_args=args)

    def torn(_view):
        raise RuntimeError("torn")

    result = run_round(NOW, make=lambda _name, _args: Says(torn))

    entry = AuditEntry.objects.unscoped().get(action="policy.fail")
    assert entry.after["policy"] == "fifo"
    assert entry.message.endswith("; first in, first out instead")
    assert result.started == (job.pk,)


def test_first_in_first_out_is_named_where_the_stand_in_fails_too():
    job = elastic_job()

    def torn(_view):
        raise RuntimeError("torn")

    def late():
        raise TimeoutError

    guarded = Guarded(inner=Says(torn), fallback="srtf", limit=late)
    result = run_round(NOW, make=lambda _name, _args: guarded)

    entry = AuditEntry.objects.unscoped().get(action="policy.fail")
    assert entry.after["policy"] == "fifo"
    assert entry.message.endswith("; first in, first out instead")
    assert result.started == (job.pk,)


def test_the_state_of_a_policy_is_kept_between_rounds():
    job = elastic_job()

    round_under(gives(job, 4))
    round_under(gives(job, 4), NOW + timedelta(seconds=10))

    assert VirtualCluster.objects.unscoped().get().policy_state == {"asked": 2}


def test_a_job_with_logical_workers_is_told_how_they_lie_on_what_it_gets():
    workers = {"mode": "logical_workers", "logical_workers": 6, "max": 4}
    job = make_job(elastic=workers, worker={"devices": 4})
    plain = elastic_job()

    round_under(
        Plan(allocs={**gives(job, 4).allocs, **gives(plain, 4).allocs}, order=(job.pk, plain.pk))
    )

    assert Attempt.objects.get(job=job).layout == [[2, 2, 1, 1]]
    assert Attempt.objects.get(job=plain).layout is None


def test_bits_that_depend_on_the_type_of_devices_keep_a_job_on_the_type_where_it_began():
    said = {"mode": "logical_workers", "logical_workers": 4}
    bound = make_job(elastic={**said, "determinism": "D1"}, worker={"devices": 4})
    free = make_job(elastic={**said, "determinism": "D2"}, worker={"devices": 4})

    round_under(
        Plan(allocs={**gives(bound, 4).allocs, **gives(free, 4).allocs}, order=(bound.pk, free.pk))
    )

    types = [
        Demand.from_json(Job.objects.unscoped().get(pk=one.pk).demand).members[0].device_types
        for one in (bound, free)
    ]
    assert types == [("a",), ()]


def test_a_resized_job_says_on_what_it_runs_and_why():
    job = elastic_job()
    round_under(gives(job, 2))
    run_members(job)
    round_under(gives(job, 8), NOW + LATER)
    leave(job, NOW + LATER)
    round_under(gives(job, 8), NOW + LATER)
    run_members(job)

    said = why(Viewer.system("admin"), job.pk, now=NOW + LATER, round_seconds=10.0).text

    assert said == (
        "It is running on 8 devices; it requested 4. "
        "Its policy gives it 8 devices of type a instead of 2 devices of type a."
    )


def told(job, *, steps, seconds):
    """The job's present run has reported."""
    attempt = Attempt.objects.get(job=job, ended_at=None)
    leading = Leading(seconds=seconds, steps=steps, step=steps, loss=None)
    add_attempt_progress(attempt_id=attempt.pk, samples=32.0 * steps, leading=leading)


def layouts_of(job):
    return list(
        Attempt.objects.filter(job=job).order_by("number").values_list("layout", flat=True)
    )


def test_a_second_process_on_a_device_is_tried_once_and_taken_back_where_it_is_slower():
    VirtualCluster.objects.unscoped().update(policy="easyscale")
    elastic = {"mode": "logical_workers", "logical_workers": 4, "executors": 2}
    job = make_job(elastic=elastic, worker={"devices": 1})
    moved = []
    for turn, steps in enumerate((40, 30, 40)):
        begins, ends = NOW + 2 * turn * LATER, NOW + (2 * turn + 1) * LATER
        run_round(begins)
        run_members(job)
        told(job, steps=steps, seconds=40.0)
        Job.objects.unscoped().filter(pk=job.pk).update(state_since=begins)
        if run_round(ends).preempted:
            moved.append(JobEvent.objects.filter(job=job, kind="preempt").latest("pk").text)
            leave(job, ends)

    assert layouts_of(job) == [[[4]], [[2, 2]], [[4]]]
    assert moved == [
        "Its policy runs it with 2 processes per device instead of 1 process per device",
        "It is slower with 2 processes per device than with 1 process per device and returns to "
        "that",
    ]
    assert AuditEntry.objects.unscoped().filter(action="job.revert").count() == 1


def test_policies_that_ask_for_no_processes_get_what_has_paid_whenever_a_job_starts_again():
    elastic = {"mode": "logical_workers", "logical_workers": 4, "executors": 2}
    job = make_job(elastic=elastic, worker={"devices": 1})
    for turn, steps in enumerate((40, 60, 60)):
        at = NOW + 2 * turn * LATER
        round_under(gives(job, 1), at)
        run_members(job)
        told(job, steps=steps, seconds=40.0)
        Job.objects.unscoped().filter(pk=job.pk).update(state_since=at)
        stays = round_under(gives(job, 1), at + LATER)
        goes = round_under(Plan(allocs={}, order=()), at + LATER)
        leave(job, at + LATER)
        assert (stays.preempted, goes.preempted) == ((), (job.pk,))

    assert layouts_of(job) == [[[4]], [[2, 2]], [[2, 2]]]


def test_a_failure_while_processes_share_a_device_ends_the_trial_and_not_the_job():
    elastic = {"mode": "logical_workers", "logical_workers": 4, "executors": 2}
    job = make_job(elastic=elastic, worker={"devices": 1})
    round_under(gives(job, 1))
    run_members(job)
    told(job, steps=40, seconds=40.0)
    Job.objects.unscoped().filter(pk=job.pk).update(state_since=NOW)
    round_under(Plan(allocs={}, order=()), NOW + LATER)
    leave(job, NOW + LATER)
    found = []
    for turn in (2, 3):
        round_under(gives(job, 1), NOW + turn * LATER)
        run_members(job)
        (member,) = Member.objects.filter(attempt__job=job, exited_at=None)
        end_member(member, 1, failure="user", at=NOW + turn * LATER)
        job.refresh_from_db()
        found.append((job.state, job.failures.get("user", 0)))

    assert layouts_of(job) == [[[4]], [[2, 2]], [[4]]]
    assert [state for state, _ in found] == [JobState.QUEUED, JobState.FAILED]
    assert found[0][1] == 0
