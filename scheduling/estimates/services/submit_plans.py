"""Plans of jobs: the decision of the round engine for a job submitted now.

The planner adds the draft to the end of the queue of a snapshot and decides a round without a
commit. If the draft would wait, a second round on the same cluster, empty and healthy, decides
whether the draft can ever start. Nothing is stored.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from scheduling.common.time_limits import time_limit
from scheduling.core.explanations.unblocking import seek
from scheduling.core.explanations.variants import JobChange, OwnerOptions
from scheduling.core.jobspec.amending import AmendError, amended
from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.core.messages import sentence
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import decide
from scheduling.core.round.declared_terms import read_terms, terms_document
from scheduling.core.round.gates import closed_gate, seconds_closed
from scheduling.core.round_result import PlacedMember
from scheduling.core.values import ClusterSnapshot, HoldingJob, JobFacts, QueuedJob
from scheduling.estimates.queries import no_estimate_text
from scheduling.estimates.services.cached_decision import CachedDecision, standing_now
from scheduling.estimates.services.corrections import lessons_of
from scheduling.jobs.models import Job
from scheduling.jobs.queries.events import visible_jobs_among
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.validation import InvalidJobError, ValidatedJob, check_draft, parts_of_draft
from scheduling.rounds.snapshot import RoundConfig
from tenants.errors import DomainError, FieldError
from tenants.models import Membership
from tenants.viewers import Viewer
from tessera.reasons import ReasonCode

NEVER_CODES: Final = frozenset(
    {ReasonCode.UNKNOWN_TYPE, ReasonCode.NO_CELL_OF_LEVEL, ReasonCode.EXCEEDS_VC_MAX}
)
"""Faults of a well-formed draft that demands more than the cluster has."""

ALTERNATIVES_SECONDS: Final = 0.15
POLICY_SECONDS: Final = 2.0
STARTS_SECONDS: Final = 0.4
MOST_TASKS: Final = 200


class Fits(StrEnum):
    """The time at which a job can start."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The plan of a job.

    Attributes:
        code: a reason code; empty for a job that would start now.
        blocked_by: IDs of blocking jobs that the viewer may see.
        blocked_by_others: number of other blocking jobs.
        placement: the members and their devices; empty unless the job would start now.
        alternatives: changes with which the job would start now.
        starts: p10, p50 and p90 of the start in seconds from now; None if unknown.
        gate: seconds until a gate of the job opens.
        no_starts: reason of a missing estimate; empty otherwise.
        unlimited: running jobs without a time limit that cause a missing estimate, as far as the
            viewer may see them.
        tasks: number of equal jobs that were planned together.
        tasks_now: number of these jobs that would start in the next round.
        warnings: differences from the original document.
    """

    fits: Fits
    code: str
    text: str
    blocked_by: tuple[int, ...] = ()
    blocked_by_others: int = 0
    unblock: tuple[str, ...] = ()
    placement: tuple[PlacedMember, ...] = ()
    alternatives: tuple[JobChange, ...] = ()
    starts: tuple[float, float, float] | None = None
    gate: float = 0.0
    no_starts: str = ""
    unlimited: tuple[int, ...] = ()
    tasks: int = 1
    tasks_now: int = 0
    warnings: tuple[str, ...] = ()


def plan_job(
    *,
    document: Mapping[str, Any],
    viewer: Viewer,
    submit_context: SubmitContext,
    config: RoundConfig,
    now: datetime,
    warnings: tuple[str, ...] = (),
    tasks: int = 1,
) -> JobPlan:
    """Plan a job, without side effects.

    Args:
        document: the native specification.
        viewer: the submitter.
        submit_context: the submit context.
        config: the settings of rounds.
        now: the current time.
        warnings: parts that an importer could not convert.
        tasks: number of equal jobs submitted at once (an array); the planner tries at most
            ``MOST_TASKS`` of them. The array fits now if all of these start in the next round.

    Raises:
        InvalidJobError: the document is not well formed, or contains an unknown name.
        ForbiddenError: the viewer may not submit the job.
    """
    # Only for advice; checking one node first would cost one more query.
    submit_context.types.count_first()
    try:
        draft = check_draft(document=document, viewer=viewer, submit_context=submit_context)
    except InvalidJobError as error:
        if not {fault.code for fault in error.errors} <= NEVER_CODES:
            raise
        draft = check_draft(
            document=document, viewer=viewer, submit_context=submit_context, forgiven=NEVER_CODES
        )
        fault: FieldError | None = error.errors[0]
    else:
        fault = None
    # If the job is not a gang, the start of its first instance counts.
    draft = parts_of_draft(draft)[0]
    standing = standing_now(config=config, now=now)
    job = _pretended(draft, viewer, standing.snapshot)
    planning = _Planning(_knowing(standing, job, draft), job, document)
    warnings = (*warnings, *draft.warnings)
    if fault is not None:
        return planning.refuse(fault, viewer, submit_context, warnings)
    return planning.answer(viewer, submit_context, warnings, tasks=min(tasks, MOST_TASKS))


class _Planning:
    """One draft against one snapshot; only ``plan_job`` uses it."""

    def __init__(
        self, standing: CachedDecision, job: QueuedJob, document: Mapping[str, Any]
    ) -> None:
        self.document = document
        self.standing = standing
        self.snapshot = standing.snapshot
        self.job = job

    def answer(
        self,
        viewer: Viewer,
        submit_context: SubmitContext,
        warnings: tuple[str, ...],
        *,
        tasks: int,
    ) -> JobPlan:
        """Return the plan (now, later or never) with alternatives that start now."""
        placement, reason = self.try_job(self.job)
        if reason is None:
            tasks_now, refused = self.try_tasks(tasks) if tasks > 1 else (1, None)
            return JobPlan(
                fits=Fits.NOW if refused is None else Fits.LATER,
                starts=(0.0, 0.0, 0.0),
                code=refused.code if refused else "",
                text=refused.text if refused else "It would start in the next round.",
                placement=placement,
                tasks=tasks,
                tasks_now=tasks_now,
                warnings=warnings,
            )
        never = self.why_never()
        told = never or reason
        known = visible_jobs_among(viewer, told.blocked_by)
        plan = JobPlan(
            fits=Fits.LATER if never is None else Fits.NEVER,
            code=told.code,
            text=told.text,
            blocked_by=tuple(blocker for blocker in told.blocked_by if blocker in known),
            blocked_by_others=len(set(told.blocked_by) - known),
            unblock=tuple(map(sentence, told.unblock)),
            alternatives=self.alternatives(told, viewer, submit_context)
            if not told.code.row.is_gate
            else (),
            tasks=tasks,
            warnings=warnings,
        )
        return plan if never is not None else self.with_starts(plan, viewer)

    def try_job(self, job: QueuedJob) -> tuple[tuple[PlacedMember, ...], Reason | None]:
        """Return the placement of ``job`` in the next round, or the reason why it would wait."""
        if not job.demand.has_devices:
            waiting = (*self.snapshot.cpu_queued, job)
            return _outcome(replace(self.snapshot, cpu_queued=waiting), job)
        around = self.standing.without_bystanders(job)
        known = {**around.known, job.id: replace(around.known[job.id], asked=job.demand)}
        return _outcome(replace(around, queued=(*around.queued, job), known=known), job)

    def try_tasks(self, tasks: int) -> tuple[int, Reason | None]:
        """Return how many equal jobs the next round would start, and the reason why not more."""
        around = self.snapshot
        known = around.known[self.job.id]
        jobs = [replace(self.job, id=self.job.id + number) for number in range(tasks)]
        ids = {job.id for job in jobs}
        if not self.job.demand.has_devices:
            around = replace(around, cpu_queued=(*around.cpu_queued, *jobs))
            jobs = []
        together = replace(
            around,
            queued=(*around.queued, *jobs),
            known={**around.known, **dict.fromkeys(ids, replace(known, asked=self.job.demand))},
        )
        result = decide(together, limit=time_limit(POLICY_SECONDS), explain=ids)
        started = ids.intersection(start.job_id for start in (*result.starts, *result.cpu_starts))
        refused = min(ids - started, default=None)
        return len(started), None if refused is None else result.reasons.get(refused)

    def why_never(self) -> Reason | None:
        """Return why the job cannot start on an empty, healthy cluster; None if it can."""
        if self.job.after_failed:
            return closed_gate(self.job, self.snapshot.now)
        job = replace(self.job, held=False, after=(), not_before=None)
        nodes = tuple(replace(n, placeable=True, healthy=True) for n in self.snapshot.nodes)
        ideal = replace(
            self.snapshot, queued=(), holding=(), nodes=nodes, bad_devices=frozenset(),
            cpu_queued=(), cpu_holding=(),
        )  # fmt: skip
        if job.demand.has_devices:
            return _outcome(replace(ideal, queued=(job,)), job)[1]
        return _outcome(replace(ideal, cpu_queued=(job,)), job)[1]

    def refuse(
        self,
        fault: FieldError,
        viewer: Viewer,
        submit_context: SubmitContext,
        warnings: tuple[str, ...],
    ) -> JobPlan:
        """Return the plan of a draft with a fault: never, with alternatives that start now."""
        return JobPlan(
            fits=Fits.NEVER,
            code=fault.code,
            text=fault.message,
            unblock=(fault.remedy,) if fault.remedy else (),
            alternatives=self.alternatives(
                closed_gate(self.job, self.snapshot.now), viewer, submit_context
            ),
            warnings=warnings,
        )

    def alternatives(
        self, reason: Reason | None, viewer: Viewer, submit_context: SubmitContext
    ) -> tuple[JobChange, ...]:
        """Return remedies: changes with which the job is valid and starts now.

        The search ends after ``ALTERNATIVES_SECONDS``.
        """
        if not self.job.demand.has_devices:
            return ()  # the search changes sizes and places of devices
        deadline = time.monotonic() + ALTERNATIVES_SECONDS

        def may(step: JobChange) -> bool:
            try:
                document = amended(self.document, step.changes)
                check_draft(document=document, viewer=viewer, submit_context=submit_context)
            except (AmendError, DomainError):
                return False
            return True

        return seek(
            self.job,
            reason,
            self.room(submit_context),
            lambda job: self.try_job(job)[1],
            may=may,
            go_on=lambda: time.monotonic() <= deadline,
        ).steps

    def room(self, submit_context: SubmitContext) -> OwnerOptions:
        """Return other virtual clusters that the viewer may use, and the existing device types."""
        allowed = submit_context.limited.get(self.job.tenant)
        mine = {
            vc.pk for vc in submit_context.clusters.values() if vc.tenant_id == self.job.tenant
        }
        known = {vc.id: vc for vc in self.snapshot.vcs}
        others = sorted(mine & known.keys() - {self.job.vc})
        return OwnerOptions(
            home=known[self.job.vc],
            clusters=[known[pk] for pk in others if allowed is None or pk in allowed],
            types=sorted(submit_context.types),
        )

    def with_starts(self, plan: JobPlan, viewer: Viewer) -> JobPlan:
        """Return the plan with a start estimate, simulated in limited time."""
        from scheduling.estimates.services.run_times import wait_of_draft  # noqa: PLC0415  brings NumPy

        wait = wait_of_draft(self.snapshot, self.job, seconds=STARTS_SECONDS)
        if wait is None:
            return plan
        now = datetime.fromtimestamp(self.snapshot.now, tz=UTC)
        queued = (*self.snapshot.queued, *self.snapshot.cpu_queued)
        waiting = {one.id: one for one in queued}
        gate = seconds_closed(self.job, now.timestamp(), waiting)
        found = lessons_of([self.job.vc], now=now)[self.job.vc].forecast(
            wait.quantiles, now=now.timestamp(), devices=self.job.demand.devices, soonest=gate
        )
        if found.is_reliable:
            return replace(plan, starts=found.quantiles, gate=gate)
        known = visible_jobs_among(viewer, wait.unlimited)
        return replace(
            plan,
            gate=gate,
            no_starts=no_estimate_text(len(wait.unlimited)),
            unlimited=tuple(one for one in wait.unlimited if one in known),
        )


def _outcome(
    snapshot: ClusterSnapshot, job: QueuedJob
) -> tuple[tuple[PlacedMember, ...], Reason | None]:
    result = decide(snapshot, limit=time_limit(POLICY_SECONDS), explain={job.id})
    for start in (*result.starts, *result.cpu_starts):
        if start.job_id == job.id:
            return start.members, None
    for rejection in result.rejections:
        if rejection.job_id == job.id:
            return (), rejection.reason
    return (), result.reasons[job.id]


def _pretended(draft: ValidatedJob, viewer: Viewer, snapshot: ClusterSnapshot) -> QueuedJob:
    """Return the draft as the newest job of the queue, with an unused ID."""
    vc = draft.virtual_cluster
    ids = [*_ids(snapshot.queued), *_ids(snapshot.holding), *_ids(snapshot.cpu_queued)]
    ids += [held.job.id for held in snapshot.cpu_holding]
    states = dict(
        Job.objects.visible_to(viewer).filter(pk__in=draft.after).values_list("id", "state")
    )
    ended = {state.value for state in TERMINAL} - {JobState.SUCCEEDED.value}
    cap = (
        Membership.objects.unscoped()
        .filter(tenant_id=vc.tenant_id, user_id=viewer.user_id or 0)
        .values_list("max_devices", flat=True)
        .first()
    )
    return QueuedJob(
        id=max(ids, default=0) + 1,
        vc=vc.pk,
        tenant=vc.tenant_id,
        owner=viewer.user_id or 0,
        owner_name=viewer.username,
        priority=draft.priority,
        job_class=draft.job_class,
        demand=draft.demand,
        submitted=snapshot.now,
        not_before=draft.spec.not_before.timestamp() if draft.spec.not_before else None,
        held=draft.spec.held,
        after=tuple(i for i in draft.after if states[i] not in {*ended, JobState.SUCCEEDED}),
        after_failed=tuple(i for i in draft.after if states[i] in ended),
        user_cap=cap,
    )


def _knowing(standing: CachedDecision, job: QueuedJob, draft: ValidatedJob) -> CachedDecision:
    """Return the cached decision with the draft's job facts as declared by its owner."""
    terms = read_terms(terms_document(draft.spec, job.demand.devices), job.demand, job.tenant)
    known = {**standing.snapshot.known, job.id: JobFacts(terms=terms, asked=job.demand)}
    return replace(standing, snapshot=replace(standing.snapshot, known=known))


def _ids(jobs: Iterable[QueuedJob | HoldingJob]) -> Iterator[int]:
    return (job.id for job in jobs)
