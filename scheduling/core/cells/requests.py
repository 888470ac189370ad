"""What is asked of the engine and what it answers: frozen values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from scheduling.core.cells.errors import RequestError
from scheduling.core.messages import english
from tessera.messages import Message, Parameter

OPPORTUNISTIC: Final = -1
HIGHEST_PRIORITY: Final = 1000
MAX_INSTANCES: Final = 100_000


class Phase(StrEnum):
    """Whether a preemption may be begun, or only reported."""

    FILTERING = "filtering"
    PREEMPTING = "preempting"


class GroupState(StrEnum):
    """State of a gang that the engine knows."""

    ALLOCATED = "Allocated"
    PREEMPTING = "Preempting"
    BEING_PREEMPTED = "BeingPreempted"


class WaitCode(StrEnum):
    """Why a gang waits; the words of the REST contract."""

    VC_GUARANTEE_IN_USE = "vc-guarantee-in-use"
    NO_CELL_OF_LEVEL = "no-cell-of-level"
    CELLS_UNHEALTHY = "cells-unhealthy"
    OPPORTUNISTIC_NO_IDLE = "opportunistic-no-idle"
    EXCEEDS_VC_MAX = "exceeds-vc-max"
    UNKNOWN_TYPE = "unknown-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """``count`` instances of ``leaf_count`` devices each.

    Attributes:
        count: number of instances.
        leaf_count: devices of one instance; they are on one node.
        within_level: cell type inside which all devices of one instance must be, or None.
    """

    count: int
    leaf_count: int
    within_level: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """A gang: all instances are placed, or none.

    Attributes:
        group: name of the gang, unique in the engine (scope it by tenant).
        vc: virtual cluster.
        priority: -1 opportunistic, 0 to 1000 guaranteed; the higher preempts the lower in its VC.
        members: what is to be placed.
        leaf_types: accepted device types in order of preference; empty for any.
        pinned: id of the pinned cell to use, or None.
        within: cell type at or above node level inside which the whole gang must be, or None.
        lazy_preemption: lose the guarantee before the devices, where possible.
        ignore_suggested: place outside the suggested nodes too.
        at_stake: work that an eviction would lose, in device-seconds; chooses victims.
    """

    group: str
    vc: str
    priority: int = 0
    members: tuple[Member, ...] = ()
    leaf_types: tuple[str, ...] = ()
    pinned: str | None = None
    within: str | None = None
    lazy_preemption: bool = False
    ignore_suggested: bool = True
    at_stake: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is wrong whatever the cluster looks like."""
        if not self.vc:
            raise RequestError("VirtualCluster is empty", field="vc", remedy="name one")
        if self.priority < OPPORTUNISTIC:
            raise _bad("priority", self.priority, "Priority is less than -1")
        if self.priority > HIGHEST_PRIORITY:
            raise _bad("priority", self.priority, "Priority is greater than 1000")
        if not self.group:
            raise _bad("group", self.group, "AffinityGroup.Name is empty")
        if not self.members:
            raise _bad("members", 0, "the gang has no members")
        for i, member in enumerate(self.members):
            if member.count <= 0:
                raise _bad(
                    f"members[{i}].count", member.count, "member has non-positive PodNumber"
                )
            if member.leaf_count <= 0:
                raise _bad(
                    f"members[{i}].leaf_count",
                    member.leaf_count,
                    "member has non-positive LeafCellNumber",
                )
        if sum(m.count for m in self.members) > MAX_INSTANCES:
            raise _bad("members", MAX_INSTANCES, f"more than {MAX_INSTANCES} instances")

    @property
    def guaranteed(self) -> bool:
        """Whether the gang uses its virtual cluster's quota."""
        return self.priority >= 0

    @property
    def leaf_count(self) -> int:
        """Devices of the whole gang."""
        return sum(m.count * m.leaf_count for m in self.members)


def _bad(where: str, value: object, message: str) -> RequestError:
    return RequestError(
        f"{message}: {where}={value!r}", field=where, value=value, remedy="correct the request"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where one instance runs.

    Attributes:
        member: index into the request's members.
        node: node name.
        devices: device indices in the order of the node's topology.
        leaves: full physical addresses of the devices, same order.
        virtual: virtual leaf addresses (``vc/i/...``), same order; empty when opportunistic.
        chain: chain of all of them.
    """

    member: int
    node: str
    devices: tuple[int, ...]
    leaves: tuple[str, ...]
    virtual: tuple[str, ...]
    chain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """The gang can start now.

    Attributes:
        request: what was asked.
        chain: chain of all instances.
        placements: one per instance, in the order of the members.
        downgraded: gangs that lose their guarantee (not their devices) when this is committed.
        version: state of the engine that this was decided on.
        plan: the engine's own steps; only the engine reads it.
    """

    request: GangRequest
    chain: str
    placements: tuple[Placed, ...]
    downgraded: tuple[str, ...] = ()
    version: int = field(default=0, compare=False)
    plan: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """The gang can start when the victims are gone.

    Attributes:
        victims: gangs to evict whole, in the order of eviction; at least one.
        victim_nodes: nodes on which victims hold devices that the gang needs.
    """

    request: GangRequest
    chain: str
    placements: tuple[Placed, ...]
    victims: tuple[str, ...]
    victim_nodes: tuple[str, ...] = ()
    downgraded: tuple[str, ...] = ()
    version: int = field(default=0, compare=False)
    plan: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The gang cannot start.

    Attributes:
        code: reason code.
        message: one sentence for people.
        reason: the terse wording that schedulers of this family use.
        blocked_by: gangs that hold what is wanted.
        unblock: what would let it start.
        chain: where it falls short.
        level: the cell type of which one is missing; empty where no level is.
        quota: what the virtual cluster is guaranteed there; empty where that does not matter.
        nodes: names of those it would need and that are out of order, or excluded for it.
        counts: ``message`` counts devices, of which ``free`` are left over.
    """

    request: GangRequest
    code: WaitCode
    message: Message
    reason: str
    blocked_by: tuple[str, ...] = ()
    unblock: tuple[Message, ...] = ()
    chain: str = ""
    level: str = ""
    quota: Parameter = ""
    nodes: tuple[str, ...] = ()
    counts: bool = False
    free: int = 0

    @property
    def text(self) -> str:
        """The English text of ``message``."""
        return english(self.message)


Decision = Bind | Preempt | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """How a running gang was taken over by a new engine.

    Attributes:
        guaranteed: whether it still holds quota.
        lazy_preempted: whether it was guaranteed and is not any more.
        unknown: leaf addresses that the cluster no longer has; their use is not accounted.
        displaced: gangs that lost their guarantee to this one.
    """

    guaranteed: bool
    lazy_preempted: bool
    unknown: tuple[str, ...] = ()
    displaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A gang as the engine sees it."""

    request: GangRequest
    state: GroupState
    guaranteed: bool
    lazy_preempted_by: str | None
    placements: tuple[Placed, ...]
    victims: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
