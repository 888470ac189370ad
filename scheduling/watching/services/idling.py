"""Idle jobs: detection, warning, and a stop at or after the time announced in the warning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from scheduling.clusters.models import VirtualCluster
from scheduling.core.jobspec.watching import idle_policy_of
from scheduling.core.lifecycle import JobState
from scheduling.core.messages import sentence
from scheduling.core.notices import IDLE_WARNING
from scheduling.core.watching.idleness import (
    IdleAction,
    IdlePeriod,
    IdlePolicy,
    IdleScope,
    Places,
    follow,
    in_force,
    step_of,
    stop_at,
)
from scheduling.jobs.models import Job
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.runs.models import Attempt, Member
from scheduling.runs.services.stopping import stop_by_rule
from scheduling.watching.models import IdleRule, IdleSpell
from tenants.audit import record
from tenants.errors import FieldError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import plain

IDLE_OVER: Final = "idle-over"
LEAST_WARN: Final = 300
LEAST_STOP: Final = 600
LONGEST: Final = 7 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A running attempt with an idle policy.

    Attributes:
        members: node ID and device indices of each of its members.
    """

    job_id: int
    attempt_id: int
    attempt_number: int
    running_at: datetime
    policy: IdlePolicy
    members: tuple[tuple[int, tuple[int, ...]], ...]
    spell: IdlePeriod | None

    @property
    def places(self) -> Places:
        """All devices of the attempt."""
        return frozenset((node, index) for node, devices in self.members for index in devices)


def watched() -> list[Watched]:
    """Return running jobs with an idle policy, in four queries; delete idle spells of others."""
    rules = {rule.virtual_cluster_id: rule for rule in IdleRule.objects.all()}
    running = Job.objects.unscoped().filter(state=JobState.RUNNING).exclude(devices=0)
    policies: dict[int, IdlePolicy] = {}
    for job_id, vc_id, own, priority in running.values_list(
        "id", "virtual_cluster_id", "spec__idle_policy", "spec__priority"
    ):
        policy = _policy(own, rules.get(vc_id), priority)
        if policy is not None and not policy.exempt:
            policies[job_id] = policy
    IdleSpell.objects.exclude(job__in=list(policies)).delete()
    if not policies:
        return []
    return _attempts(policies)


@transaction.atomic
def look(one: Watched, minutes: Mapping[datetime, Places], *, now: datetime) -> IdleAction:
    """Apply the idle policy of one job to newer minutes of its devices.

    Args:
        one: the job.
        minutes: as in ``core.idleness.follow``.
        now: the current time.

    Returns:
        The action taken.
    """
    spell = follow(one.spell, minutes, now=now)
    if spell is None:
        if _as_read(one).delete()[0] and one.spell is not None and one.spell.warned_at is not None:
            note = Note(text=sentence("busy-again"), attempt=one.attempt_number)
            record_job_event(job_id=one.job_id, kind=IDLE_OVER, now=now, note=note)
        return IdleAction.NOTHING
    step = step_of(spell, one.policy, now=now)
    if step is IdleAction.STOP:
        return step if _stop(one, spell, now) else IdleAction.NOTHING
    if step is IdleAction.WARN:
        spell = replace(spell, warned_at=now)
    if not _keep(one, spell):
        return IdleAction.NOTHING
    if step is IdleAction.WARN:
        _warn(one, spell, now)
    return step


def _as_read(one: Watched) -> "QuerySet[IdleSpell]":
    """Return the job's row if it is unchanged, so that only one of two concurrent calls acts."""
    rows = IdleSpell.objects.filter(job=one.job_id)
    if one.spell is None:
        return rows.exclude(attempt=one.attempt_id)
    since, until, warned_at = one.spell.since, one.spell.until, one.spell.warned_at
    return rows.filter(attempt=one.attempt_id, since=since, until=until, warned_at=warned_at)


def _keep(one: Watched, spell: IdlePeriod) -> bool:
    """Store a spell; return False if another call processed the job concurrently."""
    columns = {
        "attempt_id": one.attempt_id,
        "since": spell.since,
        "until": spell.until,
        "warned_at": spell.warned_at,
        "stop_at": stop_at(spell, one.policy),
        "devices": sorted(spell.devices),
        "idle_devices": None if spell.devices == one.places else len(spell.devices),
    }
    if _as_read(one).update(**columns):
        return True
    if one.spell is not None:
        return False
    return IdleSpell.objects.get_or_create(job_id=one.job_id, defaults=columns)[1]


@transaction.atomic
def set_idle_rule(
    *, viewer: Viewer, virtual_cluster: VirtualCluster, rule: Mapping[str, Any] | None
) -> IdleRule | None:
    """Set the idle policy of a virtual cluster for jobs without their own.

    Args:
        viewer: a lead of its tenant, or a cluster admin.
        virtual_cluster: the virtual cluster.
        rule: some of ``below``, ``warn_after``, ``stop_after``, ``exempt_priorities``,
            ``binding`` and ``devices``; None deletes the policy.

    Raises:
        ForbiddenError: the viewer may not set the policy.
        InvalidError: values are not valid; the error lists all faults.
    """
    tenant_id = virtual_cluster.tenant_id
    viewer.require(Permission.SET_CAPS, tenant_id, what="the virtual cluster")
    there = IdleRule.objects.filter(virtual_cluster=virtual_cluster).first()
    before = rule_values(there) if there else {}
    row = None
    if rule is None:
        IdleRule.objects.filter(virtual_cluster=virtual_cluster).delete()
    else:
        row = IdleRule(virtual_cluster=virtual_cluster, **{**before, **rule})
        InvalidError.raise_if(_faults(row))
        row.save(force_insert=there is None, force_update=there is not None)
    after = rule_values(row) if row else {}
    if before != after:
        record(
            actor=viewer,
            action="virtual_cluster.idle_rule",
            obj=virtual_cluster,
            before=before,
            after=after,
            tenant=tenant_id,
        )
    return row


