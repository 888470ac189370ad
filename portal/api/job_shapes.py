"""Jobs as the API and the live messages show them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from scheduling.selectors.events import EventView
from scheduling.selectors.job_detail import AttemptView, JobDetail, MemberView
from scheduling.selectors.jobs import JobRow
from scheduling.selectors.why import Why

# "class" is a word of Python, so this one field needs the other syntax.
_ClassOut = TypedDict("_ClassOut", {"class": str})


class ReasonOut(TypedDict):
    """Why a job waits: a stable code and a sentence."""

    code: str
    text: str


class JobOut(_ClassOut):
    """A job in a list."""

    id: int
    name: str
    state: str
    state_since: datetime
    user: str
    virtual_cluster: str
    tenant: str
    devices: int
    wants: str
    priority: int
    labels: dict[str, str]
    held: bool
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reason: ReasonOut | None
    failure_class: str
    exit_code: int | None
    retryable: bool
    attempts: int
    device_seconds: float


class AcceptedJobOut(JobOut):
    """A job that was just accepted, with what differs from what its document asks for.

    `parts`: of a job that is no gang, the jobs that its instances are, this one among them.
    """

    warnings: list[str]
    parts: list[int]


class MemberOut(TypedDict):
    """One rank of one role on its node."""

    role: str
    rank: int
    node_rank: int
    node: str
    devices: list[int]
    cells: list[str]
    step: str
    step_since: datetime
    stopping: bool
    started_at: datetime | None
    exited_at: datetime | None
    exit_code: int | None
    exit_signal: int | None
    exit_cause: str
    failure_class: str
    message: str


class AttemptOut(TypedDict):
    """One try at running a job."""

    id: int
    number: int
    round: int
    opportunistic: bool
    created_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    outcome: str
    exit_code: int | None
    failure_class: str
    message: str
    members: list[MemberOut]


class JobDetailOut(AcceptedJobOut):
    """A job with everything that its page shows."""

    note: str
    not_before: datetime | None
    backoff_until: datetime | None
    first_started_at: datetime | None
    max_duration: int | None
    end_message: str
    failures: dict[str, int]
    excluded_nodes: list[str]
    spec: Any
    effective_spec: Any
    source_text: str
    source_format: str
    cloned_from: int | None
    after: list[int]
    placement: list[MemberOut]
    can_stop: bool
    can_submit: bool


class WhyOut(TypedDict):
    """Why a job is where it is; ``blocked_by_others`` counts jobs that you may not see."""

    id: int
    state: str
    since: datetime
    code: str
    text: str
    blocked_by: list[int]
    blocked_by_others: int
    unblock: list[str]
    eta: None


class EventOut(TypedDict):
    """One thing that happened to a job."""

    id: int
    at: datetime
    kind: str
    state: str
    attempt: int | None
    text: str
    detail: dict[str, Any]


def job_out(row: JobRow) -> JobOut:
    """A job in a list."""
    is_explained = bool(row.reason_code)
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "state_since": row.state_since,
        "user": row.owner,
        "virtual_cluster": row.virtual_cluster,
        "tenant": row.tenant,
        "devices": row.devices,
        "wants": row.wants,
        "class": row.job_class,
        "priority": row.priority,
        "labels": dict(row.labels),
        "held": row.held,
        "submitted_at": row.submitted_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "reason": {"code": row.reason_code, "text": row.reason_text} if is_explained else None,
        "failure_class": row.failure_class,
        "exit_code": row.exit_code,
        "retryable": row.retryable,
        "attempts": row.attempts,
        "device_seconds": row.gpu_seconds,
    }


def accepted_job_out(row: JobRow, warnings: list[str], parts: Sequence[int]) -> AcceptedJobOut:
    """The answer to a submit."""
    return {**job_out(row), "warnings": warnings, "parts": list(parts)}


def job_detail_out(detail: JobDetail) -> JobDetailOut:
    """A job's page; ``placement`` is that of the newest attempt."""
    newest = detail.attempts[-1].members if detail.attempts else ()
    return {
        **accepted_job_out(detail.row, list(detail.warnings), detail.parts),
        "note": detail.note,
        "not_before": detail.not_before,
        "backoff_until": detail.backoff_until,
        "first_started_at": detail.first_started_at,
        "max_duration": detail.max_duration_seconds,
        "end_message": detail.end_message,
        "failures": dict(detail.failures),
        "excluded_nodes": list(detail.excluded_nodes),
        "spec": dict(detail.spec),
        "effective_spec": dict(detail.effective),
        "source_text": detail.source_text,
        "source_format": detail.source_format,
        "cloned_from": detail.cloned_from,
        "after": list(detail.after),
        "placement": [member_out(member) for member in newest],
        "can_stop": detail.can_stop,
        "can_submit": detail.can_submit,
    }


def attempt_out(attempt: AttemptView) -> AttemptOut:
    """One try with its ranks."""
    return {
        "id": attempt.id,
        "number": attempt.number,
        "round": attempt.round_number,
        "opportunistic": attempt.opportunistic,
        "created_at": attempt.created_at,
        "running_at": attempt.running_at,
        "ended_at": attempt.ended_at,
        "outcome": attempt.outcome,
        "exit_code": attempt.exit_code,
        "failure_class": attempt.failure_class,
        "message": attempt.message,
        "members": [member_out(member) for member in attempt.members],
    }


def member_out(member: MemberView) -> MemberOut:
    """One rank."""
    return {
        "role": member.role,
        "rank": member.rank,
        "node_rank": member.node_rank,
        "node": member.node,
        "devices": list(member.devices),
        "cells": list(member.cells),
        "step": member.step,
        "step_since": member.step_since,
        "stopping": member.stopping,
        "started_at": member.started_at,
        "exited_at": member.exited_at,
        "exit_code": member.exit_code,
        "exit_signal": member.exit_signal,
        "exit_cause": member.exit_cause,
        "failure_class": member.failure_class,
        "message": member.message,
    }


def why_out(answer: Why) -> WhyOut:
    """Why a job is where it is."""
    return {
        "id": answer.job_id,
        "state": answer.state,
        "since": answer.since,
        "code": answer.code,
        "text": answer.text,
        "blocked_by": list(answer.blocked_by),
        "blocked_by_others": answer.blocked_by_others,
        "unblock": list(answer.unblock),
        "eta": answer.eta,
    }


def event_out(event: EventView) -> EventOut:
    """One event."""
    detail: Mapping[str, Any] = event.detail
    return {
        "id": event.id,
        "at": event.at,
        "kind": event.kind,
        "state": event.state,
        "attempt": event.attempt,
        "text": event.text,
        "detail": dict(detail),
    }
