"""Sweeps for pages and REST: the list, and details with jobs by state and by point."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from scheduling.core.lifecycle import LIVE
from scheduling.core.messages import sentence
from scheduling.core.sweeps import LABEL
from scheduling.jobs.models import Job, JobQuerySet, Sweep
from scheduling.jobs.queries.jobs import shown_state
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """The job of one point; ``held`` while the concurrency limit holds it."""

    id: int
    name: str
    state: str
    held: bool
    point: Mapping[str, str]

    @property
    def shown_state(self) -> str:
        """The displayed state, as in the list of jobs."""
        return shown_state(self.state, held=self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDetail:
    """A sweep with its jobs that still exist, and their number by state."""

    sweep: Sweep
    jobs: tuple[SweepJob, ...]
    states: Mapping[str, int]

    @property
    def live(self) -> int:
        """Jobs that have not ended."""
        return sum(count for state, count in self.states.items() if state in LIVE)


def sweeps_of(viewer: Viewer) -> QuerySet[Sweep]:
    """Return the sweeps whose jobs the viewer may see, newest first."""
    rows: QuerySet[Sweep] = Sweep.objects.visible_to(viewer)
    tenants = viewer.tenant_ids(Permission.VIEW_JOBS)
    if tenants is not None:
        rows = rows.filter(tenant_id__in=tenants)
    return rows.select_related("owner", "virtual_cluster", "tenant").order_by("-id")


def sweep_for(viewer: Viewer, pk: int) -> Sweep:
    """Load one sweep.

    Raises:
        NotFoundError: the sweep does not exist, or the viewer may not see it.
    """
    found = sweeps_of(viewer).filter(pk=pk).first()
    if found is None:
        raise NotFoundError(sentence("no-such-sweep"), field="id", value=pk)
    return found


def sweep_detail(viewer: Viewer, pk: int) -> SweepDetail:
    """Load one sweep with its jobs, in two queries.

    Raises:
        NotFoundError: the sweep does not exist, or the viewer may not see it.
    """
    sweep = sweep_for(viewer, pk)
    names = tuple(sweep.parameters)
    rows = jobs_of(sweep).order_by("id").values_list("id", "name", "state", "held", "spec")
    jobs = tuple(
        SweepJob(
            id=job_id,
            name=name,
            state=state,
            held=held and state == "queued",
            point=_point(spec, names),
        )
        for job_id, name, state, held, spec in rows
    )
    return SweepDetail(sweep=sweep, jobs=jobs, states=Counter(job.state for job in jobs))


def jobs_of(sweep: Sweep) -> JobQuerySet:
    """Return the existing jobs of a sweep; the caller has checked access to the sweep.

    A job that was moved to another virtual cluster of the tenant remains in its sweep.
    """
    rows: JobQuerySet = Job.objects.unscoped()
    rows = rows.filter(pk__gte=sweep.first_job, pk__lte=sweep.last_job)
    label = {f"labels__{LABEL}": sweep.label}
    return rows.filter(tenant_id=sweep.tenant_id, owner_id=sweep.owner_id, **label)


def _point(spec: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Return the values of a job's point; empty if its environment lacks one of them."""
    first: Mapping[str, Any] = next(iter(spec["roles"].values()), {})
    env = first.get("env") or {}
    return {name: str(env[name]) for name in names} if all(name in env for name in names) else {}
