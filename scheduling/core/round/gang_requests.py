"""Conversion of jobs for the cell engine: gang requests and group names."""

from collections.abc import Callable
from functools import lru_cache, wraps
from itertools import count
from typing import Final, NamedTuple, TypeVar

from scheduling.core.cells import GangRequest, Member, Placed
from scheduling.core.jobspec import (
    Demand,
    JobClass,
    MemberDemand,
    Within,
)
from scheduling.core.values import HoldingJob, QueuedJob

OPPORTUNISTIC_PRIORITY = -1
ONE_NODE: Final = f"within:{Within.NODE.value}"
MOST_CACHED: Final = 16_384

K = TypeVar("K")
T = TypeVar("T")


def group_name(job_id: int, part: int) -> str:
    """Return the engine's name for one part of a job's gang."""
    return f"{job_id}.{part}"


def job_of_group(group: str) -> int:
    """Return the ID of the job to which a group of the engine belongs."""
    return int(group.partition(".")[0])


def _by_identity(make: Callable[[K], T]) -> Callable[[K], T]:
    """Cache a function of a frozen value: rounds share values, and a hash takes microseconds."""
    known: dict[int, tuple[K, T]] = {}  # stored with the value, since its ID may be reused

    @wraps(make)
    def find(value: K) -> T:
        found = known.get(id(value))
        if found is None:
            if len(known) >= MOST_CACHED:
                known.clear()
            found = known[id(value)] = value, make(value)
        return found[1]

    return find


def by_demand(make: Callable[[Demand], T]) -> Callable[[Demand], T]:
    """Cache a function of a demand by identity and by value."""
    return _by_identity(lru_cache(maxsize=MOST_CACHED)(make))


_numbers = count()


@by_demand
def number_of(_demand: Demand) -> int:
    """Return a number that only equal demands share."""
    return next(_numbers)


@by_demand
def parts_of(demand: Demand) -> tuple[tuple[int, ...], ...]:
    """Group the members (by index) into requests.

    A request is for one set of types or one pinned cell. A role within one rack or pool has a
    separate request, which comes first, since it is harder to place.
    """
    parts: dict[tuple[tuple[str, ...], str | None, int], list[int]] = {}
    for index, member in enumerate(demand.members):
        alone = index if member.within.is_above_node else -1
        parts.setdefault((member.device_types, member.pinned_cell, alone), []).append(index)
    found = sorted(parts.items(), key=lambda part: part[0][2] < 0)
    return tuple(tuple(indices) for _, indices in found)


def requests_of(job: QueuedJob, vc: str) -> list[GangRequest]:
    """Build the engine requests of one job; usually one."""
    parts = _parts(job.demand)
    one_node = ONE_NODE if job.one_node and len(parts) == 1 else None
    return [
        GangRequest(
            group=group_name(job.id, number),
            vc=vc,
            priority=_priority(job.job_class, job.priority),
            members=part.members,
            leaf_types=part.leaf_types,
            pinned=part.pinned,
            within=one_node or part.within,
            ignore_suggested=False,
        )
        for number, part in enumerate(parts)
    ]


def restored_requests(
    job: HoldingJob, vc: str, now: float
) -> list[tuple[GangRequest, tuple[Placed, ...]]]:
    """Rebuild the requests of a running job, with its leaves."""
    restored = []
    for number, (part, placements) in enumerate(_held_parts(job)):
        if not placements:
            continue
        request = GangRequest(
            group=group_name(job.id, number),
            vc=vc,
            priority=_priority(job.job_class, job.priority),
            members=part.members,
            leaf_types=part.leaf_types,
            pinned=part.pinned,
            within=part.within,
            at_stake=job.at_stake(now),
        )
        restored.append((request, placements))
    return restored


@_by_identity
def _held_parts(job: HoldingJob) -> tuple[tuple["_Part", tuple[Placed, ...]], ...]:
    """Return the parts of a running job, each with the leaves that it holds."""
    return tuple(
        (
            part,
            tuple(
                Placed(
                    member=place,
                    node="",
                    devices=(),
                    leaves=tuple([leaf.address for leaf in leaves]),
                    virtual=tuple([leaf.virtual for leaf in leaves if leaf.virtual]),
                    chain="",
                )
                for place, leaves in zip(part.places, job.members, strict=False)
                if place is not None
            ),
        )
        for part in _parts(job.demand)
    )


class _Part(NamedTuple):
    """Engine request for one part of a demand, independent of the job.

    Attributes:
        places: index in ``members`` of each instance of the gang; None for another part's.
    """

    members: tuple[Member, ...]
    leaf_types: tuple[str, ...]
    pinned: str | None
    within: str | None
    places: tuple[int | None, ...]


@by_demand
def _parts(demand: Demand) -> tuple[_Part, ...]:
    """Split the demand into parts; cached, since many jobs have equal demands in every round."""
    found = []
    for indices in parts_of(demand):
        first = demand.members[indices[0]]
        place = {index: number for number, index in enumerate(indices)}
        found.append(
            _Part(
                members=tuple(_member(demand.members[index]) for index in indices),
                leaf_types=first.device_types,
                pinned=first.pinned_cell,
                within=_rack(first),
                places=tuple(
                    place.get(index)
                    for index, member in enumerate(demand.members)
                    for _ in range(member.count)
                ),
            )
        )
    return tuple(found)


def _priority(job_class: JobClass, priority: int) -> int:
    return OPPORTUNISTIC_PRIORITY if job_class is JobClass.OPPORTUNISTIC else max(priority, 0)


def _member(member: MemberDemand) -> Member:
    return Member(count=member.count, leaf_count=member.devices, within_level=_level(member))


def _level(member: MemberDemand) -> str | None:
    # A single instance is always on one node.
    if member.within is Within.NODE or member.within.is_above_node:
        return None
    return f"within:{member.within.value}"


def _rack(member: MemberDemand) -> str | None:
    return f"within:{member.within.value}" if member.within.is_above_node else None
