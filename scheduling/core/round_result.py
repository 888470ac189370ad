"""The frozen output of a round: starts, preemptions, rebindings and the reasons of the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.core.jobspec import Demand
from scheduling.core.reasons import Reason
from scheduling.core.values import HeldLeaf
from tessera.isolation import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMember:
    """One rank of one role with its devices.

    Attributes:
        rank: rank within the role.
        node_rank: rank within the gang, with roles in the order of the demand.
        isolation: minimum level assumed by the round; at ``none``, its tenant takes the node.
    """

    role: str
    rank: int
    node_rank: int
    node: str
    device_indices: tuple[int, ...]
    leaves: tuple[HeldLeaf, ...]
    isolation: str = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A queued job gets devices.

    Attributes:
        demand: the gang at the size set by its policy, if it differs from the submitted size.
    """

    job_id: int
    opportunistic: bool
    members: tuple[PlacedMember, ...]
    demand: Demand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestStart:
    """A queued job becomes a guest of a device.

    Attributes:
        holder: ID of the job beside which it runs.
        slot: 1 to 3.
        mode: sharing mode of the device.
        floor: minimum bytes of device memory with which it can work.
        most: bytes that it may use at first.
    """

    job_id: int
    holder: int
    slot: int
    mode: str
    floor: int
    most: int
    member: PlacedMember


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStart:
    """A queued job starts on the device of the job with which its policy has paired it.

    Attributes:
        seat: its place; the lower bound of its memory is also the upper one.
        turn_seconds: seconds of a turn on the device; 0 if both run at the same time.
    """

    seat: GuestStart
    turn_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Preemption of a job for another one (0 if its policy names none), with the rule.

    Attributes:
        cause: the rule's kind; empty in old rounds.
    """

    job_id: int
    for_job: int
    rule: str
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A queued job that its policy rejects permanently."""

    job_id: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebinding:
    """A running job lost or regained its guarantee; its devices do not change.

    Attributes:
        leaves: leaves of the affected part of the gang, with their new virtual leaves.
    """

    job_id: int
    guaranteed: bool
    leaves: tuple[HeldLeaf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The decision of a round.

    Attributes:
        starts: starts in the order of placement.
        preemptions: running jobs that must leave.
        reasons: reason of every queued job that does not start.
        policy_states: the new state of each virtual cluster's policy, by id.
        fallbacks: descriptions of failed policies and their replacements.
        rebindings: running jobs that regained or lost their guarantee.
        rejections: queued jobs that are rejected permanently.
        policy_faults: fault by virtual cluster whose policy was called; empty if none.
        wake: the next instant at which a policy needs a plan, seconds since the epoch.
        stand_ins: replacement of a policy with a fault, by virtual cluster.
        guests: queued jobs that become guests.
        guest_leaves: running guests that must leave their device.
        promotions: running guests that become the holder of their device, which is idle.
        peers: queued jobs that start on the device of the job with which they are paired.
        cpu_starts: jobs without devices that start.
        cpu_preemptions: running jobs without devices that must leave.
    """

    starts: tuple[Start, ...]
    preemptions: tuple[Preemption, ...]
    reasons: Mapping[int, Reason]
    policy_states: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    rebindings: tuple[Rebinding, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    policy_faults: Mapping[int, str] = field(default_factory=dict)
    wake: float | None = None
    stand_ins: Mapping[int, str] = field(default_factory=dict)
    guests: tuple[GuestStart, ...] = ()
    guest_leaves: tuple[int, ...] = ()
    promotions: tuple[int, ...] = ()
    peers: tuple[PeerStart, ...] = ()
    cpu_starts: tuple[Start, ...] = ()
    cpu_preemptions: tuple[Preemption, ...] = ()
