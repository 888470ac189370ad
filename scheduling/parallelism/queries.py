"""Grids, profiles and plans of one job, for its page, REST and the command line."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from django.db.models import Min

from scheduling.clusters.models import Device
from scheduling.core.jobspec import parse_stored
from scheduling.core.messages import sentence
from scheduling.core.performance.batch_profiles import BatchProfileError, read_batch_profile
from scheduling.core.performance.reverts import STEPS_TO_JUDGE
from scheduling.core.round.parallel_plans import (
    BATCHES_PREFIX,
    GridRow,
    PlanRun,
    PlanSource,
    barred_plans,
    measured_seconds,
    shape_of,
)
from scheduling.core.round.plan_accuracy import PlanAccuracy, accuracy_by_type
from scheduling.jobs.models import LIVE_STATES, Job
from scheduling.jobs.queries.jobs import visible_job
from scheduling.parallelism.models import AttemptPlan, ModelProfile
from scheduling.parallelism.sentences import why_this_plan
from scheduling.parallelism.views import (
    GridView,
    JobParallelism,
    PlanView,
    ProfiledPace,
    ProfileView,
)
from scheduling.rounds.snapshot.grid_tables import plan_runs, profiled_grids
from scheduling.runs.models import Member
from tenants.errors import NotFoundError
from tenants.viewers import Viewer

MOST_JUDGED: Final = 500
"""Maximum number of runs in the accuracy of predictions, the newest of all types."""


def parallelism_of_job(viewer: Viewer, job_id: int) -> JobParallelism:
    """Return the hybrid parallelism of a job, in at most eight queries.

    Raises:
        NotFoundError: unknown job, not visible to the viewer, or a job without ``parallel``.
    """
    job = visible_job(viewer, job_id)
    spec = parse_stored(job.spec)
    parallel, elastic = spec.parallel, spec.elastic
    if parallel is None:
        raise NotFoundError(sentence("not-hybrid", job=job_id))
    model = (job.tenant_id, job.model_fingerprint)
    plans = _plans_of(job)
    in_force = plans[0] if plans and plans[0].ended_at is None else None
    profiles = _profile_rows(model)
    grids = _grids_of(model, parallel.batch, in_force, _memory_of(profiles))
    return JobParallelism(
        fingerprint=job.model_fingerprint,
        batch=parallel.batch,
        micro_batches=parallel.micro_batches,
        schedule=parallel.schedule,
        why=why_this_plan(plans, grids, is_live=job.state in LIVE_STATES),
        grids=grids,
        plans=plans,
        accuracy=accuracy_on(job.tenant_id, {grid.type for grid in grids}),
        profiles=tuple(_profile_view(row) for row in profiles),
        sizes=(job.devices, job.devices) if elastic is None else elastic.bounds(job.devices),
        devices=_devices_of(job, in_force.attempt) if in_force is not None else (),
    )


def _grids_of(
    model: tuple[int, str],
    batch: int,
    in_force: PlanView | None,
    memory: Mapping[str, float],
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
        fullest = max(row.stage_bytes, default=None)
        limit = memory.get(row.type)
        source = "measured" if key in measured else "profiled"
        return GridView(
            type=row.type,
            devices=row.devices,
            stages=row.stages,
            state=state,
            reason=_reason(bar or state, fullest, limit),
            shape=shape_of(row.plan),
            predicted=row.step_seconds or None,
            measured=measured.get(key) if row.plan else None,
            samples_per_second=batch / seconds if seconds else None,
            source=("projected" if row.is_projected and source == "profiled" else source)
            if row.plan
            else "",
            fullest_bytes=fullest,
            fullest_stage=row.stage_bytes.index(fullest) if fullest is not None else None,
            limit_bytes=limit,
            is_running=bool(row.plan) and key == running,
            plan=row.plan,
            stage_bytes=row.stage_bytes,
            stage_seconds=row.stage_seconds,
        )

    return tuple(view(row) for row in rows)


def accuracy_on(tenant_id: int, types: Collection[str]) -> tuple[PlanAccuracy, ...]:
    """Return the accuracy of the newest predictions from profiles in a tenant, by device type.

    Args:
        tenant_id: the tenant; predictions of other tenants never count.
        types: the device types.
    """
    if not types:
        return ()
    rows = (
        AttemptPlan.objects.unscoped()
        .filter(
            tenant=tenant_id,
            device_type__in=sorted(types),
            source=PlanSource.PROFILED,
            predicted__isnull=False,
            attempt__progress__steps__gte=STEPS_TO_JUDGE,
        )
        .order_by("-attempt_id")
        .values_list(
            "device_type",
            "plan_id",
            "predicted",
            "attempt__progress__steps",
            "attempt__progress__seconds",
        )[:MOST_JUDGED]
    )
    return accuracy_by_type(
        PlanRun(type=kind, plan_id=plan, predicted=predicted, steps=steps, seconds=seconds)
        for kind, plan, predicted, steps, seconds in rows
    )


def profiled_paces(viewer: Viewer, job_id: int) -> tuple[ProfiledPace, ...]:
    """Return the throughputs of one device of each type, by the profiles of variable batches.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    job = visible_job(viewer, job_id)
    rows = (
        ModelProfile.objects.unscoped()
        .filter(
            tenant=job.tenant_id,
            fingerprint=job.model_fingerprint,
            fingerprint__startswith=BATCHES_PREFIX,
            measured_at__isnull=False,
        )
        .order_by("device_type")
        .values_list("device_type", "measured_at", "document")
    )
    found = []
    for kind, measured_at, document in rows:
        try:
            points = read_batch_profile(document, device_type=kind).points
        except BatchProfileError:
            continue  # of another version
        if measured_at is None:
            continue
        best = max(points, key=lambda one: one.batch * one.steps / one.seconds)
        pace = best.batch * best.steps / best.seconds
        found.append(
            ProfiledPace(
                type=kind, measured_at=measured_at, batch=best.batch, samples_per_second=pace
            )
        )
    return tuple(found)


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


