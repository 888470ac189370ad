"""The tab *Parallelism* of a job: its grids as a heat map, the plan in force, and its re-plans."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.job_context import PARALLELISM, head_context
from portal.web.job_schedule import schedule_of
from portal.web.viewing import PageRequest, page
from scheduling.core.round.parallel_plans import shape_of
from scheduling.parallelism.queries import parallelism_of_job
from scheduling.parallelism.views import GridView, JobParallelism, PlanView

STEPS = 5
"""Number of colours of the heat map."""
MOST_COLUMNS = 6
"""Maximum number of columns of a heat map of several types."""
STATES = {
    "possible": gettext_lazy("possible"),
    "too-large": gettext_lazy("too large"),
    "too-slow-link": gettext_lazy("link too slow"),
    "not-profiled": gettext_lazy("not profiled"),
    "not-allowed": gettext_lazy("not allowed"),
    "barred": gettext_lazy("barred"),
}
FIGURES = {
    "measured": gettext_lazy("measured"),
    "projected": gettext_lazy("projected"),
}
"""Remarks on a throughput; none if it follows from measurements of this type and size."""
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
        grid: the grid; None if there are more stages than devices.
        heat: colour, 1 to ``STEPS``; 0 without a plan.
        state: the state as text.
        remark: ``measured`` or ``projected`` as text; empty without a remark.
    """

    grid: GridView | None
    heat: int = 0
    state: str = ""
    remark: str = ""

    @property
    def memory(self) -> int | None:
        """Memory of the fullest stage in percent of a device, at most 100; None if unknown."""
        share = self.grid.memory_share if self.grid is not None else None
        return None if share is None else min(100, round(100 * share))

    @property
    def tone(self) -> str:
        """The class of the cell: colour, does not fit, barred, or unknown."""
        if self.heat:
            return f"u{self.heat}"
        state = self.grid.state if self.grid is not None else ""
        return {"too-large": "nofit", "barred": "nofit"}.get(state, "nop")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMap:
    """The heat map of one or several types.

    Attributes:
        types: each type with its number of columns.
        columns: type and number of devices of each column.
        rows: number of stages, with a cell for each column.
    """

    types: tuple[tuple[str, int], ...]
    columns: tuple[tuple[str, int], ...]
    rows: tuple[tuple[int, tuple[GridCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevice:
    """One device of a stage: its rank, and its place ``node / index``, if known."""

    rank: int
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDrawing:
    """One stage of the plan in force.

    Attributes:
        number: index of the stage, from 0.
        layers: its layers as text.
        shape: replicas and tensor width as text.
        replicas: devices of each replica.
        memory: predicted memory of a device in bytes; None if unknown.
        limit: memory of a device; None if unknown.
    """

    number: int
    layers: str
    shape: str
    replicas: tuple[tuple[StageDevice, ...], ...]
    memory: float | None = None
    limit: float | None = None

    @property
    def percent(self) -> int | None:
        """Memory in percent of a device, at most 100; None if unknown."""
        if self.memory is None or not self.limit:
            return None
        return min(100, round(100 * self.memory / self.limit))


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
        "maps": maps_of(found),
        "grids": [_cell(grid, 0.0) for grid in found.grids],
        "running": next((_cell(g, 0.0) for g in found.grids if g.is_running), None),
        "barred": [grid for grid in found.grids if grid.state == "barred"],
        "stages": stages_of(found) if in_force is not None else (),
        "schedule": schedule_of(found),
        "plans": [_shown(plan) for plan in found.plans],
    }
    if request.wants_part:
        return request.render("job/_parallelism_parts.html", context)
    return request.render("job/parallelism.html", context)


def maps_of(found: JobParallelism) -> tuple[GridMap, ...]:
    """Return the heat maps of the sizes that the job may have; colours compare all of them.

    Types share a map while it has at most ``MOST_COLUMNS`` columns.
    """
    least, most = found.sizes
    grids = [grid for grid in found.grids if least <= grid.devices <= most] or found.grids
    top = max((grid.samples_per_second or 0.0 for grid in grids), default=0.0)
    by_type: dict[str, list[GridView]] = {}
    for grid in grids:
        by_type.setdefault(grid.type, []).append(grid)
    groups: list[list[GridView]] = []
    for same in by_type.values():
        together = (groups[-1] if groups else []) + same
        if groups and len({(grid.type, grid.devices) for grid in together}) <= MOST_COLUMNS:
            groups[-1] = together
        else:
            groups.append(same)
    return tuple(_map(group, top) for group in groups)


def _map(grids: Sequence[GridView], top: float) -> GridMap:
    places = {(grid.type, grid.devices, grid.stages): grid for grid in grids}
    columns = tuple(dict.fromkeys((grid.type, grid.devices) for grid in grids))
    types = Counter(kind for kind, _devices in columns)
    rows = tuple(
        (
            stages,
            tuple(_cell(places.get((kind, devices, stages)), top) for kind, devices in columns),
        )
        for stages in sorted({grid.stages for grid in grids})
    )
    return GridMap(types=tuple(types.items()), columns=columns, rows=rows)


def _cell(grid: GridView | None, most: float) -> GridCell:
    if grid is None:
        return GridCell(grid=None)
    rate = grid.samples_per_second
    heat = 0
    if rate and most and grid.state != "barred":
        heat = min(STEPS, 1 + int(STEPS * rate / most))
    return GridCell(
        grid=grid,
        heat=heat,
        state=str(STATES.get(grid.state, grid.state)),
        remark=str(FIGURES.get(grid.source, "")),
    )


def stages_of(found: JobParallelism) -> tuple[StageDrawing, ...]:
    """Return the stages of the plan in force with their devices."""
    plan = found.in_force
    if plan is None:
        return ()
    running = next((grid for grid in found.grids if grid.is_running), None)
    ranks, drawn = count(), []
    for number, stage in enumerate(plan.plan["stages"]):
        replicas = tuple(
            tuple(_device(next(ranks), found.devices) for _ in range(stage["tensor"]))
            for _ in range(stage["data"])
        )
        layers = _("layers %(first)s to %(last)s") % {
            "first": stage["first"],
            "last": stage["last"] - 1,
        }
        own = running.stage_bytes if running is not None else ()
        drawn.append(
            StageDrawing(
                number=number,
                layers=layers,
                shape=shape_of({"stages": [stage]}),
                replicas=replicas,
                memory=own[number] if number < len(own) else None,
                limit=running.limit_bytes if running is not None else None,
            )
        )
    return tuple(drawn)


def _device(rank: int, devices: Sequence[tuple[str, int]]) -> StageDevice:
    if rank >= len(devices):
        return StageDevice(rank=rank, place="")
    node, index = devices[rank]
    return StageDevice(rank=rank, place=f"{node} / {index}")


def _shown(plan: PlanView) -> PlanShown:
    difference = ""
    if plan.predicted and plan.measured:
        share = plan.measured / plan.predicted - 1.0
        text = _("%(share)s slower") if share >= 0 else _("%(share)s faster")
        difference = text % {"share": words.percent(abs(share))}
    return PlanShown(
        plan=plan, source=str(SOURCES.get(plan.source, plan.source)), difference=difference
    )
