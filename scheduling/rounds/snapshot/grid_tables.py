"""Tables of the best grids of live hybrid jobs, from profiles and earlier runs.

A round without hybrid jobs makes no query; otherwise two, and one more if any has a profile.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypedDict

from django.db.models import Q

from scheduling.core.jobspec import ProfileUse, stored_parallel
from scheduling.core.policy_interface import GridTable
from scheduling.core.round.parallel_plans import GridRow, PlanRun, best_grids, rows_from_json
from scheduling.jobs.models import Job
from scheduling.parallelism.models import AttemptPlan, ModelProfile
from scheduling.rounds.snapshot.live_jobs import LiveJobRow

MOST_RUNS: Final = 2_000
"""Maximum number of earlier runs that a round reads, the newest of all fingerprints."""

Model = tuple[int, str]
"""Tenant and fingerprint."""


class PlanTables(TypedDict):
    """Fields of ``ClusterSnapshot`` about the plans of hybrid jobs."""

    grids: Mapping[int, GridTable]
    given_sizes: Mapping[int, tuple[int, ...]]


def plan_tables(
    using: str, rows: Sequence[LiveJobRow], node_devices: Mapping[str, int]
) -> PlanTables:
    """Return the table of each live hybrid job with a profile, and the sizes of its owner's plan.

    Both are by job ID. A table is empty if no plan can run. Jobs that measure a profile have none.

    Args:
        using: the database alias to read from.
        rows: the live jobs.
        node_devices: devices of the largest node by type.
    """
    hybrid = [row for row in rows if row.model_fingerprint]
    models = {(row.tenant_id, row.model_fingerprint) for row in hybrid}
    if not models:
        return {"grids": {}, "given_sizes": {}}
    grids, runs = profiled_grids(using, models), plan_runs(using, models)
    tables = {
        model: best_grids(found, runs.get(model, ()), node_devices)
        for model, found in grids.items()
    }
    keyed = {row.id: (row.tenant_id, row.model_fingerprint) for row in hybrid}
    able = {job_id: tables[model] for job_id, model in keyed.items() if model in tables}
    declared = _declared(using, able) if able else {}
    return {
        "grids": {job_id: able[job_id] for job_id in declared},
        "given_sizes": {job_id: sizes for job_id, sizes in declared.items() if sizes},
    }


def _declared(using: str, ids: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Return the sizes of the owner's plan of each job that does not measure a profile."""
    found: dict[int, tuple[int, ...]] = {}
    jobs = Job.objects.unscoped().using(using).filter(pk__in=sorted(ids))
    for job_id, document in jobs.values_list("id", "spec__parallel"):
        parallel = stored_parallel(document)
        if parallel.profile is not ProfileUse.ONLY:
            found[job_id] = parallel.given_sizes()
    return found


def profiled_grids(using: str, models: Collection[Model]) -> Mapping[Model, tuple[GridRow, ...]]:
    """Return the estimated grids of the profiles of some models, of all device types."""
    found: dict[Model, tuple[GridRow, ...]] = defaultdict(tuple)
    for tenant, fingerprint, kind, rows in (
        ModelProfile.objects.unscoped()
        .using(using)
        .filter(_is_one_of(models), measured_at__isnull=False)
        .order_by("device_type")
        .values_list("tenant_id", "fingerprint", "device_type", "grids")
    ):
        # A profile whose grids could not be computed does not keep a job from running.
        if rows:
            found[tenant, fingerprint] += rows_from_json(kind, rows)
    return found


def plan_runs(using: str, models: Collection[Model]) -> Mapping[Model, tuple[PlanRun, ...]]:
    """Return the newest attempts of some models that had a plan."""
    found: dict[Model, list[PlanRun]] = defaultdict(list)
    for tenant, fingerprint, kind, plan_id, predicted, steps, seconds, failure in (
        AttemptPlan.objects.unscoped().using(using)
        .filter(_is_one_of(models))
        .order_by("-attempt_id")
        .values_list(
            "tenant_id", "fingerprint", "device_type", "plan_id", "predicted",
            "attempt__progress__steps", "attempt__progress__seconds", "attempt__failure_class",
        )[:MOST_RUNS]
    ):  # fmt: skip
        run = PlanRun(
            type=kind,
            plan_id=plan_id,
            predicted=predicted,
            steps=steps or 0,
            seconds=seconds or 0.0,
            failure_class=failure,
        )
        found[tenant, fingerprint].append(run)
    return {model: tuple(runs) for model, runs in found.items()}


def _is_one_of(models: Collection[Model]) -> Q:
    """Match the models; a fingerprint of another tenant is another model."""
    return Q(
        *(Q(tenant=tenant, fingerprint=fingerprint) for tenant, fingerprint in sorted(models)),
        _connector=Q.OR,
    )
