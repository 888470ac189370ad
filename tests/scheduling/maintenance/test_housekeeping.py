"""Pruning, and the check of what must always hold."""

from dataclasses import fields
from datetime import timedelta

import pytest
from django.core.management import call_command

from scheduling.clusters.models import Device, Node, NodeTenancy, PriorityClass, VcQuota
from scheduling.jobs.models import Job, JobEvent
from scheduling.maintenance.invariants import violations
from scheduling.maintenance.retention import Pruned, Retention, prune
from scheduling.rounds.models import Round
from scheduling.runs.models import Attempt, Lease, Member
from scheduling.storage.directory import DirectoryStorage
from scheduling.usage.models import UsageDay, UsageMonth
from scheduling.usage.queries.usage import usage
from scheduling.usage.services.usage import close_months, month_digest
from tenants.audit import Actor
from tenants.models import AuditEntry, Tenant
from tests.factories.scheduling import NOW, end, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
ACTOR = Actor.system("tests")
LATER = NOW + timedelta(days=10)


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def forget(tmp_path, now=LATER, **ages):
    nothing = dict.fromkeys(field.name for field in fields(Retention))
    retention = Retention(**{**nothing, "round_bytes": 2 << 30, **ages})
    return prune(retention=retention, storage=DirectoryStorage(tmp_path), now=now, actor=ACTOR)


def test_old_ended_jobs_go_with_all_that_belongs_to_them_and_live_ones_stay(tmp_path):
    old, waiting = submit(name="old"), submit(name="waiting", held=True)
    start(old)
    end(old)

    pruned = forget(tmp_path, jobs=DAY)

    assert pruned == Pruned(jobs=1)
    assert list(Job.objects.unscoped().values_list("name", flat=True)) == [waiting.name]
    assert Attempt.objects.count() == Member.objects.count() == Lease.objects.count() == 0
    assert JobEvent.objects.exclude(job=waiting).count() == 0


def test_use_is_summed_up_before_its_leases_are_forgotten(tmp_path):
    old = submit(name="old", devices=2)
    start(old)
    end(old, at=NOW + DAY / 24)

    assert forget(tmp_path, jobs=DAY).jobs == 1

    used = UsageDay.objects.unscoped().get()
    assert (used.owner_id, used.guaranteed + used.borrowed) == (old.owner_id, 2 * 3600)


def test_use_by_job_goes_with_closed_months_alone_and_their_hashes_stay_right(tmp_path):
    old = submit(name="old", devices=2)
    start(old)
    end(old, at=NOW + DAY / 24)
    later = NOW + 70 * DAY

    assert forget(tmp_path, now=later, usage_jobs=DAY).usage_jobs == 0
    close_months(now=later)
    assert forget(tmp_path, now=later, usage_jobs=DAY).usage_jobs == 1

    month = UsageMonth.objects.get()
    assert month_digest(month.month) == (month.sha256, 1)
    period = {"since": month.month, "until": month.month + 27 * DAY}
    by_job = usage(make_viewer("root"), by="job", **period)
    assert (by_job.lines, by_job.slot.held, by_job.is_partial) == ((), 2.0, True)


def test_a_job_that_a_queued_one_comes_after_stays(tmp_path):
    old = submit()
    start(old)
    end(old)
    submit(after=[old.pk], held=True)

    assert forget(tmp_path, jobs=DAY).jobs == 0


def test_events_of_live_jobs_are_kept(tmp_path):
    old = submit()
    start(old)
    end(old)
    live = submit(held=True)

    assert forget(tmp_path, events=DAY).events > 0
    assert set(JobEvent.objects.values_list("job_id", flat=True)) == {live.pk}


def test_the_newest_round_stays_however_old_it_is(tmp_path):
    for _ in range(3):
        run_round()

    assert forget(tmp_path, rounds=DAY).rounds == 2
    assert Round.objects.get().number == 3


