"""Jobs as the API and the live messages show them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict

from scheduling.core.lifecycle import JobState
from scheduling.core.reasons import ReasonCode
from scheduling.selectors.estimates import Eta
from scheduling.selectors.events import EventView
from scheduling.selectors.job_detail import AttemptView, JobDetail, MemberView
from scheduling.selectors.jobs import JobRow
from scheduling.selectors.why import Why

NO_ROUND_YET: Final = "Waiting for the next scheduling round."

# "class" is a word of Python, so this one field needs the other syntax.
_ClassOut = TypedDict("_ClassOut", {"class": str})


class ReasonOut(TypedDict):
    """Why a job waits: a stable code and a sentence."""

    code: str
    text: str


class JobOut(_ClassOut):
    """A job."""

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
    ahead: int | None
    expected_start: datetime | None


class ListedJobOut(JobOut):
    """A job in a list.

    `nodes`: those that it has, once it has ended those that it had; none while it waits.
    `instances`: of all roles. `max_duration`: in seconds; null: as long as it takes.
    """

    nodes: list[str]
    instances: int
    max_duration: int | None


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
    isolation: str
    network: str
    warnings: list[str]


class AttemptOut(TypedDict):
    """One try at running a job.

    `end_reason`: succeeded, failed, stopped, preempted, resized, moved, reverted or drained; empty
    while it runs. `end_text`: the same as a sentence.
    """

    id: int
    number: int
    round: int
    opportunistic: bool
    created_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    outcome: str
    end_reason: str
    end_text: str
    exit_code: int | None
    failure_class: str
    message: str
    members: list[MemberOut]
    layout: list[list[int]] | None


class JobDetailOut(ListedJobOut, AcceptedJobOut):
    """A job with everything that its page shows."""

    note: str
    not_before: datetime | None
    backoff_until: datetime | None
    first_started_at: datetime | None
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


class StepOut(TypedDict):
    """A change with which a waiting job starts now; new values by path in its specification."""

    kind: str
    text: str
    changes: dict[str, Any]


RefusedOut = TypedDict(
    "RefusedOut", {"virtual_cluster": str, "class": str, "code": str, "text": str}
)
"""Where even the smallest job that could be asked for is refused, and why."""


class EtaOut(TypedDict):
    """When a job starts, in seconds from now, at 10, 50 and 90 %, by what round that was said.

    `open`: `p90` is only as far as was looked; one in ten starts then or later. `gate`: seconds
    for which a gate (`not_before`, a job that it waits for, a retry) stays closed. `basis`:
    `forecast`, `waits` (usual waits of the virtual cluster), or `gate`.
    """

    p10: float
    p50: float
    p90: float
    open: bool
    gate: float
    basis: str
    made_at: datetime
    round: int


class NoEtaOut(TypedDict):
    """Why there is no start estimate.

    `jobs`: running jobs without a time limit that are the cause, as far as you may see them.
    """

    text: str
    jobs: list[int]


class WhyOut(TypedDict):
    """Why a job is where it is; ``blocked_by_others`` counts jobs that you may not see.

    `pending`: what is still being worked out, of `steps` and `eta`; it takes seconds. `round`: the
    newest round, whose answer the reason is; `steps_round`: the one after which `steps` were
    tried.
    """

    id: int
    state: str
    since: datetime
    code: str
    text: str
    blocked_by: list[int]
    blocked_by_others: int
    unblock: list[str]
    steps: list[StepOut]
    proof: list[RefusedOut]
    ahead: int | None
    round: int
    steps_round: int
    eta: EtaOut | None
    no_eta: NoEtaOut | None
    pending: list[str]


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
    """A job."""
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
        "reason": _reason_out(row),
        "failure_class": row.failure_class,
        "exit_code": row.exit_code,
        "retryable": row.retryable,
        "attempts": row.attempts,
        "device_seconds": row.gpu_seconds,
        "ahead": row.ahead,
        "expected_start": row.eta.p50 if row.eta is not None else None,
    }


def _reason_out(row: JobRow) -> ReasonOut | None:
    """Why a job waits; None for one that does not."""
    if row.reason_code:
        return {"code": row.reason_code, "text": row.reason_text}
    if row.state != JobState.QUEUED:
        return None
    return {"code": ReasonCode.WAITING_FOR_ROUND.value, "text": NO_ROUND_YET}


def listed_job_out(row: JobRow, nodes: Iterable[str]) -> ListedJobOut:
    """A job in a list, with the nodes that it has or had."""
    return {
        **job_out(row),
        "nodes": list(nodes),
        "instances": row.instances,
        "max_duration": row.max_duration_seconds,
    }


def accepted_job_out(row: JobRow, warnings: list[str], parts: Sequence[int]) -> AcceptedJobOut:
    """The answer to a submit."""
    return {**job_out(row), "warnings": warnings, "parts": list(parts)}


def job_detail_out(detail: JobDetail) -> JobDetailOut:
    """A job's page; ``placement`` is that of the newest attempt."""
    newest = detail.attempts[-1].members if detail.attempts else ()
    has_nodes = detail.row.state != JobState.QUEUED
    return {
        **listed_job_out(detail.row, dict.fromkeys(member.node for member in newest if has_nodes)),
        "warnings": list(detail.warnings),
        "parts": list(detail.parts),
        "note": detail.note,
        "not_before": detail.not_before,
        "backoff_until": detail.backoff_until,
        "first_started_at": detail.first_started_at,
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
        "end_reason": attempt.end_reason,
        "end_text": attempt.end_text,
        "exit_code": attempt.exit_code,
        "failure_class": attempt.failure_class,
        "message": attempt.message,
        "members": [member_out(member) for member in attempt.members],
        "layout": None if attempt.layout is None else [list(one) for one in attempt.layout],
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
        "isolation": member.isolation,
        "network": member.network,
        "warnings": list(member.warnings),
    }


def step_out(step: Mapping[str, Any]) -> StepOut:
    """One change."""
    return {"kind": step["kind"], "text": step["text"], "changes": dict(step["changes"])}


def refused_out(refused: Mapping[str, Any]) -> RefusedOut:
    """One line of a proof."""
    return {
        "virtual_cluster": refused["virtual_cluster"],
        "class": refused["class"],
        "code": refused["code"],
        "text": refused["text"],
    }


def eta_out(eta: Eta | None, now: datetime) -> EtaOut | None:
    """When a job starts; None: not known."""
    if eta is None:
        return None
    p10, p50, p90 = (round(seconds, 1) for seconds in eta.seconds(now))
    return {
        "p10": p10,
        "p50": p50,
        "p90": p90,
        "open": eta.is_open,
        "gate": round(eta.opens_in(now), 1),
        "basis": eta.basis,
        "made_at": eta.made_at,
        "round": eta.round_number,
    }


def why_out(answer: Why, now: datetime) -> WhyOut:
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
        "steps": [step_out(step) for step in answer.steps],
        "proof": [refused_out(refused) for refused in answer.proof],
        "ahead": answer.ahead,
        "round": answer.round_number,
        "steps_round": answer.steps_round,
        "eta": eta_out(answer.eta, now),
        "no_eta": {"text": answer.no_eta, "jobs": list(answer.unlimited)}
        if answer.no_eta
        else None,
        "pending": list(answer.pending),
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
