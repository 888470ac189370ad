"""Guests of a round: opportunistic jobs on devices that have a holder.

They are decided after all other jobs. This pass reads the cell engine and changes nothing in it,
so every decision about jobs with own devices is the same with and without guests.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from typing import Final

from scheduling.core.jobspec import JobClass
from scheduling.core.messages import message
from scheduling.core.reasons import Reason
from scheduling.core.round.fairness import in_turn, tenant_weights
from scheduling.core.round.state import RoundState
from scheduling.core.round_result import GuestStart, PeerStart, PlacedMember, RoundResult
from scheduling.core.sharing.hosts import (
    GuestNeed,
    GuestRequest,
    Host,
    Refusal,
    may_share,
)
from scheduling.core.sharing.seats import Group, Seats
from scheduling.core.values import HeldGuest, HeldLeaf, QueuedJob
from tessera.messages import Listing
from tessera.reasons import ReasonCode

MOST_STARTS: Final = 256
"""Most guests that one round starts; the next round continues."""


def with_guests(deciding: RoundState, result: RoundResult) -> RoundResult:
    """Add the decisions about guests to the result of a round.

    Args:
        deciding: the round after all other decisions.
        result: these decisions.

    Returns:
        The same object if the snapshot has neither hosts nor guests.
    """
    snapshot = deciding.snapshot
    if not snapshot.hosts and not snapshot.guests:
        return result
    leaves, promotions = _look_again(deciding)
    placing = _Placing(deciding, result.peers)
    placing.run()
    reasons = {**result.reasons, **placing.reasons}
    for start in placing.starts:
        reasons.pop(start.job_id, None)
    return replace(
        result,
        reasons=reasons,
        guests=tuple(placing.starts),
        guest_leaves=tuple(sorted({*leaves, *result.guest_leaves})),
        promotions=tuple(sorted({*promotions, *result.promotions} - {*result.guest_leaves})),
    )


def _look_again(deciding: RoundState) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the running guests that must leave, and those that get their device."""
    hosts = {host.address: host for host in deciding.snapshot.hosts}
    leaves: list[int] = []
    promotions: list[int] = []
    taken: set[str] = set()
    for guest in sorted(deciding.snapshot.guests, key=lambda one: (one.address, one.slot)):
        host = hosts.get(guest.address)
        if guest.job.leaving or (host is not None and may_stay(guest, host)):
            continue
        if guest.address not in taken and host is None and may_hold(deciding, guest):
            taken.add(guest.address)
            promotions.append(guest.job.id)
        else:
            leaves.append(guest.job.id)
    return tuple(sorted(leaves)), tuple(sorted(promotions))


def may_stay(guest: HeldGuest, host: Host) -> bool:
    """Return whether a running guest may stay beside the holder of a device."""
    return (
        host.holder == guest.holder
        and guest.slot <= host.most_guests
        and may_share(host, guest.job.tenant)
    )


def may_hold(deciding: RoundState, guest: HeldGuest) -> bool:
    """Return whether a guest may become the holder of its device.

    The device is idle after all starts of the round. So no waiting job could use it, and the
    promotion delays none.
    """
    place = deciding.engine.topology.leaves.get(guest.address)
    vc = deciding.vcs.get(guest.job.vc)
    if place is None or vc is None:
        return False
    chain, leaf = place
    roster = deciding.engine.rosters[chain]
    is_taken = leaf in roster.users or leaf in roster.claims
    node = deciding.tenancies.nodes.get(guest.node)
    is_bad = (guest.node, guest.index) in deciding.snapshot.bad_devices
    if is_taken or is_bad or node is None or not node.healthy:
        return False
    left = deciding.use.left(guest.job, vc)
    return left is None or left >= 1


def unusable_hosts(deciding: RoundState) -> frozenset[str]:
    """Return the devices that get no guests, by address.

    The engine excludes bad devices and nodes itself, but a guest binds no cell of it.
    """
    nodes, bad = deciding.tenancies.nodes, deciding.snapshot.bad_devices
    closed = {name for name, node in nodes.items() if not node.placeable}
    return frozenset(
        host.address
        for host in deciding.snapshot.hosts
        if (host.node, host.index) in bad or host.node in closed or host.node not in nodes
    )


