"""The reason for the plan of a hybrid job, as a sentence."""

from collections.abc import Sequence

from scheduling.core.messages import message, sentence
from scheduling.core.round.parallel_plans import ESTIMATED
from scheduling.parallelism.views import GridView, PlanView
from tessera.messages import Message


def why_this_plan(plans: Sequence[PlanView], grids: Sequence[GridView], *, is_live: bool) -> str:
    """Explain the newest plan: its next best plan, and the gain of twice the devices.

    Args:
        plans: plans of the attempts, the newest first.
        grids: the grids of the job.
        is_live: whether the job waits or runs.
    """
    if not plans:
        return sentence("plan-none-yet" if is_live else "plan-none")
    newest = plans[0]
    why = _why(newest, grids)
    own = _grid_of(newest, grids)
    wider = _best([g for g in grids if g.type == newest.type and g.devices == 2 * newest.devices])
    if own is None or wider is None or newest.source not in ESTIMATED:
        return sentence(why.code, **why.params)
    gain = _rate(wider) / _rate(own) - 1.0
    return sentence(
        "plan-and-twice-more" if gain >= 0 else "plan-and-twice-less",
        why=why,
        devices=wider.devices,
        device_type=wider.type,
        gain=f"{abs(gain):.0%}",
    )


def _why(newest: PlanView, grids: Sequence[GridView]) -> Message:
    facts: dict[str, str | int] = {
        "shape": newest.shape,
        "devices": newest.devices,
        "device_type": newest.type,
    }
    if newest.source not in ESTIMATED:
        return message(f"plan-{newest.source}", **facts)
    own = _grid_of(newest, grids)
    second = _best(
        [
            grid
            for grid in grids
            if (grid.type, grid.devices) == (newest.type, newest.devices) and grid is not own
        ]
    )
    if own is None or second is None:
        return message("plan-only", **facts)
    gain = _rate(own) / _rate(second) - 1.0
    return message(
        "plan-fastest" if gain >= 0 else "plan-was-fastest",
        **facts,
        rate=f"{_rate(own):,.4g}",
        gain=f"{abs(gain):.0%}",
        second=second.shape,
    )


def _grid_of(plan: PlanView, grids: Sequence[GridView]) -> GridView | None:
    """Return the grid of a plan, if its throughput is known."""
    same = (
        grid
        for grid in grids
        if (grid.type, grid.devices) == (plan.type, plan.devices) and grid.samples_per_second
    )
    return next((grid for grid in same if grid.plan == plan.plan), None)


def _best(grids: Sequence[GridView]) -> GridView | None:
    able = [grid for grid in grids if grid.samples_per_second and grid.state != "barred"]
    return max(able, key=_rate, default=None)


def _rate(grid: GridView) -> float:
    return grid.samples_per_second or 0.0
