"""The table of a hybrid job for policies: its best grid on each number of devices of each type."""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from scheduling.core.grids.estimates import GridEstimate
from scheduling.core.grids.model import ParallelPlan
from scheduling.core.policy_interface import GRIDS_PER_JOB, BestGrid, GridTable
from tessera.train.hybrid import plans as trainer


def grid_table(
    estimates: Iterable[GridEstimate],
    *,
    batch: int,
    node_devices: Mapping[str, int],
    source: str = "profiled",
) -> GridTable:
    """Return the row of each shape that can run: its estimate with the shortest step.

    Args:
        estimates: estimates of the job's grids, of one or several types.
        batch: samples of a step.
        node_devices: devices of a node by type; rows assume as few nodes as possible.
        source: origin of the estimates.

    Returns:
        Rows by type and number of devices; of more than ``GRIDS_PER_JOB``, the fastest of each
        type in turn.
    """
    best: dict[tuple[str, int], GridEstimate] = {}
    for one in estimates:
        key = one.grid.type, one.grid.devices
        if one.plan is None:
            continue
        known = best.get(key)
        # Of equally fast grids, fewer stages need fewer messages.
        if known is None or (one.step_seconds, one.grid.stages) < (
            known.step_seconds,
            known.grid.stages,
        ):
            best[key] = one
    rows = (
        BestGrid(
            type=kind,
            devices=devices,
            nodes=max(1, ceil(devices / node_devices.get(kind, devices))),
            stages=one.grid.stages,
            rate=1.0 / one.step_seconds,
            plan=plan_document(one.plan, batch) if one.plan is not None else {},
            source=source,
        )
        for (kind, devices), one in sorted(best.items())
    )
    return limited(rows)


def limited(rows: Iterable[BestGrid]) -> GridTable:
    """Return at most ``GRIDS_PER_JOB`` rows: the fastest of each type in turn, in order."""
    kept: list[BestGrid] = []
    by_type: dict[str, list[BestGrid]] = {}
    for row in rows:
        by_type.setdefault(row.type, []).append(row)
    queues = [sorted(same, key=lambda row: (row.rate, row.devices)) for same in by_type.values()]
    while len(kept) < GRIDS_PER_JOB and any(queues):
        kept += [queue.pop() for queue in queues if queue]
    return tuple(sorted(kept[:GRIDS_PER_JOB], key=lambda row: (row.type, row.devices, row.nodes)))


def plan_document(plan: ParallelPlan, batch: int) -> dict[str, Any]:
    """Return a plan as the trainer reads it from ``TESSERA_JOB_PLAN``.

    Raises:
        PlanError: the trainer cannot run the plan, since the batch does not divide evenly.
    """
    return trainer.ParallelPlan(
        stages=tuple(
            trainer.Stage(stage.first, stage.last, stage.shape.data, stage.shape.tensor)
            for stage in plan.stages
        ),
        micro_batches=plan.micro_batches,
        batch=batch,
        schedule=plan.schedule.value,
    ).document()