class _Placing:
    """Placement of waiting jobs as guests, by the turns of their tenants."""

    def __init__(self, deciding: RoundState, peers: Collection[PeerStart]) -> None:
        self._deciding = deciding
        shared = {peer.guest.address for peer in deciding.snapshot.peers}
        shared |= {start.seat.member.leaves[0].address for start in peers}
        self._seats = Seats(
            deciding.snapshot.hosts, deciding.tenancies.owners, unusable_hosts(deciding) | shared
        )
        self._groups: dict[Hashable, Group] = {}
        self._failed: dict[Hashable, Reason] = {}
        self.starts: list[GuestStart] = []
        self.reasons: dict[int, Reason] = {}

    def run(self) -> None:
        """Place jobs without idle devices as guests of devices in use."""
        snapshot = self._deciding.snapshot
        lines: dict[int, list[QueuedJob]] = defaultdict(list)
        for job in self._waiting():
            lines[job.tenant].append(job)
        held = Counter(guest.job.tenant for guest in snapshot.guests)
        in_turn(lines, held, tenant_weights(self._deciding.engine, snapshot.vcs), self._offer)

    def _waiting(self) -> Iterator[QueuedJob]:
        """Yield the jobs that may be guests, in the order in which the round has tried them.

        Jobs to which their policy gives no device follow, since policies do not plan guests.
        """
        deciding, needs = self._deciding, self._deciding.snapshot.guest_needs
        if not needs:
            return
        tried = {job.id: None for job, _strict in deciding.lines[1]}
        others = sorted(
            (job for job in deciding.waiting.values() if job.job_class is JobClass.OPPORTUNISTIC),
            key=lambda job: (-job.priority, job.submitted, job.id),
        )
        for job_id in dict.fromkeys((*tried, *(job.id for job in others))):
            reason = deciding.reasons.get(job_id)
            if job_id not in needs or reason is None:
                continue
            job = deciding.waiting[job_id]
            if job.demand.devices == 1 and reason.code is not _WAITING_FOR_VICTIMS:
                yield job

    def _offer(self, job: QueuedJob) -> int:
        """Place a job as a guest if a device admits it; return the number of devices."""
        deciding, need = self._deciding, self._deciding.snapshot.guest_needs[job.id]
        restriction = deciding.restrictions.of(job)
        if (
            restriction.reason is not None
            or len(self.starts) >= MOST_STARTS
            or deciding.ports.refusal(job.demand) is not None
        ):
            return 0
        nodes = deciding.tenancies.tiers(job, restriction.nodes)[0].nodes
        request = _request(job, need)
        alike = job.tenant, request.types, nodes, need.application
        key = alike, need
        if key in self._failed:
            self.reasons[job.id] = self._failed[key]
            return 0
        group = self._groups.get(alike)
        if group is None:
            group = self._groups[alike] = self._seats.group(request, nodes)
        host = self._seats.best(key, request, group)
        if host is None:
            reason = _refused(self._seats.refusals(group), deciding.reasons[job.id])
            self.reasons[job.id] = self._failed[key] = reason
            return 0
        self._start(job, request, host)
        return 1

    def _start(self, job: QueuedJob, request: GuestRequest, host: Host) -> None:
        (member,) = job.demand.members
        most = max(request.floor, min(request.wants, host.memory_free))
        placed = PlacedMember(
            role=member.role,
            rank=0,
            node_rank=0,
            node=host.node,
            device_indices=(host.index,),
            leaves=(HeldLeaf(address=host.address, virtual=""),),
            isolation=self._deciding.tenancies.level(job, member.role, host.node),
        )
        self.starts.append(
            GuestStart(
                job_id=job.id,
                holder=host.holder,
                slot=host.free_slot,
                mode=host.mode.value,
                floor=request.floor,
                most=most,
                member=placed,
            )
        )
        self._deciding.ports.take(job.demand)
        self._seats.take(host, most)


def _refused(counts: Counter[Refusal], idle: Reason) -> Reason:
    """Return the reason of a job without a host, from the number of devices by cause."""
    causes = tuple(
        message(f"guest-refused-{cause.value}", n=counts[cause])
        for cause in Refusal
        if counts[cause]
    )
    nothing = (message("no-host-at-all"),)
    return Reason(
        code=_code(counts),
        message=message("no-host-for-guest", causes=Listing(causes or nothing)),
        blocked_by=idle.blocked_by,
        unblock=(message("guest-needs-less"), *idle.unblock),
        free=idle.free,
    )


def _code(counts: Counter[Refusal]) -> ReasonCode:
    """Return the code of the cause that explains all refusals, if there is one."""
    found = {cause for cause in Refusal if counts[cause]}
    if Refusal.MODE in found and found <= {Refusal.TYPE, Refusal.MODE}:
        return ReasonCode.NO_DEVICE_WITH_SHARING_MODE
    if found & _CAUSES_THAT_END == {Refusal.FULL}:
        return ReasonCode.GUEST_CAP_REACHED
    return ReasonCode.NO_HOST_FOR_GUEST


_CAUSES_THAT_END: Final = frozenset(
    {Refusal.FULL, Refusal.UNSTEADY, Refusal.ACCOUNT, Refusal.MEMORY}
)
_WAITING_FOR_VICTIMS: Final = ReasonCode.WAITING_VICTIM_CHECKPOINT


def _request(job: QueuedJob, need: GuestNeed) -> GuestRequest:
    return GuestRequest(
        tenant=job.tenant,
        application=need.application,
        types=job.demand.members[0].device_types,
        floor=need.floor,
        wants=need.wants,
    )