def test_files_of_rounds_go_by_age_and_by_size(tmp_path):
    for number in range(1, 5):
        run_round(NOW + number * DAY)
        path = tmp_path / f"{number}"
        path.write_bytes(b"x" * 10)
        Round.objects.filter(number=number).update(snapshot_path=path.name, snapshot_bytes=10)

    pruned = forget(tmp_path, now=NOW + 4 * DAY, round_files=2 * DAY + DAY / 2, round_bytes=20)

    assert pruned.round_files == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


def test_pruning_is_on_record_when_something_went(tmp_path):
    forget(tmp_path, jobs=DAY)
    assert not AuditEntry.objects.unscoped().filter(action="history.prune").exists()
    run_round()
    run_round()

    forget(tmp_path, rounds=DAY)

    assert AuditEntry.objects.unscoped().get(action="history.prune").after["rounds"] == 1


def test_all_invariants_hold_through_a_life(capsys):
    job, other = submit(devices=4), submit("bob", worker={"instances": 2, "devices": 4})
    for act in (lambda: start(job, other), lambda: end(job), lambda: end(other, code=1)):
        act()
        assert violations() == ()

    call_command("check_invariants")

    assert "All invariants hold." in capsys.readouterr().out


def spoil_lease(job):
    Lease.objects.filter(job=job).update(released_at=NOW)


BREAKS = {
    "open-attempt-without-lease": lambda job: Lease.objects.update(released_at=NOW),
    "holding-job-without-attempt": lambda job: Attempt.objects.update(ended_at=NOW),
    "open-attempt-of-idle-job": lambda job: Job.objects.unscoped().update(state="queued"),
    "lease-of-ended-attempt": lambda job: Attempt.objects.update(ended_at=NOW),
    "open-member-of-ended-attempt": lambda job: Attempt.objects.update(ended_at=NOW),
    "lease-on-retired-device": lambda job: Device.objects.update(retired_at=NOW),
    "leaf-without-device": lambda job: Device.objects.filter(index=7).delete(),
    "device-without-leaf": lambda job: (
        Device.objects.filter(index=7).update(
            address="elsewhere", node=Node.objects.get(name="node-2")
        )
        if Device.objects.filter(index=7).exclude(node__name="node-2").delete()
        else None
    ),
    "member-and-leases-differ": lambda job: Member.objects.update(devices=[7]),
    "member-against-tenancy": lambda job: NodeTenancy.objects.create(
        node=Member.objects.get(attempt__job=job).node,
        tenant=Tenant.objects.unscoped().exclude(pk=job.tenant_id)[0],
        taken_at=NOW,
    ),
    "promises-do-not-fit": lambda job: VcQuota.objects.update(count=9),
    "node-state-is-derived": lambda job: Node.objects.update(state="cordoned"),
    "one-default-priority-class": lambda job: PriorityClass.objects.update(is_default=False),
}


def other_node(member):
    return Node.objects.exclude(pk=member.node_id).first()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda member: Member.objects.update(tenancy=None),
        lambda member: NodeTenancy.objects.unscoped().update(reset_at=NOW),
        lambda member: NodeTenancy.objects.unscoped().update(node=other_node(member)),
        lambda member: NodeTenancy.objects.unscoped().update(
            tenant=Tenant.objects.unscoped().get(name="language")
        ),
    ],
)
def test_members_without_isolation_are_compared_with_the_tenancy_of_their_node(break_it):
    Node.objects.update(isolation_level="none", probed_at=NOW)
    job = submit()
    start(job)
    assert violations() == ()

    break_it(Member.objects.get(attempt__job=job))

    assert {violation.rule for violation in violations()} == {"member-against-tenancy"}


@pytest.mark.parametrize("rule", sorted(BREAKS))
def test_a_broken_invariant_is_named(rule):
    job = submit()
    start(job)

    BREAKS[rule](job)

    assert rule in {violation.rule for violation in violations()}


def test_the_command_prints_violations_and_exits_with_one(capsys):
    start(submit())
    spoil_lease(Job.objects.unscoped().get())

    with pytest.raises(SystemExit) as caught:
        call_command("check_invariants")

    assert caught.value.code == 1
    assert "open-attempt-without-lease: attempt 1 of job" in capsys.readouterr().out