def _profile_rows(model: tuple[int, str]) -> Sequence[ModelProfile]:
    tenant, fingerprint = model
    rows = ModelProfile.objects.unscoped().filter(tenant=tenant, fingerprint=fingerprint)
    return list(rows.defer("grids").order_by("device_type"))


def _profile_view(row: ModelProfile) -> ProfileView:
    return ProfileView(
        type=row.device_type,
        version=row.version,
        measured_at=row.measured_at,
        job=row.job_id,
        seconds=row.document.get("seconds"),
    )


def _memory_of(profiles: Sequence[ModelProfile]) -> Mapping[str, float]:
    """Return the memory of a device by type: as its profile reports it, else the inventory's."""
    if not profiles:
        return {}
    least = (
        Device.objects.filter(retired_at=None, memory_bytes__gt=0)
        .values_list("device_type")
        .order_by()
        .annotate(least=Min("memory_bytes"))
    )
    reported = {row.device_type: row.document.get("device_memory") for row in profiles}
    return dict(least) | {kind: size for kind, size in reported.items() if size}


def _reason(state: str, fullest: float | None, limit: float | None) -> str:
    """Return why a grid cannot be used as a sentence; empty if it can."""
    if state == "possible":
        return ""
    if state == "too-large" and fullest is not None and limit:
        return sentence("grid-needs-memory", needed=_gigabytes(fullest), limit=_gigabytes(limit))
    return sentence(f"parallel-grid-{state}")


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.3g}"


def _devices_of(job: Job, attempt: int) -> tuple[tuple[str, int], ...]:
    members = Member.objects.filter(attempt__job=job, attempt__number=attempt)
    rows = members.order_by("node_rank").values_list("node__name", "devices")
    return tuple((node, index) for node, indices in rows for index in indices)
