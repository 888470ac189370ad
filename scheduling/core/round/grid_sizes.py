"""Types and sizes on which hybrid jobs have a parallel plan, and the reason for its absence."""

from collections.abc import Collection
from dataclasses import replace

from scheduling.core.jobspec import Demand, MemberDemand
from scheduling.core.messages import message
from scheduling.core.policy_interface import Alloc, GridTable, Part, Scale, grid_types
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_sizes import sized
from scheduling.core.values import QueuedJob
from tessera.messages import Listing
from tessera.reasons import ReasonCode


def on_grids(job: QueuedJob, grids: GridTable) -> QueuedJob:
    """Restrict a hybrid job to the types on which it has a grid at its size, if there are any."""
    if not grids:
        return job
    able = grid_types(grids, job.demand.devices)
    members = tuple(_on_types(member, able) for member in job.demand.members)
    return job if members == job.demand.members else replace(job, demand=Demand(members=members))


def planned(
    job: QueuedJob, asked: Demand, grids: GridTable, given: Collection[int], scale: Scale | None
) -> tuple[QueuedJob, Reason | None]:
    """Return a profiled hybrid job at a size with a parallel plan, or the reason why it waits.

    A size without a grid is replaced by the largest smaller one that has a grid, else by the
    smallest larger one, if ``scale`` allows it.

    Args:
        job: the job at the size and type of its policy.
        asked: the submitted gang; another size may be on another of its types.
        grids: its best grids; empty if no plan of its profile can run.
        given: sizes at which the owner's own plan applies.
        scale: possible sizes; None for exactly the requested one, or if they are not known.
    """
    if has_plan(job.demand, grids, given):
        return on_grids(job, grids), None
    able = _able_sizes(asked, grids)
    now = job.demand.devices
    for size in sorted(able, key=lambda n: (n > now, abs(n - now))):
        if scale is not None and scale.allows(size):
            demand = sized(asked, Alloc(parts=(Part(n=size, type=None),)))
            if demand is not None:
                return on_grids(replace(job, demand=demand), grids), None
    return job, _no_plan(now, sorted(able))


def table_for(demand: Demand, grids: GridTable, given: Collection[int]) -> GridTable:
    """Return the table that policies read; empty if only the owner's plan applies to a gang.

    Without a table, policies assume a linear speed; with it, the rate of this gang would be 0.
    """
    is_given = demand.devices in given and demand.devices not in _able_sizes(demand, grids)
    return () if is_given else grids


def has_plan(demand: Demand, grids: GridTable, given: Collection[int]) -> bool:
    """Return whether a profiled hybrid job has a parallel plan at the size of a demand."""
    return demand.devices in given or demand.devices in _able_sizes(demand, grids)


def _able_sizes(demand: Demand, grids: GridTable) -> frozenset[int]:
    """Return the sizes with a grid on a type that the job allows."""
    types = demand.members[0].device_types
    return frozenset(row.devices for row in grids if not types or row.type in types)


def _no_plan(devices: int, able: list[int]) -> Reason:
    count = message("devices", n=devices)
    if not able:
        return Reason(
            code=ReasonCode.NO_PARALLEL_PLAN,
            message=message("no-parallel-plan", count=count),
            unblock=(message("give-parallel-stages"),),
        )
    return Reason(
        code=ReasonCode.NO_PARALLEL_PLAN,
        message=message("no-parallel-plan-at-size", count=count, sizes=Listing(tuple(able), "or")),
        unblock=(message("use-planned-size", sizes=Listing(tuple(able), "or")),),
    )


def _on_types(member: MemberDemand, able: tuple[str, ...]) -> MemberDemand:
    types = tuple(kind for kind in member.device_types or able if kind in able)
    return replace(member, device_types=types) if types else member
