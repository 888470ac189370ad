"""Log rules of admins and of jobs, and the actions after a match."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.db import IntegrityError, transaction

from scheduling.common.edits import text_errors
from scheduling.core.lifecycle import JobEventKind, JobState
from scheduling.core.messages import sentence
from scheduling.core.watching.log_metrics import LogMetric, NumberPattern
from scheduling.core.watching.log_rules import (
    LONGEST_NAME,
    LogAction,
    LogRuleSpec,
    Pattern,
    PatternError,
    RuleHit,
)
from scheduling.jobs.models import Job, JobSecret
from scheduling.jobs.services.lifecycle import Note, record_job_event, try_job_event
from scheduling.runs.models import Attempt
from scheduling.runs.services.exclusions import with_excluded
from scheduling.watching.models import LogRule, LogRuleHit
from tenants.audit import record
from tenants.edits import update_row
from tenants.errors import ConflictError, DuplicateError, FieldError, InvalidError, NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import plain

KIND: Final = "log rule"
MATCHED: Final = "log-rule"
MOST_RULES: Final = 50
_WHAT: Final = "log rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchPosition:
    """The attempt, member and node whose log contains a matching line."""

    attempt_id: int
    member: str
    node_id: int


def rules_of_job(job_id: int) -> list[tuple[LogRuleSpec, Pattern]]:
    """Return the log rules of a job: the rules for all jobs and its own; two queries.

    A rule that is not valid any more, for example after a change of the pattern syntax, is
    omitted.
    """
    own = Job.objects.unscoped().filter(pk=job_id).values_list("spec__log_rules", flat=True)
    rows = LogRule.objects.filter(enabled=True).values_list("name", "pattern", "action")
    specs = [
        LogRuleSpec(name=name, pattern=pattern, action=LogAction(action))
        for name, pattern, action in rows
    ]
    specs += [
        LogRuleSpec(
            name=rule.get("name") or rule["pattern"][:LONGEST_NAME],
            pattern=rule["pattern"],
            action=LogAction(rule["action"]),
        )
        for rule in own.first() or ()
    ]
    found = [(spec, _pattern(spec.pattern)) for spec in specs]
    return [(spec, pattern) for spec, pattern in found if pattern is not None]


def log_metrics_of_job(job_id: int) -> list[tuple[LogMetric, NumberPattern]]:
    """Return the metrics that a job reads from its log; one query."""
    own = Job.objects.unscoped().filter(pk=job_id).values_list("spec__metrics", flat=True)
    metrics = [LogMetric(name=one["name"], pattern=one["pattern"]) for one in own.first() or ()]
    found = [(metric, _number_pattern(metric.pattern)) for metric in metrics]
    return [(metric, pattern) for metric, pattern in found if pattern is not None]


@lru_cache(maxsize=256)
def _number_pattern(text: str) -> NumberPattern | None:
    try:
        return NumberPattern(text)
    except PatternError:
        return None


@lru_cache(maxsize=256)
def _pattern(text: str) -> Pattern | None:
    try:
        return Pattern(text)
    except PatternError:
        return None


@transaction.atomic
def record_hits(*, seen: MatchPosition, hits: Sequence[RuleHit], now: datetime) -> None:
    """Record matching lines and act on them, also after the end of the attempt.

    A rule counts once per attempt and node, regardless of the number of matching lines.
    """
    attempt = Attempt.objects.select_related("job").filter(pk=seen.attempt_id).first()
    if attempt is None:
        return  # the attempt was pruned meanwhile
    names = attempt.members.filter(node_id=seen.node_id).values_list("node__name", flat=True)
    node = names.first() or "its node"
    for hit in hits:
        if hit.given_up:
            _note_given_up(attempt, seen, node, hit, now)
            continue
        _, is_new = LogRuleHit.objects.get_or_create(
            attempt=attempt,
            node_name=node,
            rule=hit.rule.name[:LONGEST_NAME],
            defaults={"action": hit.rule.action},
        )
        if not is_new:
            continue
        record_job_event(
            job_id=attempt.job_id,
            kind=MATCHED,
            now=now,
            note=Note(
                attempt=attempt.number,
                text=f"{seen.member} on {node} wrote, at byte {hit.offset:,}: {hit.line} "
                f"(rule {hit.rule.name}: {hit.rule.action})",
                detail={
                    "rule": hit.rule.name,
                    "action": hit.rule.action,
                    "node": node,
                    "offset": hit.offset,
                },
            ),
        )
        _follow(attempt, hit, now)


def _note_given_up(
    attempt: Attempt, seen: MatchPosition, node: str, hit: RuleHit, now: datetime
) -> None:
    record_job_event(
        job_id=attempt.job_id,
        kind=MATCHED,
        now=now,
        note=Note(
            attempt=attempt.number,
            text=sentence(
                "rule-too-slow",
                rule=hit.rule.name,
                member=seen.member,
                node=node,
                offset=format(hit.offset, ","),
            ),
            detail={"rule": hit.rule.name, "node": node, "offset": hit.offset},
        ),
    )


def _follow(attempt: Attempt, hit: RuleHit, now: datetime) -> None:
    """Take the immediate actions of a match; other actions follow when the attempt fails."""
    job = Job.objects.unscoped().get(pk=attempt.job_id)
    if hit.rule.action is LogAction.LABEL:
        labels = {**job.labels, "log-rule": hit.rule.name[:63]}
        Job.objects.unscoped().filter(pk=job.pk).update(labels=labels)
    # The line arrived after the end of its attempt: the job already waits for its next attempt.
    elif job.state == JobState.QUEUED and attempt.ended_at and attempt.outcome == "failed":
        if hit.rule.action is LogAction.STOP_RETRIES:
            _fail(attempt, hit, now)
        else:
            names = with_excluded(attempt, set(job.excluded_nodes))
            Job.objects.unscoped().filter(pk=job.pk, state=JobState.QUEUED).update(
                excluded_nodes=names
            )


def _fail(attempt: Attempt, hit: RuleHit, now: datetime) -> None:
    text = sentence("not-retried", name=hit.rule.name)
    moved = try_job_event(
        job_id=attempt.job_id,
        event=JobEventKind.FAIL,
        now=now,
        note=Note(attempt=attempt.number, text=text, detail={"rule": hit.rule.name}),
        failure_class=attempt.failure_class,
        exit_code=attempt.exit_code,
        end_message=attempt.message,
    )
    if moved is not None:
        JobSecret.objects.filter(job_id=attempt.job_id).delete()


def create_log_rule(*, viewer: Viewer, name: str, pattern: str, action: str) -> LogRule:
    """Create a log rule for all jobs; it applies to attempts that start later.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another rule has the name.
        ConflictError: the maximum number of rules exists.
    """
    viewer.require(Permission.MANAGE_NODES, what=_WHAT)
    values = {"name": name, "pattern": pattern, "action": action}
    InvalidError.raise_if(_faults(values))
    if LogRule.objects.count() >= MOST_RULES:
        raise ConflictError(
            sentence("too-many-rules", most=MOST_RULES), remedy=sentence("delete-one-first")
        )
    try:
        with transaction.atomic():
            row = LogRule.objects.create(**values)
            record(actor=viewer, action="log_rule.create", obj=row, after=values)
    except IntegrityError:
        raise _taken(name) from None
    return row


def update_log_rule(
    *, viewer: Viewer, rule_id: int, expected_version: int | None = None, **values: Any
) -> LogRule:
    """Update, enable or disable a log rule.

    Raises:
        NotFoundError: the rule is unknown.
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another rule has the name.
        StaleEditError: the rule was edited since ``expected_version``.
    """
    viewer.require(Permission.MANAGE_NODES, what=_WHAT)
    InvalidError.raise_if(_faults(values))
    try:
        with transaction.atomic():
            row = _row(rule_id)
            update_row(
                LogRule.objects.all(),
                row,
                kind=KIND,
                expected_version=expected_version,
                read_version=row.version,
                values=values,
                viewer=viewer,
                action="log_rule.update",
            )
    except IntegrityError:
        raise _taken(str(values.get("name", ""))) from None
    return row


@transaction.atomic
def delete_log_rule(*, viewer: Viewer, rule_id: int) -> None:
    """Delete a log rule; events of jobs still show its matches.

    Raises:
        NotFoundError: the rule is unknown.
    """
    viewer.require(Permission.MANAGE_NODES, what=_WHAT)
    row = _row(rule_id)
    before = {"name": row.name, "pattern": row.pattern, "action": row.action}
    record(actor=viewer, action="log_rule.delete", obj=row, before=before)
    row.delete()


def _row(rule_id: int) -> LogRule:
    row = LogRule.objects.filter(pk=rule_id).first()
    if row is None:
        raise NotFoundError(sentence("no-such-rule"), field="id", value=rule_id)
    return row


def _taken(name: str) -> DuplicateError:
    return DuplicateError(
        sentence("log-rule-exists", name=name),
        field="name",
        value=name,
        remedy=sentence("choose-another-name"),
    )


def _faults(values: dict[str, Any]) -> list[FieldError]:
    faults: list[FieldError] = []
    if "name" in values:
        faults += text_errors(values["name"], field="name", longest=LONGEST_NAME, empty=False)
    if "action" in values and values["action"] not in set(LogAction):
        remedy = sentence("use-one-of", names=", ".join(LogAction))
        faults.append(_fault("action", values["action"], remedy))
    if "enabled" in values and not isinstance(values["enabled"], bool):
        faults.append(_fault("enabled", values["enabled"], sentence("use-boolean")))
    if "pattern" in values:
        try:
            Pattern(values["pattern"])
        except PatternError as error:
            faults.append(
                _fault("pattern", values["pattern"], sentence("correct-pattern", error=str(error)))
            )
        except (TypeError, AttributeError):
            faults.append(_fault("pattern", values["pattern"], sentence("use-string")))
    return faults


def _fault(name: str, value: object, remedy: str) -> FieldError:
    return FieldError(
        field=name,
        value=value,
        message=sentence("not-field-of-log-rule", name=plain(name)),
        remedy=remedy,
    )
