"""Requests to the cell engine and its decisions, as frozen values."""

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
    """Whether ``schedule`` only reports a preemption, or begins it."""

    FILTERING = "filtering"
    PREEMPTING = "preempting"


class GroupState(StrEnum):
    """The state of a gang in the engine."""

    ALLOCATED = "Allocated"
    PREEMPTING = "Preempting"
    BEING_PREEMPTED = "BeingPreempted"


class WaitCode(StrEnum):
    """The reason why a gang waits; the codes of the REST API."""

    VC_GUARANTEE_IN_USE = "vc-guarantee-in-use"
    NO_CELL_OF_LEVEL = "no-cell-of-level"
    CELLS_UNHEALTHY = "cells-unhealthy"
    OPPORTUNISTIC_NO_IDLE = "opportunistic-no-idle"
    EXCEEDS_VC_MAX = "exceeds-vc-max"
    UNKNOWN_TYPE = "unknown-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A number ``count`` of instances with ``leaf_count`` devices each.

    Attributes:
        count: number of instances.
        leaf_count: devices of one instance, all on one node.
        within_level: cell type inside which all devices of one instance must be, or None.
    """

    count: int
    leaf_count: int
    within_level: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """A request for a gang; the engine places all of its instances or none.

    Attributes:
        group: name of the gang, unique in the engine (scope it by tenant).
        vc: virtual cluster.
        priority: -1 for opportunistic, 0 to 1000 for guaranteed; higher preempts lower in its VC.
        members: instances by size.
        leaf_types: accepted device types in order of preference; empty for any.
        pinned: id of the pinned cell to use, or None.
        within: cell type at or above node level that must contain the complete gang, or None.
        lazy_preemption: whether it loses its guarantee before its devices, if possible.
        ignore_suggested: whether nodes outside the suggested ones are allowed.
        at_stake: work lost by an eviction, in device-seconds; used to choose victims.
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
        """Reject requests that are invalid for every cluster."""
        if not self.vc:
            raise RequestError("VirtualCluster is empty", field="vc", remedy="specify one")
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
        """Number of devices of the gang."""
        return sum(m.count * m.leaf_count for m in self.members)


def _bad(where: str, value: object, message: str) -> RequestError:
    return RequestError(
        f"{message}: {where}={value!r}", field=where, value=value, remedy="correct the request"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The placement of an instance.

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
        request: the request.
        chain: chain of all instances.
        placements: one per instance, in the order of the members.
        downgraded: gangs that lose their guarantee (not their devices) when this is committed.
        version: version of the engine at the decision.
        plan: steps for ``commit``; internal to the engine.
    """

    request: GangRequest
    chain: str
    placements: tuple[Placed, ...]
    downgraded: tuple[str, ...] = ()
    version: int = field(default=0, compare=False)
    plan: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """The gang can start after the eviction of its victims.

    Attributes:
        victims: gangs to evict, in the order of eviction; at least one.
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
        message: one sentence for users.
        reason: the reason in the wording of HiveD.
        blocked_by: names of the gangs that hold the requested devices.
        unblock: changes that would let it start.
        chain: the chain with too few devices.
        level: the missing cell type; empty if it does not apply.
        quota: the guarantee of the virtual cluster there; empty if it does not apply.
        nodes: names of needed nodes that are unhealthy or excluded.
        counts: whether ``message`` has device counts.
        free: number of free devices in ``message``.
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
    """The result of restoring a running gang.

    Attributes:
        guaranteed: whether it has quota.
        lazy_preempted: whether it has lost its quota.
        unknown: leaf addresses that the cluster no longer has; they are not counted.
        displaced: gangs that lost their quota to this one.
    """

    guaranteed: bool
    lazy_preempted: bool
    unknown: tuple[str, ...] = ()
    displaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The state of a gang, with names instead of numbers."""

    request: GangRequest
    state: GroupState
    guaranteed: bool
    lazy_preempted_by: str | None
    placements: tuple[Placed, ...]
    victims: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
