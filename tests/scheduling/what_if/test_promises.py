"""Audits of the sharing promise from stored rounds and rows, and the view of stored audits."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from scheduling.clusters.models import VirtualCluster
from scheduling.common.canonical_json import canonical_json
from scheduling.core.promises.audit import audit
from scheduling.core.promises.figures import Cause, Verdict
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Preemption
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.models import PromiseAudit
from scheduling.what_if.queries import promise_view
from scheduling.what_if.services.promises import audit_missing_days, promise_export
from tenants.errors import DomainError, InvalidError
from tessera.protocol import CAUSE_STOPPED
from tests.factories.attempts import end_member, members_of, run_members
from tests.factories.cluster import NOW, OPPORTUNISTIC
from tests.factories.job_history import run_round_at, seconds_after_now
from tests.factories.scheduling import end, make_two_tenants, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def export_of(tmp_path, vc="vision-a", **span):
    row = VirtualCluster.objects.unscoped().get(name=vc)
    given = {"since": NOW, "until": NOW + timedelta(hours=1), "now": NOW + DAY, **span}
    return promise_export(vc=row, storage=DirectoryStorage(tmp_path), **given)


def came_at(job, seconds):
    Job.objects.unscoped().filter(pk=job.pk).update(submitted_at=seconds_after_now(seconds))


def start_all(tmp_path, seconds):
    run_round_at(tmp_path, seconds)
    for job in Job.objects.unscoped().filter(state="admitted"):
        run_members(job, seconds_after_now(seconds))


@pytest.fixture
def lent_node(tmp_path):
    """Bob borrows all nodes; alice comes at 100 s and starts at 125 s, bob's victim at 120 s."""
    make_two_tenants()
    for _ in range(3):
        submit("bob", devices=8, **OPPORTUNISTIC)
    start_all(tmp_path, 0)
    job = submit(devices=8)
    came_at(job, 100)
    run_round_at(tmp_path, 100)
    (victim,) = Job.objects.unscoped().filter(state="preempting")
    for member in members_of(victim):
        end_member(member, None, CAUSE_STOPPED, signal=15, at=seconds_after_now(120))
    start_all(tmp_path, 125)
    end(job, at=seconds_after_now(1125))
    run_round_at(tmp_path, 1130)
    return job


def test_an_export_has_the_facts_of_a_job_and_of_its_victims(tmp_path, lent_node):
    export = export_of(tmp_path)

    (job,) = export.jobs
    begin = NOW.timestamp()
    assert (job.job.id, job.eligible - begin) == (lent_node.pk, 100.0)
    assert [(run.start - begin, run.end - begin) for run in job.runs] == [(125.0, 1125.0)]
    assert len(job.runs[0].members[0]) == 8
    assert all(leaf.virtual for leaf in job.runs[0].members[0])
    assert (job.work, job.grace, job.withdrawn) == (1000.0, 30.0, None)
    assert [(one.devices, one.released - one.asked) for one in export.returns] == [(8, 20.0)]
    assert export.evictions == ()
    assert "bob" not in canonical_json(export).decode()
    assert "language-a" not in canonical_json(export).decode()


def test_a_job_that_waits_for_victims_within_their_grace_is_kept(tmp_path, lent_node):
    report = audit(export_of(tmp_path))

    (row,) = report.jobs
    assert (row.own, row.private, row.bound) == (25.0, 0.0, 50.0)
    assert row.verdict is Verdict.KEPT


def test_a_guarantee_broken_by_hand_in_a_stored_day_is_found(tmp_path, lent_node):
    Attempt.objects.filter(job=lent_node).update(
        created_at=seconds_after_now(400), running_at=seconds_after_now(400)
    )

    (row,) = audit(export_of(tmp_path)).jobs

    assert (row.verdict, row.causes, row.denied) == (Verdict.VIOLATED, (Cause.DENIED,), 300.0)


