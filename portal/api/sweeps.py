"""Sweeps: sets of jobs over a grid of parameters."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
from scheduling.core.early_stopping import (
    LEAST_REDUCTION,
    MOST_REDUCTION,
    EarlyStop,
    StopRule,
)
from scheduling.core.objectives import Goal, Objective
from scheduling.core.sweeps import SweepOptions
from scheduling.jobs.models import Sweep
from scheduling.sweeps.queries import sweep_detail, sweep_for, sweeps_of
from scheduling.sweeps.services import plan_sweep, stop_sweep, submit_sweep
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission
from workers.sweep_results import RunResult, sweep_results


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveIn:
    """The metric that ranks the runs, and its better direction, `min` or `max`."""

    metric: str
    goal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopIn:
    """Early stops of runs by the objective.

    `rule`: `median`, or `asha` (asynchronous successive halving). No run ends before
    `first_step`. `reduction`: with `asha`, the best 1/`reduction` of the runs continue from each
    rung, and the next rung is at `reduction` times the step.
    """

    rule: str
    first_step: int
    reduction: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchIn:
    """A random search: the number of its points, and a seed that repeats them."""

    samples: int
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepIn:
    """A job, the values of each parameter, and the maximum number of concurrent jobs.

    Without `search` there is a job for each point of the grid. In a random search a parameter may
    have one range instead of values: `uniform(0, 1)`, `loguniform(1e-4, 1e-1)`, `integer(1, 8)`.
    """

    job: Mapping[str, Any]
    parameters: Mapping[str, tuple[str, ...]]
    max_parallel: int | None = None
    search: SearchIn | None = None
    objective: ObjectiveIn | None = None
    early_stop: EarlyStopIn | None = None

    @property
    def options(self) -> SweepOptions:
        """Return the options.

        Raises:
            InvalidError: one of them is not valid.
        """
        return sweep_options(
            samples=self.search.samples if self.search else None,
            seed=self.search.seed if self.search else 0,
            objective=(self.objective.metric, self.objective.goal) if self.objective else None,
            early=asdict(self.early_stop) if self.early_stop else None,
        )


def sweep_options(
    *,
    samples: int | None,
    seed: int,
    objective: tuple[str, str] | None,
    early: Mapping[str, Any] | None,
) -> SweepOptions:
    """Return the options of a sweep from their parts, as sent.

    Args:
        samples: points of a random search; None for all points of a grid.
        seed: of the random search.
        objective: metric and goal; None if runs are not ranked.
        early: arguments of ``EarlyStop``; None for none.

    Raises:
        InvalidError: the goal, the rule or a number is not valid.
    """
    if objective is not None and objective[1] not in list(Goal):
        raise InvalidError(
            "This is not a valid goal.",
            field="objective.goal",
            value=objective[1][:40],
            remedy="Use min or max.",
        )
    try:
        rule = EarlyStop(**{**early, "rule": StopRule(early["rule"])}) if early else None
    except ValueError:
        raise InvalidError(
            "This is not a valid early stop.",
            field="early_stop",
            value="",
            remedy=f"Use the rule median or asha, a first_step from 1, and a reduction of "
            f"{LEAST_REDUCTION} to {MOST_REDUCTION}.",
        ) from None
    return SweepOptions(
        samples=samples,
        seed=seed,
        objective=Objective(objective[0], Goal(objective[1])) if objective else None,
        early_stop=rule,
    )


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
    options: dict[str, Any]
    jobs: int
    created_at: datetime


class SweepRunOut(TypedDict):
    """A run: its point, the best value and the last step of the objective, and its device-hours.

    `ended_early`: an early stop of the sweep stopped it.
    """

    job: Annotated[int, From("job.id")]
    state: Annotated[str, From("job.shown_state")]
    point: Annotated[dict[str, str], From(by=lambda run: dict(run.job.point))]
    best: float | None
    step: int | None
    hours: float
    ended_early: bool


class SweepDetailOut(SweepOut):
    """A sweep with its jobs by state, and the IDs of the jobs that are still stored.

    `runs`: with an objective, the best run first.
    """

    states: dict[str, int]
    held: int
    job_ids: list[int]
    runs: list[SweepRunOut]


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
            options=wanted.options,
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
            options=wanted.options,
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
            "runs": [sweep_run_out(run) for run in sweep_results(found, now=database_now()).runs],
        }


sweep_out = Body(SweepOut, Sweep)
sweep_run_out = Body(SweepRunOut, RunResult)
