"""Grids, profiles and plans of one job, for its page, REST and the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduling.core.jobspec import parse_stored
from scheduling.core.messages import sentence
from scheduling.core.round.parallel_plans import (
    GridRow,
    PlanSource,
    barred_plans,
    measured_seconds,
    shape_of,
)
from scheduling.jobs.models import LIVE_STATES, Job
from scheduling.jobs.queries.jobs import visible_job
from scheduling.parallelism.models import AttemptPlan, ModelProfile
from scheduling.rounds.snapshot.grid_tables import plan_runs, profiled_grids
from tenants.errors import NotFoundError
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class GridView:
    """One grid of a job.

    Attributes:
        type: device type.
        devices: number of devices.
        stages: number of pipeline stages.
        state: state of the grid: possible, too-large, not-profiled ...; ``barred`` if its plan
            is not used again.
        reason: the state as a sentence; empty if the grid is possible.
        shape: the plan in short, such as ``2 x (4 data)``; empty without a plan.
        predicted: predicted seconds per step; None without a plan.
        measured: measured seconds per step; None without enough steps.
        samples_per_second: throughput by the measured time, else by the predicted one.
        fullest_bytes: memory of a device of the fullest stage; None if unknown.
        is_running: whether the job runs under this plan.
    """

    type: str
    devices: int
    stages: int
    state: str
    reason: str
    shape: str
    predicted: float | None
    measured: float | None
    samples_per_second: float | None
    fullest_bytes: float | None
    is_running: bool
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The plan of one attempt.

    Attributes:
        attempt: number of the attempt.
        at: start of the attempt.
        ended_at: its end; None while it runs.
        type: device type.
        devices: number of devices.
        shape: the plan in short.
        source: origin of the plan.
        predicted: predicted seconds per step; None without an estimate.
        measured: measured seconds per step; None before the first report.
    """

    attempt: int
    at: datetime
    ended_at: datetime | None
    type: str
    devices: int
    shape: str
    source: str
    predicted: float | None
    measured: float | None
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """The profile of the job's model on one device type.

    Attributes:
        type: device type.
        version: versions of the profile and of PyTorch; empty before the measurement.
        measured_at: None while ``job`` measures, or if it failed.
        job: ID of the job that measures or has measured, if the viewer's job exists still.
        seconds: duration of the measurement; None before it.
    """

    type: str
    version: str
    measured_at: datetime | None
    job: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParallelism:
    """Hybrid parallelism of one job.

    Attributes:
        batch: samples of a step.
        why: why the newest plan was chosen, as a sentence.
        grids: by type, devices and stages.
        plans: plans of the attempts, the newest first.
        profiles: by type.
        in_force: the plan of the running attempt, or None.
    """

    fingerprint: str
    batch: int
    micro_batches: int
    schedule: str
    why: str
    grids: tuple[GridView, ...]
    plans: tuple[PlanView, ...]
    profiles: tuple[ProfileView, ...]

    @property
    def in_force(self) -> PlanView | None:
        """The plan of the running attempt, or None."""
        newest = self.plans[0] if self.plans else None
        return newest if newest is not None and newest.ended_at is None else None


def parallelism_of_job(viewer: Viewer, job_id: int) -> JobParallelism:
    """Return the hybrid parallelism of a job, in at most five queries.

    Raises:
        NotFoundError: unknown job, not visible to the viewer, or a job without ``parallel``.
    """
    job = visible_job(viewer, job_id)
    parallel = parse_stored(job.spec).parallel
    if parallel is None:
        raise NotFoundError(sentence("not-hybrid", job=job_id))
    model = (job.tenant_id, job.model_fingerprint)
    plans = _plans_of(job)
    in_force = plans[0] if plans and plans[0].ended_at is None else None
    grids = _grids_of(model, parallel.batch, in_force)
    return JobParallelism(
        fingerprint=job.model_fingerprint,
        batch=parallel.batch,
        micro_batches=parallel.micro_batches,
        schedule=parallel.schedule,
        why=_why(plans, grids, is_live=job.state in LIVE_STATES),
        grids=grids,
        plans=plans,
        profiles=_profiles_of(model),
    )


