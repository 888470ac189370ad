"""Tuning within a grid: the plans near the best profiled one.

The tuner of Crius (EuroSys '26) explores only the half of the shapes on the side of the profiled
shape that won: data parallelism or tensor parallelism.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scheduling.core.grids.model import StageShape, stage_shapes

Shapes = tuple[StageShape, ...]
"""Shape of each stage of a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPlan:
    """Result of tuning.

    Attributes:
        chosen: the plan with the shortest step time of all that were explored.
        seconds: its step time.
        explored: step time of each plan that was asked for while tuning, in this order.
    """

    chosen: Shapes
    seconds: float
    explored: Mapping[Shapes, float]


def shapes_near(winner: StageShape) -> tuple[StageShape, ...]:
    """Return the shapes that are explored for a stage, after a profiled shape has won.

    With ``2^a`` devices and tensor width ``2^t``, data parallelism only leads to the shapes with
    ``t <= a / 2``, tensor parallelism only to those with ``t >= a / 2`` (tuner of Crius). If
    the middle shape won, the optimum may be on either side, so all shapes are explored.
    """
    shapes = stage_shapes(winner.devices)
    a = len(shapes) - 1
    if winner.tensor == 1:
        return tuple(shape for t, shape in enumerate(shapes) if 2 * t <= a)
    if winner.data == 1:
        return tuple(shape for t, shape in enumerate(shapes) if 2 * t >= a)
    return shapes


def tune(
    plans: Iterable[Shapes],
    profiled: Mapping[Shapes, float],
    step_seconds: Callable[[Shapes], float],
) -> TunedPlan:
    """Explore the plans near the best profiled one, and return the best of them.

    A profiled plan that lost is not explored: its time is known. The winner is explored as the
    baseline. Without a profiled plan, all plans are explored.

    Args:
        plans: all plans of the grid.
        profiled: step times that are known before tuning, of at least some plans.
        step_seconds: step time of a plan; called once for each plan that is explored.

    Raises:
        ValueError: there are no plans.
    """
    ordered = sorted(set(plans), key=_tensor_widths)
    known = [plan for plan in ordered if plan in profiled]
    winner = min(known, key=lambda plan: profiled[plan], default=None)
    explored: dict[Shapes, float] = {}
    near = [set(shapes_near(shape)) for shape in winner] if winner else None
    for plan in ordered:
        if plan != winner and plan in profiled:
            continue
        if near and not all(shape in allowed for shape, allowed in zip(plan, near, strict=True)):
            continue
        explored[plan] = step_seconds(plan)
    chosen = min(explored, key=lambda plan: explored[plan])
    return TunedPlan(chosen=chosen, seconds=explored[chosen], explored=explored)


def _tensor_widths(plan: Shapes) -> tuple[int, ...]:
    return tuple(shape.tensor for shape in plan)
