"""Cell engine requests of a placement, and the conversion of the engine's results."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from scheduling.core.cells import (
    CellEngine,
    GangRequest,
    Placed,
    Remedies,
    RequestError,
    Wait,
)
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_requests import job_of_group, number_of, parts_of
from scheduling.core.round.gang_sizes import ranks
from scheduling.core.round.node_restrictions import Restriction, barred_nodes, restriction_of
from scheduling.core.round_result import PlacedMember
from scheduling.core.values import ClusterSnapshot, HeldLeaf, QueuedJob
from tessera.isolation import NAMESPACE, at_least
from tessera.messages import message_of
from tessera.reasons import ReasonCode


class Restrictions:
    """Allowed nodes of a job, computed once for jobs with equal demands.

    Attributes:
        barred: barred nodes of each virtual cluster (``barred_nodes``).
    """

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.barred = barred_nodes(snapshot.nodes, snapshot.vcs)
        self._known: dict[Hashable, Restriction] = {}
        self._vcs = {vc.id: vc for vc in snapshot.vcs}
        self._rules = _rules_of(snapshot)
        self._by_vc = any(at_least(vc.least_isolation, NAMESPACE) for vc in snapshot.vcs) or any(
            node.tenants for node in snapshot.nodes
        )

    def of(self, job: QueuedJob) -> Restriction:
        """Return the nodes that ``job`` may use."""
        by_vc = self._by_vc or job.demand.storages
        key = (number_of(job.demand), job.excluded_nodes, job.vc if by_vc else 0)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = restriction_of(job, self._vcs[job.vc], self.snapshot)
        return known

    def hold_for(self, snapshot: ClusterSnapshot) -> bool:
        """Return whether another snapshot has the same nodes, storages and rules."""
        return (
            snapshot.nodes is self.snapshot.nodes
            and snapshot.storages is self.snapshot.storages
            and _rules_of(snapshot) == self._rules
        )


def _rules_of(snapshot: ClusterSnapshot) -> Hashable:
    return (
        snapshot.images_required,
        tuple([(vc.id, vc.name, vc.tenant, vc.least_isolation) for vc in snapshot.vcs]),
    )


def question_of(job: QueuedJob) -> Hashable:
    """Return the key of a refusal of ``job``, apart from the engine's state."""
    return job.vc, number_of(job.demand), job.priority, job.excluded_nodes, job.one_node


def placed_members(
    job: QueuedJob,
    placements: Sequence[Sequence[Placed]],
    level: Callable[[QueuedJob, str, str], str],
) -> tuple[PlacedMember, ...]:
    """Convert the placements into ranks, in the order of the demand.

    Args:
        job: the placed job.
        placements: placements by part of the demand.
        level: returns the minimum isolation level of a job's role on a node.
    """
    by_role: dict[int, list[Placed]] = defaultdict(list)
    for part, indices in zip(placements, parts_of(job.demand), strict=True):
        for placed in part:
            by_role[indices[placed.member]].append(placed)
    members: list[PlacedMember] = []
    for (index, demand), first in zip(
        enumerate(job.demand.members), ranks(job.demand), strict=True
    ):
        for rank, placed in enumerate(by_role[index], first):
            virtual = placed.virtual or ("",) * len(placed.leaves)
            members.append(
                PlacedMember(
                    role=demand.role,
                    rank=rank,
                    node_rank=len(members),
                    node=placed.node,
                    device_indices=placed.devices,
                    leaves=tuple(
                        HeldLeaf(address=address, virtual=cell)
                        for address, cell in zip(placed.leaves, virtual, strict=True)
                    ),
                    isolation=level(job, demand.role, placed.node),
                )
            )
    return (*members, *_companions(job, members, level))


def _companions(
    job: QueuedJob,
    hosts: Sequence[PlacedMember],
    level: Callable[[QueuedJob, str, str], str],
) -> Iterator[PlacedMember]:
    """Yield the instances without devices, on the nodes of those with devices in turn."""
    number = 0
    for demand in job.demand.companions:
        for rank in range(demand.count):
            node = hosts[number % len(hosts)].node
            yield PlacedMember(
                role=demand.role,
                rank=rank,
                node_rank=len(hosts) + number,
                node=node,
                device_indices=(),
                leaves=(),
                isolation=level(job, demand.role, node),
            )
            number += 1


def is_resized(job: QueuedJob, asked: QueuedJob) -> bool:
    """Return whether a job starts at another size than it was submitted with."""
    sizes, before = (
        [(member.count, member.devices) for member in one.demand.members] for one in (job, asked)
    )
    return sizes != before


def refused(error: RequestError) -> Reason:
    """Build the reason of a job whose request is not valid for the cell engine."""
    return Reason(
        code=_CODES.get(error.field, ReasonCode.INVALID_SPEC),
        message=message_of(error.sentence),
        unblock=(message_of(error.remedy),) if error.remedy else (),
    )


_CODES: Final = {
    "leaf_types": ReasonCode.UNKNOWN_TYPE,
    "vc": ReasonCode.UNKNOWN_VC,
}


def never_together(engine: CellEngine, requests: Sequence[GangRequest]) -> Reason | None:
    """Return the reason why a job of several parts never fits, or None if none is detected."""
    if len(requests) < 2:
        return None
    try:
        found = engine.never_together(requests)
    except RequestError as error:
        return refused(error)
    return None if found is None else wait_reason(found, Remedies(unblock=found.unblock))


def wait_reason(decision: Wait, found: Remedies) -> Reason:
    """Convert the cell engine's refusal into a reason with remedies."""
    return Reason(
        code=ReasonCode(decision.code.value),
        message=decision.message,
        blocked_by=_jobs_of((*found.ends, *decision.blocked_by)),
        unblock=found.unblock,
        free=decision.free if decision.counts else None,
    )


@lru_cache(maxsize=256)  # many refusals of a round name the same gangs
def _jobs_of(groups: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys([job_of_group(group) for group in groups]))


def restated(reason: Reason, recounted: Wait, found: Remedies) -> Reason:
    """Update the numbers of a reason after all starts of a round.

    If no devices remain free, remedies that assume free devices are dropped.
    """
    outdated = found.now if not recounted.free else ()
    kept = tuple([step for step in reason.unblock if step not in outdated])
    return Reason(
        code=ReasonCode(recounted.code.value),
        message=recounted.message,
        blocked_by=reason.blocked_by,
        unblock=kept or recounted.unblock,
        claims=reason.claims,
        free=recounted.free if recounted.counts else None,
    )