def test_a_guaranteed_victim_of_another_virtual_cluster_is_found(tmp_path, lent_node):
    Preemption.objects.create(
        attempt=Attempt.objects.get(job=lent_node),
        job=lent_node,
        for_job=Job.objects.unscoped().filter(virtual_cluster__name="language-a").first(),
        cause="inter-vc",
        rule="by hand",
        grace_seconds=30,
        asked_at=seconds_after_now(500),
    )

    (row,) = audit(export_of(tmp_path)).jobs

    assert (row.verdict, row.causes) == (Verdict.VIOLATED, (Cause.EVICTED,))


def test_time_on_hold_is_not_waiting(tmp_path):
    make_two_tenants()
    job = submit(devices=8)
    Job.objects.unscoped().filter(pk=job.pk).update(held=True)
    submit(devices=1)
    start_all(tmp_path, 0)
    Job.objects.unscoped().filter(pk=job.pk).update(held=False)
    submit(devices=1)
    run_round_at(tmp_path, 300)

    audited = {one.job.id: one for one in export_of(tmp_path).jobs}[job.pk]

    assert audited.eligible == NOW.timestamp() + 300.0
    assert not audited.job.held


def test_a_job_that_depends_on_another_waits_from_its_end(tmp_path):
    make_two_tenants()
    first = submit(devices=8)
    second = submit(devices=8)
    second.dependencies.create(after=first)
    start_all(tmp_path, 0)
    end(first, at=seconds_after_now(200))
    start_all(tmp_path, 205)

    report = audit(export_of(tmp_path))

    assert [(row.job, row.own) for row in report.jobs] == [(first.pk, 0.0), (second.pk, 5.0)]


def test_a_span_without_stored_rounds_is_refused(tmp_path):
    make_two_tenants()

    with pytest.raises(InvalidError):
        export_of(tmp_path)


@pytest.fixture
def audited(tmp_path, lent_node):
    """The day of the lent node in storage, with one job of ada."""
    Job.objects.unscoped().filter(pk=lent_node.pk).update(owner=make_viewer("ada").user_id)
    return audit_missing_days(storage=DirectoryStorage(tmp_path), now=NOW + DAY)


def test_missing_days_are_audited_once(tmp_path, audited):
    assert audited == 2
    assert audit_missing_days(storage=DirectoryStorage(tmp_path), now=NOW + DAY) == 0
    stored = PromiseAudit.objects.get(virtual_cluster__name="vision-a")
    assert stored.day == NOW.date()
    assert stored.result["verdicts"] == {"kept": 1, "exceeded": 0, "violated": 0}


@pytest.mark.parametrize(
    ("name", "jobs", "sees_all"),
    [("ada", 1, True), ("root", 1, True), ("alice", 0, False)],
)
def test_leads_and_admins_see_all_jobs_and_members_their_own(audited, name, jobs, sees_all):
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")

    found = promise_view(make_viewer(name), vc.pk, since=NOW.date(), until=NOW.date())

    assert (len(found.jobs), found.sees_all) == (jobs, sees_all)
    assert (found.used_hours is not None) == sees_all
    assert (found.return_s is not None) == sees_all


@pytest.mark.parametrize("name", ["bob", "carol"])
def test_others_do_not_see_the_audits(audited, name):
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")

    with pytest.raises(DomainError):
        promise_view(make_viewer(name), vc.pk, since=NOW.date(), until=NOW.date())


def test_the_command_writes_export_and_result(tmp_path, lent_node, settings, capsys):
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path)
    paths = {"export": tmp_path / "export.json", "json": tmp_path / "result.json"}
    until = (NOW + timedelta(hours=1)).isoformat()

    call_command("audit_promises", vc="vision-a", since=NOW.isoformat(), until=until, **paths)

    assert 'verdicts: {"kept": 1, "exceeded": 0, "violated": 0}' in capsys.readouterr().out
    result = json.loads(paths["json"].read_text())
    call_command("audit_promises", str(paths["export"]), json=tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == result


def test_a_violation_makes_the_command_fail(tmp_path, lent_node):
    Attempt.objects.filter(job=lent_node).update(created_at=seconds_after_now(400))
    path = tmp_path / "export.json"
    path.write_bytes(canonical_json(export_of(tmp_path)))

    with pytest.raises(CommandError, match="1 of 1 jobs: promise violated"):
        call_command("audit_promises", str(path))
