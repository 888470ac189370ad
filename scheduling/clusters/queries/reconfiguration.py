"""Effect of a changed specification on current jobs: jobs that borrow or regain a guarantee."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scheduling.clusters.queries.isolation_fit import lost_places
from scheduling.core.cells import Bind, CellEngine, ClusterSpec, RequestError, SpecError
from scheduling.core.cells.reconfiguration import Reconfiguration, dry_run, judge
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import JobState
from scheduling.core.round.gang_requests import job_of_group, requests_of
from scheduling.core.values import QueuedJob
from scheduling.jobs.models import Job
from scheduling.runs.queries.running import health_now, running_now
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedJob:
    """A job that a change affects.

    Attributes:
        name: empty if the viewer may not see the job.
        user: empty if the viewer may not see the job.
    """

    job_id: int
    name: str
    user: str
    virtual_cluster: str
    tenant: str
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of a change on jobs, from a dry run.

    Attributes:
        change: the result of the cell engine, in gangs and cells.
        loses: guaranteed running jobs that would borrow; they continue.
        regains: borrowing running jobs that would be guaranteed.
        no_longer_fit: waiting jobs that fit their virtual cluster now and would never fit again.
    """

    change: Reconfiguration
    loses: tuple[AffectedJob, ...] = ()
    regains: tuple[AffectedJob, ...] = ()
    no_longer_fit: tuple[AffectedJob, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing would change."""
        change = self.change
        return change.fits and not any(
            (change.promises, change.pins, change.nodes_added, change.nodes_removed)
        )


def effect_of(
    viewer: Viewer,
    before: ClusterSpec,
    after: ClusterSpec,
    tenants: Mapping[str, int] | None = None,
    levels: Mapping[str, str] | None = None,
) -> Effect:
    """Return the effect on current jobs, in a fixed number of queries; nothing is written.

    Args:
        viewer: a user who may edit virtual clusters, since the result covers all of them.
        before: the current specification.
        after: the new specification.
        tenants: tenant ID of virtual clusters that are not stored yet, by name.
        levels: new minimum isolation level of virtual clusters whose level changes, by name.

    Raises:
        ForbiddenError: the viewer may not edit virtual clusters.
        SpecError: ``after`` is not valid.
    """
    viewer.require(Permission.EDIT_VC, what="virtual clusters")
    change = fit_of(before, after, tenants, levels)
    if not change.fits:
        return Effect(change=change)
    change = dry_run(before, after, running_now(), health=health_now())
    loses, regains = _jobs_of(change.loses), _jobs_of(change.regains)
    dropped = _no_longer_fit(before, after)
    shown = _affected(viewer, {*loses, *regains, *dropped})
    return Effect(
        change=change,
        loses=tuple(shown[job] for job in loses if job in shown),
        regains=tuple(shown[job] for job in regains if job in shown),
        no_longer_fit=tuple(shown[job] for job in dropped if job in shown),
    )


def fit_of(
    before: ClusterSpec,
    after: ClusterSpec,
    tenants: Mapping[str, int] | None = None,
    levels: Mapping[str, str] | None = None,
) -> Reconfiguration:
    """Return the part of ``effect_of`` without running jobs, which needs no engine with gangs.

    Raises:
        SpecError: ``after`` is not valid.
    """
    change = judge(before, after)
    if not change.fits:
        return change
    lost = lost_places(before, after, tenants, levels)
    return replace(change, fits=not lost, witnesses=lost)


def _jobs_of(groups: Iterable[str]) -> list[int]:
    return sorted({job_of_group(group) for group in groups})


def _affected(viewer: Viewer, job_ids: set[int]) -> Mapping[int, AffectedJob]:
    visible = viewer.tenant_ids(Permission.VIEW_JOBS)
    rows = Job.objects.unscoped().filter(pk__in=job_ids)
    return {
        job_id: AffectedJob(
            job_id=job_id,
            name=name if visible is None or tenant_id in visible else "",
            user=user if visible is None or tenant_id in visible else "",
            virtual_cluster=vc,
            tenant=viewer.name_of(tenant_id),
            devices=devices,
        )
        for job_id, name, user, vc, tenant_id, devices in rows.values_list(
            "id", "name", "owner__username", "virtual_cluster__name", "tenant_id", "devices"
        )
    }


def _no_longer_fit(before: ClusterSpec, after: ClusterSpec) -> list[int]:
    """Return waiting guaranteed jobs that fit the empty cluster only before the change.

    Equal demands are tried once.
    """
    alike: dict[tuple[str, Demand], list[int]] = defaultdict(list)
    for job_id, vc, demand in (
        Job.objects.unscoped()
        .filter(state=JobState.QUEUED, job_class=JobClass.GUARANTEED)
        .order_by("id")
        .values_list("id", "virtual_cluster__name", "demand")
    ):
        alike[vc, Demand.from_json(demand)].append(job_id)
    if not alike:
        return []
    try:
        old, new = CellEngine(before), CellEngine(after)
    except SpecError:
        return []
    return sorted(
        job_id
        for (vc, demand), ids in alike.items()
        if _fits(old, vc, demand) and not _fits(new, vc, demand)
        for job_id in ids
    )


def _fits(engine: CellEngine, vc: str, demand: Demand) -> bool:
    """Return whether the gang starts in the engine, which is empty before and afterwards."""
    placed = []
    try:
        for request in requests_of(_question(demand), vc):
            decision = engine.schedule(request)
            if not isinstance(decision, Bind):
                return False
            engine.commit(decision)
            placed.append(request.group)
    except RequestError:
        return False
    finally:
        for group in placed:
            engine.release(group)
    return True


def _question(demand: Demand) -> QueuedJob:
    return QueuedJob(
        id=0,
        vc=0,
        tenant=0,
        owner=0,
        owner_name="",
        priority=0,
        job_class=JobClass.GUARANTEED,
        demand=demand,
        submitted=0.0,
    )