def _grids_of(
    model: tuple[int, str], batch: int, in_force: PlanView | None
) -> tuple[GridView, ...]:
    rows = profiled_grids("default", [model]).get(model, ())
    runs = plan_runs("default", [model]).get(model, ()) if rows else ()
    barred, measured = barred_plans(runs), measured_seconds(runs)
    running = (in_force.type, in_force.plan["id"]) if in_force is not None else None

    def view(row: GridRow) -> GridView:
        key = row.type, row.plan_id
        bar = barred.get(key) if row.plan else None
        state = "barred" if bar is not None else row.state
        seconds = measured.get(key, row.step_seconds) if row.plan else 0.0
        reason = "" if state == "possible" else sentence(f"parallel-grid-{bar or state}")
        return GridView(
            type=row.type,
            devices=row.devices,
            stages=row.stages,
            state=state,
            reason=reason,
            shape=shape_of(row.plan),
            predicted=row.step_seconds or None,
            measured=measured.get(key) if row.plan else None,
            samples_per_second=batch / seconds if seconds else None,
            fullest_bytes=max(row.stage_bytes, default=None),
            is_running=bool(row.plan) and key == running,
            plan=row.plan,
        )

    return tuple(view(row) for row in rows)


def _plans_of(job: Job) -> tuple[PlanView, ...]:
    rows = (
        AttemptPlan.objects.unscoped()
        .filter(attempt__job=job)
        .order_by("-attempt__number")
        .select_related("attempt", "attempt__progress")[:100]
    )
    return tuple(
        PlanView(
            attempt=row.attempt.number,
            at=row.attempt.created_at,
            ended_at=row.attempt.ended_at,
            type=row.device_type,
            devices=row.attempt.devices,
            shape=shape_of(row.plan),
            source=row.source,
            predicted=row.predicted,
            measured=_step_seconds(row),
            plan=row.plan,
        )
        for row in rows
    )


def _step_seconds(row: AttemptPlan) -> float | None:
    progress = getattr(row.attempt, "progress", None)
    if progress is None or not progress.steps:
        return None
    return float(progress.seconds / progress.steps)


def _profiles_of(model: tuple[int, str]) -> tuple[ProfileView, ...]:
    tenant, fingerprint = model
    rows = ModelProfile.objects.unscoped().filter(tenant=tenant, fingerprint=fingerprint)
    return tuple(
        ProfileView(
            type=row.device_type,
            version=row.version,
            measured_at=row.measured_at,
            job=row.job_id,
            seconds=row.document.get("seconds"),
        )
        for row in rows.order_by("device_type")
    )


def _why(plans: Sequence[PlanView], grids: Sequence[GridView], *, is_live: bool) -> str:
    """Explain the newest plan in one sentence."""
    if not plans:
        return sentence("plan-none-yet" if is_live else "plan-none")
    newest = plans[0]
    facts: dict[str, str | int] = {
        "shape": newest.shape,
        "devices": newest.devices,
        "device_type": newest.type,
    }
    if newest.source not in (PlanSource.PROFILED, PlanSource.MEASURED):
        return sentence(f"plan-{newest.source}", **facts)
    same = [
        grid
        for grid in grids
        if (grid.type, grid.devices) == (newest.type, newest.devices) and grid.samples_per_second
    ]
    own = next((grid for grid in same if grid.plan == newest.plan), None)
    others = [grid for grid in same if grid is not own and grid.state != "barred"]
    second = max(others, key=lambda grid: grid.samples_per_second or 0.0, default=None)
    if own is None or second is None or not own.samples_per_second:
        return sentence("plan-only", **facts)
    gain = own.samples_per_second / (second.samples_per_second or 1.0) - 1.0
    return sentence(
        "plan-fastest" if gain >= 0 else "plan-was-fastest",
        **facts,
        rate=f"{own.samples_per_second:,.4g}",
        gain=f"{abs(gain):.0%}",
        second=second.shape,
    )