def rule_values(rule: IdleRule) -> dict[str, Any]:
    """Return the columns of an idle policy for the audit."""
    return {
        "below": rule.below,
        "warn_after": rule.warn_after,
        "stop_after": rule.stop_after,
        "exempt_priorities": list(rule.exempt_priorities),
        "binding": rule.binding,
        "devices": str(rule.devices),
    }


def _policy(own: object, rule: IdleRule | None, priority: object) -> IdlePolicy | None:
    usual = None
    if rule is not None and priority not in rule.exempt_priorities:
        usual = IdlePolicy(
            below=rule.below,
            warn_after=rule.warn_after,
            stop_after=rule.stop_after,
            devices=IdleScope(rule.devices),
        )
    return in_force(idle_policy_of(own), usual, binding=rule is not None and rule.binding)


def _attempts(policies: Mapping[int, IdlePolicy]) -> list[Watched]:
    attempts = Attempt.objects.filter(
        job__in=list(policies), ended_at=None, running_at__isnull=False
    )
    members: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for attempt_id, node_id, devices in Member.objects.filter(attempt__in=attempts).values_list(
        "attempt_id", "node_id", "devices"
    ):
        members.setdefault(attempt_id, []).append((node_id, tuple(devices)))
    spells = {row.attempt_id: row for row in IdleSpell.objects.all()}
    return [
        Watched(
            job_id=attempt.job_id,
            attempt_id=attempt.pk,
            attempt_number=attempt.number,
            running_at=attempt.running_at,
            policy=policies[attempt.job_id],
            members=tuple(members.get(attempt.pk, ())),
            spell=_spell(spells.get(attempt.pk)),
        )
        for attempt in attempts
        if attempt.running_at is not None
    ]


def _spell(row: IdleSpell | None) -> IdlePeriod | None:
    if row is None:
        return None
    devices = frozenset((node, index) for node, index in row.devices)
    return IdlePeriod(devices=devices, since=row.since, until=row.until, warned_at=row.warned_at)


def _warn(one: Watched, spell: IdlePeriod, now: datetime) -> None:
    ends = stop_at(spell, one.policy)
    shown = {"below": format(one.policy.below, "g"), "minutes": format(spell.seconds / 60, ".0f")}
    if spell.devices == one.places:
        idle = sentence("idle-warning", **shown)
    else:
        idle = sentence("idle-warning-some", some=len(spell.devices), all=len(one.places), **shown)
    if ends:
        idle = sentence("idle-warning-with-stop", idle=idle, time=format(ends, "%H:%M"))
    record_job_event(
        job_id=one.job_id,
        kind=IDLE_WARNING,
        now=now,
        note=Note(
            text=idle,
            attempt=one.attempt_number,
            detail={
                "idle_seconds": int(spell.seconds),
                "below": one.policy.below,
                "stop_at": ends.isoformat() if ends else None,
                "devices": len(spell.devices),
            },
        ),
    )


def _stop(one: Watched, spell: IdlePeriod, now: datetime) -> bool:
    is_whole = spell.devices == one.places
    counts = {} if is_whole else {"some": len(spell.devices), "all": len(one.places)}
    words = sentence(
        "idle-stopped" if is_whole else "idle-stopped-some",
        **counts,
        idle=format(spell.seconds / 60, ".0f"),
        allowed=format((one.policy.stop_after or 0) / 60, ".0f"),
    )
    if not _as_read(one).delete()[0]:
        return False
    return stop_by_rule(
        job_id=one.job_id, attempt_id=one.attempt_id, rule="idle policy", text=words, now=now
    )


def _faults(row: IdleRule) -> list[FieldError]:
    stop = row.stop_after
    names = row.exempt_priorities
    checks = (
        ("below", _is_number(row.below) and 0 < row.below <= 100, sentence("give-percentage")),
        (
            "warn_after",
            _is_number(row.warn_after) and LEAST_WARN <= row.warn_after <= LONGEST,
            sentence("give-warn-after"),
        ),
        (
            "stop_after",
            stop is None
            or (
                _is_number(stop)
                and _is_number(row.warn_after)
                and max(row.warn_after + LEAST_WARN, LEAST_STOP) <= stop <= LONGEST
            ),
            sentence("give-stop-after"),
        ),
        (
            "exempt_priorities",
            isinstance(names, list | tuple) and all(isinstance(name, str) for name in names),
            sentence("give-classes"),
        ),
        ("binding", isinstance(row.binding, bool), sentence("use-boolean")),
        ("devices", row.devices in list(IdleScope), sentence("give-idle-scope")),
    )
    return [
        FieldError(
            field=name,
            value=getattr(row, name),
            message=sentence("not-field-of-idle-policy", name=plain(name.replace("_", " "))),
            remedy=remedy,
        )
        for name, is_right, remedy in checks
        if not is_right
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
