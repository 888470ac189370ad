"""Guarded moves against fragmentation: search, storage and execution."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import transaction

from scheduling.common.on_commit import request_round_on_commit
from scheduling.common.time_limits import time_limit
from scheduling.core.forecast.arrivals import PastSubmission, RecentSubmissions
from scheduling.core.forecast.durations import RunTimes
from scheduling.core.forecast.futures import Past
from scheduling.core.forecast.move_candidates import MoveSettings
from scheduling.core.forecast.moves import propose_moves
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import JobState, PreemptionRule
from scheduling.core.messages import sentence
from scheduling.core.simulation import SimulationSettings
from scheduling.core.values import ClusterSnapshot, QueuedJob
from scheduling.estimates.models import FragmentationForecast
from scheduling.estimates.services.run_times import lineage_of_job
from scheduling.jobs.models import Job
from scheduling.runs.services.stopping import preempt_job
from tenants.audit import Actor, record
from tenants.errors import ConflictError, NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer

FUTURES: Final = 40
MOST_PROPOSALS: Final = 10
POLICY_SECONDS: Final = 2.0
SETTINGS: Final = SimulationSettings(coarse=0.02, most_waiting=200)
WINDOW: Final = timedelta(hours=24)
"""Span of the past submissions that future ones are drawn from."""

AHEAD: Final = timedelta(hours=12)
"""Span of the drawn submissions."""

MOST_SUBMISSIONS: Final = 5_000
VALID: Final = timedelta(minutes=20)
"""Age after which a proposal is not carried out: the cluster has changed."""

SYSTEM: Final = Actor.system("defragmentation")
_COLUMNS: Final = (
    "id", "virtual_cluster_id", "tenant_id", "owner_id", "owner__username", "priority",
    "job_class", "demand", "submitted_at", "labels", "name", "devices",
)  # fmt: skip


def recent_submissions(*, now: datetime) -> RecentSubmissions:
    """Return the jobs of the last day, from which later submissions are drawn.

    If there are more than ``MOST_SUBMISSIONS``, the newest represent a shorter span.
    """
    rows = list(
        Job.objects.unscoped()
        .filter(submitted_at__gt=now - WINDOW, submitted_at__lte=now)
        .order_by("-submitted_at", "-id")
        .values(*_COLUMNS)[:MOST_SUBMISSIONS]
    )
    is_cut = len(rows) == MOST_SUBMISSIONS
    since = rows[-1]["submitted_at"] if is_cut else now - WINDOW
    return RecentSubmissions(
        jobs=[_past_submission(row) for row in reversed(rows)],
        seconds=max((now - since).total_seconds(), 1.0),
        ahead=AHEAD.total_seconds(),
    )


def find_moves(
    snapshot: ClusterSnapshot,
    times: RunTimes,
    pasts: Mapping[int, Past],
    recent: RecentSubmissions,
    *,
    seconds: float,
) -> list[dict[str, Any]]:
    """Return the documents of the proposals that were found within some seconds."""
    deadline = time.monotonic() + seconds
    settings = MoveSettings(
        simulation=SETTINGS,
        futures=FUTURES,
        seed=snapshot.round_number,
        recent=recent,
        go_on=lambda: time.monotonic() < deadline,
        limit=time_limit(POLICY_SECONDS),
    )
    found = propose_moves(snapshot, times, pasts, settings)
    return [asdict(proposal) for proposal in found[:MOST_PROPOSALS]]


def carry_out_moves(*, viewer: Viewer, job_id: int, round_number: int, now: datetime) -> None:
    """Preempt the jobs of a proposal, so that the waiting job starts in their place.

    Each of them gets the notice, the grace period and the receipt of every preemption.

    Args:
        viewer: a node manager.
        job_id: the waiting job, which identifies the proposal.
        round_number: round of the forecast with the proposal.
        now: the current time.

    Raises:
        ForbiddenError: the viewer may not manage nodes.
        NotFoundError: the newest forecast has no such proposal.
        ConflictError: the proposal is too old, or one of its jobs has changed its state.
    """
    viewer.require(Permission.MANAGE_NODES, what=sentence("moves-of-jobs"))
    stored = FragmentationForecast.objects.filter(round_number=round_number).first()
    proposals = stored.moves if stored is not None else []
    proposal = next((one for one in proposals if one["job_id"] == job_id), None)
    if stored is None or proposal is None:
        raise NotFoundError(sentence("no-such-moves", job=job_id))
    if now - stored.made_at > VALID:
        raise ConflictError(sentence("moves-too-old"))
    order_moves(proposal, actor=Actor.of(viewer), now=now)


@transaction.atomic
def order_moves(proposal: Mapping[str, Any], *, actor: Actor, now: datetime) -> None:
    """Preempt the jobs of a proposal: all of them, or none.

    Raises:
        ConflictError: the waiting job or a moved job has changed its state.
    """
    waiting = Job.objects.unscoped().filter(pk=proposal["job_id"]).first()
    if waiting is None or waiting.state != JobState.QUEUED:
        raise ConflictError(sentence("moves-changed", job=proposal["job_id"]))
    rule = sentence("moved-for-job", job=waiting.pk)
    for move in proposal["moves"]:
        job = Job.objects.unscoped().filter(pk=move["job_id"], state=JobState.RUNNING).first()
        is_same = job is not None and job.state_since.timestamp() == move["since"]
        if job is None or not is_same:
            raise ConflictError(sentence("moves-changed", job=move["job_id"]))
        if not preempt_job(
            job_id=job.pk,
            for_job=waiting.pk,
            rule=rule,
            now=now,
            cause=PreemptionRule.MOVE,
            by=actor.name,
        ):
            raise ConflictError(sentence("moves-changed", job=job.pk))
        record(actor=actor, action="job.move", obj=job, tenant=job.tenant_id, message=rule)
    request_round_on_commit("moves")


def _past_submission(row: Mapping[str, Any]) -> PastSubmission:
    return PastSubmission(
        job=QueuedJob(
            id=row["id"],
            vc=row["virtual_cluster_id"],
            tenant=row["tenant_id"],
            owner=row["owner_id"],
            owner_name=row["owner__username"],
            priority=row["priority"],
            job_class=JobClass(row["job_class"]),
            demand=Demand.from_json(row["demand"]),
            submitted=row["submitted_at"].astimezone(UTC).timestamp(),
        ),
        lineage=lineage_of_job(
            row["virtual_cluster_id"], row["owner_id"], row["labels"], row["name"], row["devices"]
        ),
    )
