"""Response shapes of jobs for REST and live updates."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypedDict

from portal.api.bodies import Body, From
from scheduling.core.lifecycle import JobState
from scheduling.estimates.queries import Eta
from scheduling.jobs.queries.events import EventView
from scheduling.jobs.queries.job_detail import AttemptView, JobDetail, MemberView
from scheduling.jobs.queries.jobs import JobRow
from scheduling.jobs.queries.why import Why
from tessera.messages import sentence_from
from tessera.reasons import ReasonCode

NO_ROUND_YET: Final = "Waiting for the next scheduling round."

# ``class`` is a Python keyword, so this field needs the functional syntax.
_ClassOut = TypedDict("_ClassOut", {"class": Annotated[str, From("job_class")]})


class ReasonOut(TypedDict):
    """The reason of a wait: a stable code and a sentence."""

    code: str
    text: str


def _reason_out(row: JobRow) -> ReasonOut | None:
    if row.reason_code:
        return {"code": row.reason_code, "text": row.reason_text}
    if row.state != JobState.QUEUED:
        return None
    return {"code": ReasonCode.WAITING_FOR_ROUND.value, "text": NO_ROUND_YET}


class JobOut(_ClassOut):
    """A job."""

    id: int
    name: str
    state: str
    state_since: datetime
    user: Annotated[str, From("owner")]
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
    reason: Annotated[ReasonOut | None, From(by=_reason_out)]
    failure_class: str
    exit_code: int | None
    retryable: bool
    attempts: int
    device_seconds: Annotated[float, From("gpu_seconds")]
    cpu_seconds: float
    ahead: int | None
    expected_start: Annotated[
        datetime | None, From(by=lambda row: row.eta.p50 if row.eta else None)
    ]


class ListedJobOut(JobOut):
    """A job in a list.

    `nodes`: its current nodes, or the last nodes of an ended job; empty for a waiting job.
    `instances`: the number over all roles. `max_duration`: in seconds; null if unlimited.
    """

    nodes: list[str]
    instances: int
    max_duration: int | None


class AcceptedJobOut(JobOut):
    """A submitted job, with warnings about differences from the document.

    `parts`: if the instances are not a gang, the IDs of all jobs that were created for them.
    """

    warnings: list[str]
    parts: list[int]


class MemberOut(TypedDict):
    """A rank of a role on its node."""

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
    """An attempt of a job.

    `end_reason`: succeeded, failed, stopped, preempted, resized, moved, reverted or drained; empty
    while the attempt runs. `end_text`: the same as a sentence. `suspended_by`: tier of its last
    suspension: T0, T1 or T2 in a turn of another job on its device, T5 for the checkpoint with
    which it had to leave. `suspensions` and `suspended_seconds` count turns.
    """

    id: int
    number: int
    round: Annotated[int, From("round_number")]
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
    suspended_by: str
    suspensions: int
    suspended_seconds: float


def _newest_members(attempts: Sequence[AttemptView]) -> list[MemberOut]:
    return [member_out(member) for member in attempts[-1].members] if attempts else []


class JobPageOut(TypedDict):
    """Fields that only the details of a job and the response to its submission have."""

    warnings: list[str]
    parts: list[int]

    note: str
    not_before: datetime | None
    backoff_until: datetime | None
    first_started_at: datetime | None
    end_message: str
    failures: dict[str, int]
    excluded_nodes: list[str]
    spec: Annotated[Any, From("spec", dict)]
    effective_spec: Annotated[Any, From("effective", dict)]
    source_text: str
    source_format: str
    cloned_from: int | None
    after: list[int]
    placement: Annotated[list[MemberOut], From("attempts", _newest_members)]
    can_stop: bool
    can_submit: bool


class JobDetailOut(ListedJobOut, JobPageOut):
    """A job with its specification, placement and history."""


class StepOut(TypedDict):
    """A change with which a waiting job starts now; `changes` has new values by path."""

    kind: str
    text: str
    changes: dict[str, Any]


RefusedOut = TypedDict(
    "RefusedOut", {"virtual_cluster": str, "class": str, "code": str, "text": str}
)
"""A virtual cluster that refuses even the smallest job that can be requested, and the reason."""


class EtaOut(TypedDict):
    """A start estimate in seconds from now (p10, p50, p90), and the round of the estimate.

    `open`: the forecast ends at `p90`, and one in ten starts is at that time or later. `gate`:
    seconds until a gate (`not_before`, a dependency, a retry) opens. `basis`: `forecast`, `waits`
    (usual waits of the virtual cluster), or `gate`.
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
    """The cause of a missing start estimate.

    `jobs`: running jobs without a time limit that cause it, as far as you may see them.
    """

    text: str
    jobs: list[int]


class WhyNowOut(TypedDict):
    """The reason of a job's state, without its start estimate."""

    id: Annotated[int, From("job_id")]
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
    round: Annotated[int, From("round_number")]
    steps_round: int
    pending: list[str]


class WhyOut(WhyNowOut):
    """The reason of a job; ``blocked_by_others`` counts blocking jobs that you may not see.

    `pending`: the fields (`steps`, `eta`) that are still being computed, which takes seconds.
    `round`: the newest round, which decided the reason. `steps_round`: the round after which
    `steps` were tried.
    """

    eta: EtaOut | None
    no_eta: NoEtaOut | None


class EventOut(TypedDict):
    """An event of a job."""

    id: int
    at: datetime
    kind: str
    state: str
    attempt: int | None
    text: str
    detail: dict[str, Any]


job_out = Body(JobOut, JobRow)


def listed_job_out(row: JobRow, nodes: Iterable[str]) -> ListedJobOut:
    return {
        **job_out(row),
        "nodes": list(nodes),
        "instances": row.instances,
        "max_duration": row.max_duration_seconds,
    }


def accepted_job_out(row: JobRow, warnings: Sequence[Any], parts: Sequence[int]) -> AcceptedJobOut:
    return {
        **job_out(row),
        "warnings": [sentence_from(each) for each in warnings],
        "parts": list(parts),
    }


def job_detail_out(detail: JobDetail) -> JobDetailOut:
    newest = detail.attempts[-1].members if detail.attempts else ()
    has_nodes = detail.row.state != JobState.QUEUED
    nodes = dict.fromkeys(member.node for member in newest if has_nodes)
    return {**listed_job_out(detail.row, nodes), **_page_out(detail)}


attempt_out = Body(AttemptOut, AttemptView)
member_out = Body(MemberOut, MemberView)
_page_out = Body(JobPageOut, JobDetail)
step_out = Body(StepOut, dict)
refused_out = Body(RefusedOut, dict)


def eta_out(eta: Eta | None, now: datetime) -> EtaOut | None:
    """Return the response shape of a start estimate, or None if there is no estimate."""
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
    no_eta: NoEtaOut = {"text": answer.no_eta, "jobs": list(answer.unlimited)}
    return {
        **_why_now_out(answer),
        "eta": eta_out(answer.eta, now),
        "no_eta": no_eta if answer.no_eta else None,
    }


_why_now_out = Body(WhyNowOut, Why)
event_out = Body(EventOut, EventView)
