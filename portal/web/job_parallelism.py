"""The tab *Parallelism* of a job: its grids as a heat map, the plan in force, and its re-plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.job_context import PARALLELISM, head_context
from portal.web.viewing import PageRequest, page
from scheduling.parallelism.queries import GridView, PlanView, parallelism_of_job

STEPS = 5
"""Number of colours of the heat map."""
STATES = {
    "possible": gettext_lazy("possible"),
    "too-large": gettext_lazy("too large"),
    "too-slow-link": gettext_lazy("link too slow"),
    "not-profiled": gettext_lazy("not profiled"),
    "not-allowed": gettext_lazy("not allowed"),
    "barred": gettext_lazy("barred"),
}
SOURCES = {
    "profiled": gettext_lazy("profile"),
    "measured": gettext_lazy("measurement"),
    "given": gettext_lazy("job document"),
    "replicas": gettext_lazy("replicas"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One cell of the heat map.

    Attributes:
        heat: colour, 1 to ``STEPS``; 0 without a plan.
        state: the state as text.
        is_impossible: whether there are more stages than devices.
    """

    grid: GridView | None
    heat: int = 0
    state: str = ""

    @property
    def is_impossible(self) -> bool:
        """Whether the grid cannot exist, since it has more stages than devices."""
        return self.grid is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMap:
    """The heat map of one device type.

    Attributes:
        columns: numbers of devices.
        rows: number of stages, with a cell for each column.
    """

    type: str
    columns: tuple[int, ...]
    rows: tuple[tuple[int, tuple[GridCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDrawing:
    """One stage of the plan in force.

    Attributes:
        number: index of the stage, from 0.
        layers: its layers as text.
        replicas: ranks of each replica.
    """

    number: int
    layers: str
    replicas: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShown:
    """The plan of one attempt with its comparison.

    Attributes:
        source: origin of the plan as text.
        difference: measured against predicted as text; empty if one is missing.
    """

    plan: PlanView
    source: str
    difference: str


@require_safe
@page
def parallelism(request: PageRequest, job_id: int) -> HttpResponse:
    """Show grids, the plan in force, and predicted and measured step times."""
    context = head_context(request, job_id, PARALLELISM)
    found = parallelism_of_job(request.viewer, job_id)
    in_force = found.in_force
    context |= {
        "found": found,
        "maps": maps_of(found.grids),
        "grids": [(grid, STATES.get(grid.state, grid.state)) for grid in found.grids],
        "stages": stages_of(in_force) if in_force is not None else (),
        "plans": [_shown(plan) for plan in found.plans],
    }
    if request.wants_part:
        return request.render("job/_parallelism_parts.html", context)
    return request.render("job/parallelism.html", context)


def maps_of(grids: Sequence[GridView]) -> tuple[GridMap, ...]:
    """Return one heat map for each type; colours compare all types."""
    most = max((grid.samples_per_second or 0.0 for grid in grids), default=0.0)
    maps = []
    for kind in dict.fromkeys(grid.type for grid in grids):
        own = {(grid.stages, grid.devices): grid for grid in grids if grid.type == kind}
        columns = tuple(sorted({devices for _, devices in own}))
        rows = tuple(
            (stages, tuple(_cell(own.get((stages, devices)), most) for devices in columns))
            for stages in sorted({stages for stages, _ in own})
        )
        maps.append(GridMap(type=kind, columns=columns, rows=rows))
    return tuple(maps)


def _cell(grid: GridView | None, most: float) -> GridCell:
    if grid is None:
        return GridCell(grid=None)
    rate = grid.samples_per_second
    heat = min(STEPS, 1 + int(STEPS * rate / most)) if rate and grid.state != "barred" else 0
    return GridCell(grid=grid, heat=heat, state=str(STATES.get(grid.state, grid.state)))


def stages_of(plan: PlanView) -> tuple[StageDrawing, ...]:
    """Return the stages of a plan with the ranks of their devices."""
    ranks, found = count(), []
    for number, stage in enumerate(plan.plan["stages"]):
        replicas = tuple(
            tuple(next(ranks) for _ in range(stage["tensor"])) for _ in range(stage["data"])
        )
        layers = _("layers %(first)s to %(last)s") % {
            "first": stage["first"],
            "last": stage["last"] - 1,
        }
        found.append(StageDrawing(number=number, layers=layers, replicas=replicas))
    return tuple(found)


def _shown(plan: PlanView) -> PlanShown:
    difference = ""
    if plan.predicted and plan.measured:
        share = plan.measured / plan.predicted - 1.0
        text = _("%(share)s slower") if share >= 0 else _("%(share)s faster")
        difference = text % {"share": words.percent(abs(share))}
    return PlanShown(
        plan=plan, source=str(SOURCES.get(plan.source, plan.source)), difference=difference
    )
