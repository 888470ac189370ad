"""Sweeps: sets of jobs over a grid of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body
from portal.api.documents import round_config, submit_context_for
from portal.api.job_explanations import PlanOut, plan_out
from portal.api.schema import IDEMPOTENCY_KEY, PAGE, Op
from portal.api.views import ApiViewSet, Nothing
from scheduling.jobs.models import Sweep
from scheduling.sweeps.queries import sweep_detail, sweep_for, sweeps_of
from scheduling.sweeps.services import plan_sweep, stop_sweep, submit_sweep
from tenants.clock import database_now
from tenants.roles import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepIn:
    """A job, the values of each parameter, and the maximum number of concurrent jobs."""

    job: Mapping[str, Any]
    parameters: Mapping[str, tuple[str, ...]]
    max_parallel: int | None = None


class SweepOut(TypedDict):
    """A sweep; its jobs have the label ``sweep`` with ``label`` as its value."""

    id: Annotated[int, From("pk")]
    name: str
    label: str
    virtual_cluster: Annotated[str, From("virtual_cluster.name")]
    tenant: Annotated[str, From("tenant.name")]
    user: Annotated[str, From("owner.username")]
    parameters: dict[str, list[str]]
    max_parallel: int | None
    jobs: int
    created_at: datetime


class SweepDetailOut(SweepOut):
    """A sweep with its jobs by state, and the IDs of the jobs that are still stored."""

    states: dict[str, int]
    held: int
    job_ids: list[int]


class SweepPlanOut(PlanOut):
    """The plan of a sweep; `fits` covers the jobs that may run concurrently.

    `planned`: the number of jobs that were planned together, at most 200. `planned_now`: the
    number of planned jobs that start in the next round. `placement` belongs to the first job.
    """

    jobs: int
    planned: int
    planned_now: int


class SweepViewSet(ApiViewSet):
    """Jobs submitted together, one for each point of a grid."""

    collection = "sweeps"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=SweepOut, pages=True),
        "create": Op(
            takes=(IDEMPOTENCY_KEY,),
            body=SweepIn,
            answer=SweepDetailOut,
            status=201,
            also={200: SweepDetailOut},
            holds_one_job=True,
        ),
        "plan": Op(body=SweepIn, answer=SweepPlanOut, holds_one_job=True),
        "retrieve": Op(answer=SweepDetailOut),
        "stop": Op(body=Nothing, answer=SweepDetailOut),
    }

    def list(self, request: Request) -> Response:
        """List sweeps whose jobs you may see."""
        return self.page(self.rows(sweeps_of(self.viewer)), sweep_out)

    def create(self, request: Request) -> Response:
        """Submit a sweep of up to 1,000 jobs, all or none, with values as environment variables.

        A repeated `Idempotency-Key` returns the first sweep with 200.
        """
        wanted = read_body(SweepIn, request.data)
        made, is_new = submit_sweep(
            viewer=self.viewer,
            document=wanted.job,
            grid={name: list(values) for name, values in wanted.parameters.items()},
            max_parallel=wanted.max_parallel,
            submit_context=submit_context_for(self.viewer),
            now=database_now(),
            idempotency_key=request.headers.get("Idempotency-Key", ""),
        )
        return Response(self._detail(made.pk), status=201 if is_new else 200)

    @action(detail=False, methods=["post"])
    def plan(self, request: Request) -> Response:
        """Plan all jobs of a sweep together; nothing is stored."""
        wanted = read_body(SweepIn, request.data)
        found = plan_sweep(
            viewer=self.viewer,
            document=wanted.job,
            grid={name: list(values) for name, values in wanted.parameters.items()},
            max_parallel=wanted.max_parallel,
            submit_context=submit_context_for(self.viewer),
            config=round_config(),
            now=database_now(),
        )
        answer = SweepPlanOut(
            **plan_out(found.plan),
            jobs=found.jobs,
            planned=found.plan.tasks,
            planned_now=found.plan.tasks_now,
        )
        return Response(answer)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a sweep."""
        return Response(self._detail(pk))

    @action(detail=True, methods=["post"])
    def stop(self, request: Request, pk: int) -> Response:
        """Stop all jobs of a sweep."""
        read_body(Nothing, request.data)
        stop_sweep(sweep=sweep_for(self.viewer, pk), viewer=self.viewer, now=database_now())
        return Response(self._detail(pk))

    def _detail(self, pk: int) -> SweepDetailOut:
        found = sweep_detail(self.viewer, pk)
        return {
            **sweep_out(found.sweep),
            "states": dict(found.states),
            "held": sum(job.held for job in found.jobs),
            "job_ids": [job.id for job in found.jobs],
        }


sweep_out = Body(SweepOut, Sweep)
