"""Idling jobs are warned before they are stopped; lines of logs end jobs as rules say."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from scheduling.clusters.models import Node, VirtualCluster
from scheduling.core.watching.idleness import (
    IdleAction,
    IdlePeriod,
    IdlePolicy,
    IdleScope,
    Places,
    follow,
    in_force,
)
from scheduling.core.watching.log_rules import LogAction, LogRuleSpec, RuleHit
from scheduling.jobs.models import Job, JobEvent
from scheduling.runs.models import Attempt, Member
from scheduling.watching.models import IdleSpell, LogRule
from scheduling.watching.services import log_rules
from scheduling.watching.services.idling import look, set_idle_rule, watched
from tenants.errors import ForbiddenError, InvalidError
from tenants.models import AuditEntry
from tests.factories.cluster import NOW
from tests.factories.log_rules import make_log_rules_to_begin_with
from tests.factories.scheduling import end, make_two_tenants, start, submit
from tests.factories.tenants import make_viewer
from workers.models import NodeTelemetry
from workers.services.device_use import look_at_idling

M = timedelta(minutes=1)


A, B, C = (1, 0), (1, 1), (2, 0)


def minutes(*idle: bool | None) -> dict[datetime, Places]:
    known = {NOW + n * M: one for n, one in enumerate(idle) if one is not None}
    return {minute: frozenset({A, B} if one else ()) for minute, one in known.items()}


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        ((True, True, True), 180),
        ((True, False, True), 60),
        ((True, True, False), None),
        ((True, None, None, True), 240),
        ((True, None, None, None, None, True), 60),
        ((None, None, None), None),
    ],
)
def test_only_minutes_that_are_known_to_be_idle_count(seen, seconds):
    spell = follow(None, minutes(*seen), now=NOW + len(seen) * M)

    assert (spell.seconds if spell else None) == seconds


def test_a_spell_ends_when_nothing_is_heard_any_more():
    spell = IdlePeriod(devices=frozenset({A}), since=NOW, until=NOW + 30 * M, warned_at=NOW)

    assert follow(spell, {}, now=NOW + 33 * M) == spell
    assert follow(spell, {}, now=NOW + 34 * M) is None


def test_a_binding_policy_can_be_made_stricter_and_not_laxer():
    usual = IdlePolicy(below=5, warn_after=1800, stop_after=3600)
    lax = IdlePolicy(below=1, warn_after=600, stop_after=None)

    assert in_force(lax, usual) == lax
    assert in_force(None, usual) == usual
    assert in_force(IdlePolicy(exempt=True), usual, binding=True) == usual
    strict = IdlePolicy(below=5, warn_after=600, stop_after=3600)
    assert in_force(lax, usual, binding=True) == strict
    single = replace(usual, devices=IdleScope.ANY)
    assert in_force(lax, single, binding=True) == replace(strict, devices=IdleScope.ANY)
    assert in_force(replace(lax, devices=IdleScope.ANY), usual, binding=True) == replace(
        strict, devices=IdleScope.ANY
    )


@pytest.mark.parametrize(
    ("idle", "since", "devices"),
    [
        (({A, B}, {A}, {A, C}), 0, {A}),
        (({A, B}, {C}, {C, B}), 1, {C}),
        (({A}, {B}, {A}), 2, {A}),
        (({A}, {A}, set()), None, set()),
    ],
)
def test_a_spell_is_of_devices_that_were_idle_in_each_of_its_minutes(idle, since, devices):
    seen = {NOW + n * M: frozenset(one) for n, one in enumerate(idle)}

    spell = follow(None, seen, now=NOW + 3 * M)

    assert (spell and spell.since) == (None if since is None else NOW + since * M)
    assert (set(spell.devices) if spell else set()) == devices


@pytest.mark.django_db
def test_one_idle_device_of_a_busy_job_triggers_only_the_policy_for_any_device():
    make_two_tenants()
    policy = {"warn_after": "10m", "stop_after": "20m"}
    job = submit(idle_policy={**policy, "devices": "any"}, worker={"devices": 4})
    other = submit(idle_policy=policy, worker={"devices": 4})
    start(job)
    start(other)
    done: list[dict[int, IdleAction]] = []
    for minute in range(0, 20, 5):
        for member in Member.objects.filter(attempt__job__in=[job, other]).select_related("node"):
            busy = [0.9] * 8
            busy[member.devices[0]] = 0.0
            for n in range(minute, minute + 5):
                NodeTelemetry.objects.get_or_create(
                    node=member.node, at=NOW + n * M, defaults={"utilisation": busy}
                )
        done.append(look_at_idling(now=NOW + (minute + 5) * M))

    assert [one.get(job.pk) for one in done] == [None, IdleAction.WARN, None, IdleAction.STOP]
    assert not any(other.pk in one for one in done)
    warning = JobEvent.objects.get(job=job, kind="idle-warning")
    assert "1 of its 4 devices" in warning.text
    job.refresh_from_db()
    assert "1 of its 4 devices" in job.end_message


@pytest.fixture
def clusters(db: None) -> None:
    make_two_tenants()


def tell_telemetry(job: Job, begin: int, end: int, busy: float | None = 0.0) -> None:
    for node in Node.objects.filter(members__attempt__job=job).distinct():
        NodeTelemetry.objects.bulk_create(
            NodeTelemetry(node=node, at=NOW + n * M, utilisation=[busy] * 8)
            for n in range(begin, end)
        )


def watch(job: Job, until: int, *, busy: float | None = 0.0, begin: int = 0) -> list[IdleAction]:
    """Telemetry and a look every five minutes."""
    done: list[IdleAction] = []
    for minute in range(begin, until, 5):
        tell_telemetry(job, minute, minute + 5, busy)
        done += look_at_idling(now=NOW + (minute + 5) * M).values()
    job.refresh_from_db()
    return done


@pytest.mark.django_db
def test_an_idle_job_is_warned_then_stopped_and_both_are_told(clusters):
    job = submit(idle_policy={"warn_after": "10m", "stop_after": "20m"})
    start(job)

    assert watch(job, 10) == [IdleAction.WARN]
    spell = IdleSpell.objects.get()
    warning = JobEvent.objects.get(job=job, kind="idle-warning")
    assert warning.untold
    assert spell.stop_at is not None
    assert warning.detail["stop_at"] == spell.stop_at.isoformat()
    assert watch(job, 15, begin=10) == []
    assert job.state == "running"

    assert watch(job, 20, begin=15) == [IdleAction.STOP]

    assert job.state == "stopping"
    assert "were idle" in job.end_message
    entry = AuditEntry.objects.unscoped().get(action="job.stop")
    assert entry.actor_name == "idle policy"
    assert watch(job, 30, begin=20) == []


@pytest.mark.django_db
@pytest.mark.parametrize("busy", [0.5, 0.05, None])
def test_a_busy_job_or_one_without_telemetry_is_left_alone(clusters, busy):
    job = submit(idle_policy={"warn_after": "5m", "stop_after": "10m"})
    start(job)

    assert watch(job, 30, busy=busy) == []
    assert not IdleSpell.objects.exists()


@pytest.mark.django_db
def test_work_takes_the_warning_back(clusters):
    job = submit(idle_policy={"warn_after": "10m", "stop_after": "20m"})
    start(job)
    watch(job, 10)

    watch(job, 15, begin=10, busy=0.9)

    assert JobEvent.objects.filter(job=job, kind="idle-over").exists()
    assert watch(job, 20, begin=15) == []
    assert job.state == "running"


@pytest.mark.django_db
def test_a_virtual_cluster_speaks_for_jobs_that_report_nothing_but_not_for_exempt_ones(clusters):
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")
    rule = {"warn_after": 300, "stop_after": 600, "exempt_priorities": ["prod"]}
    set_idle_rule(viewer=make_viewer("ada"), virtual_cluster=vc, rule=rule)
    silent, exempt = submit(), submit(priority="prod")
    own = submit(idle_policy="none")
    for job in (silent, exempt, own):
        start(job)

    tell_telemetry(silent, 0, 5)

    assert look_at_idling(now=NOW + 5 * M) == {silent.pk: IdleAction.WARN}


@pytest.mark.django_db
def test_only_leads_and_admins_set_the_policy_of_a_virtual_cluster(clusters):
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")

    with pytest.raises(ForbiddenError):
        set_idle_rule(viewer=make_viewer("alice"), virtual_cluster=vc, rule={})
    wrong = {"below": 0, "warn_after": 60, "stop_after": 70, "binding": 1}
    with pytest.raises(InvalidError) as refused:
        set_idle_rule(viewer=make_viewer("ada"), virtual_cluster=vc, rule=wrong)
    fields = {fault.field for fault in refused.value.errors}
    assert fields == {"below", "warn_after", "stop_after", "binding"}


def hit(job: Job, action: LogAction, name: str = "it", *, given_up: bool = False) -> None:
    rule = LogRuleSpec(name=name, pattern="boom", action=action)
    attempt = Attempt.objects.filter(job=job).latest("number")
    node = Member.objects.filter(attempt=attempt).values_list("node_id", flat=True)[0]
    seen = log_rules.MatchPosition(attempt_id=attempt.pk, member="worker-0", node_id=node)
    found = RuleHit(rule=rule, offset=7, line="boom!", given_up=given_up)
    log_rules.record_hits(seen=seen, hits=[found], now=NOW)


@pytest.mark.django_db
@pytest.mark.parametrize("late", [False, True])
def test_a_line_stops_retries_before_and_after_the_end_was_heard(clusters, late):
    job = submit(retries={"user": 3})
    start(job)
    if late:
        end(job, 1)
    hit(job, LogAction.STOP_RETRIES)
    hit(job, LogAction.STOP_RETRIES)
    if not late:
        end(job, 1)

    job.refresh_from_db()
    assert job.state == "failed"
    (event,) = JobEvent.objects.filter(job=job, kind="log-rule")
    assert "worker-0" in event.text
    assert "boom! (rule it: stop-retries)" in event.text


@pytest.mark.django_db
@pytest.mark.parametrize("late", [False, True])
def test_a_line_keeps_the_next_attempt_off_the_node(clusters, late):
    job = submit(retries={"user": 3})
    start(job)
    node = Member.objects.filter(attempt__job=job).values_list("node__name", flat=True)[0]
    if late:
        end(job, 1)
    hit(job, LogAction.EXCLUDE_NODE)
    if not late:
        end(job, 1)

    job.refresh_from_db()
    assert job.state == "queued"
    assert job.excluded_nodes == [node]


@pytest.mark.django_db
def test_a_rule_that_is_given_up_is_told_of_and_does_nothing_else(clusters):
    job = submit(retries={"user": 3})
    start(job)
    hit(job, LogAction.STOP_RETRIES, given_up=True)
    end(job, 1)

    job.refresh_from_db()
    assert job.state == "queued"
    assert "its pattern takes too long" in JobEvent.objects.get(job=job, kind="log-rule").text


@pytest.mark.django_db
def test_a_line_can_label_a_job(clusters):
    job = submit()
    start(job)

    hit(job, LogAction.LABEL, "slow disk")

    job.refresh_from_db()
    assert job.labels["log-rule"] == "slow disk"


@pytest.mark.django_db
def test_rules_of_admins_and_of_the_job_hold_together(clusters):
    make_log_rules_to_begin_with()
    own = [{"pattern": "NaN loss", "action": "stop-retries"}]
    job = submit(log_rules=own)
    root = make_viewer("root")
    made = log_rules.create_log_rule(viewer=root, name="disk", pattern="I/O error", action="label")
    off = LogRule.objects.get(name="GPU lost")
    log_rules.update_log_rule(viewer=root, rule_id=off.pk, enabled=False)

    names = {spec.name for spec, _ in log_rules.rules_of_job(job.pk)}

    assert names == {"uncorrectable ECC error", "CUDA out of memory", "disk", "NaN loss"}
    with pytest.raises(ForbiddenError):
        log_rules.delete_log_rule(viewer=make_viewer("ada"), rule_id=made.pk)
    with pytest.raises(InvalidError) as refused:
        log_rules.create_log_rule(viewer=root, name="", pattern="(", action="explode")
    assert {fault.field for fault in refused.value.errors} == {"name", "pattern", "action"}


@pytest.mark.django_db
def test_of_two_who_look_at_once_one_acts_on_what_it_read(clusters):
    job = submit(idle_policy={"warn_after": "10m", "stop_after": "20m"})
    start(job)
    watch(job, 5)
    (first,) = watched()
    (second,) = watched()
    idle = {NOW + n * M: first.places for n in range(5, 10)}

    done = [look(one, idle, now=NOW + 10 * M) for one in (first, second)]

    assert done == [IdleAction.WARN, IdleAction.NOTHING]
    assert JobEvent.objects.filter(job=job, kind="idle-warning").count() == 1


@pytest.mark.django_db
def test_a_job_that_has_worked_since_its_warning_was_read_is_not_stopped(clusters):
    job = submit(idle_policy={"warn_after": "10m", "stop_after": "20m"})
    start(job)
    watch(job, 15)
    (read_before,) = watched()
    watch(job, 20, begin=15, busy=0.9)
    watch(job, 30, begin=20)
    idle = {NOW + n * M: read_before.places for n in range(15, 20)}

    step = look(read_before, idle, now=NOW + 20 * M)

    job.refresh_from_db()
    assert (step, job.state) == (IdleAction.NOTHING, "running")
