"""Starts and ends of jobs that their policies run on the devices of other jobs.

Like guests, they bind no cell, so that the cell engine decides as if each pair was one job. This
pass follows all decisions about whole devices.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Final

from scheduling.core.reasons import Reason
from scheduling.core.round.guests import may_hold, may_stay, unusable_hosts
from scheduling.core.round.peers import PlannedPeer, seat_refused
from scheduling.core.round.policy_answers import is_plain
from scheduling.core.round.state import RoundState
from scheduling.core.round_result import GuestStart, PeerStart, PlacedMember, RoundResult
from scheduling.core.sharing.hosts import MOST_GUESTS, Host, refusal_now
from scheduling.core.values import HeldLeaf, HeldPeer, QueuedJob

NEXT_LOOK_SECONDS: Final = 5.0
"""Time until the round that seats a job beside one that has just started."""


def with_peers(deciding: RoundState, result: RoundResult) -> RoundResult:
    """Add the decisions about jobs that share devices as equals to the result of a round.

    Args:
        deciding: the round after all decisions about whole devices.
        result: these decisions.

    Returns:
        The same object if no job shares a device, and no policy plans it.
    """
    if not deciding.snapshot.peers and not deciding.beside:
        return result
    seating = _Seating(deciding)
    seating.look_again()
    for job_id, seat in deciding.beside.items():
        if job_id in deciding.reasons:  # else it has its own device
            seating.seat(deciding.waiting[job_id], seat)
    reasons = {**result.reasons, **seating.reasons}
    for start in seating.starts:
        reasons.pop(start.seat.job_id, None)
    wake = deciding.snapshot.now + NEXT_LOOK_SECONDS if seating.awaits_start else None
    return replace(
        result,
        reasons=reasons,
        peers=tuple(seating.starts),
        guest_leaves=tuple(sorted(seating.leaves)),
        promotions=tuple(sorted(seating.promotions)),
        wake=min((at for at in (result.wake, wake) if at is not None), default=None),
    )


class _Seating:
    """Seats of one round beside the holders of devices."""

    def __init__(self, deciding: RoundState) -> None:
        self._deciding = deciding
        # The limit of a virtual cluster counts opportunistic guests.
        self._hosts = {
            host.address: replace(host, most_guests=MOST_GUESTS if host.most_guests else 0)
            for host in deciding.snapshot.hosts
        }
        self._unusable = unusable_hosts(deciding)
        self._starting = {start.job_id for start in deciding.starts}
        self._leaving = deciding.leaving | deciding.preemptions.keys()
        self._peers_at: dict[str, list[HeldPeer]] = defaultdict(list)
        for peer in deciding.snapshot.peers:
            self._peers_at[peer.guest.address].append(peer)
        self.starts: list[PeerStart] = []
        self.leaves: set[int] = set()
        self.promotions: set[int] = set()
        self.reasons: dict[int, Reason] = {}
        self.awaits_start = False

    def look_again(self) -> None:
        """Decide which running jobs stay, leave, or get the device of a holder that has left."""
        taken: set[str] = set()
        running = self._deciding.snapshot.peers
        for peer in sorted(running, key=lambda one: (one.guest.address, one.guest.slot)):
            guest = peer.guest
            host = self._hosts.get(guest.address)
            if guest.job.leaving or guest.job.id in self._deciding.preemptions:
                continue
            if host is not None and may_stay(guest, host) and not self._is_plain(peer):
                continue
            if guest.address not in taken and host is None and may_hold(self._deciding, guest):
                taken.add(guest.address)
                self.promotions.add(guest.job.id)
            else:
                self.leaves.add(guest.job.id)

    def _is_plain(self, peer: HeldPeer) -> bool:
        """Return whether the policy of a job has been replaced by one that never pairs jobs."""
        return is_plain(self._deciding.vcs[peer.guest.job.vc])

    def seat(self, job: QueuedJob, seat: PlannedPeer) -> None:
        """Start a job beside its holder, or record why it waits."""
        deciding = self._deciding
        restriction = deciding.restrictions.of(job)
        refused = restriction.reason or deciding.ports.refusal(job.demand)
        if refused is not None:
            self.reasons[job.id] = refused
            return
        host = next((one for one in self._hosts.values() if one.holder == seat.holder), None)
        if host is None:
            # The holder is starting, or its device cannot be shared.
            self.awaits_start = self.awaits_start or seat.holder in self._starting
            return
        need = deciding.snapshot.peer_needs[job.id]
        if seat_refused(job, need, host, restriction.nodes) or host.address in self._unusable:
            return
        has_guests = self._clear_guests(host)
        if (
            has_guests
            or self._others_leave(host)
            or self._is_pair(host, seat)
            or seat.holder in self._leaving
            or not host.steady_seconds
        ):
            self.awaits_start = self.awaits_start or not host.steady_seconds
            return
        steady = replace(host, steady_seconds=float("inf"), steps=1 << 30, account_empty=False)
        if refusal_now(steady, need.floor) is None:
            self._start(job, need.floor, host, seat)

    def _others_leave(self, host: Host) -> bool:
        """Return whether a job beside the holder has notice to leave, which comes first."""
        leaving = self._leaving | self.leaves
        jobs = [peer.guest.job for peer in self._peers_at[host.address]]
        return any(job.leaving or job.id in leaving for job in jobs)

    def _is_pair(self, host: Host, seat: PlannedPeer) -> bool:
        """Return whether a job of a former plan still runs at the same time as the holder."""
        return not seat.turn_seconds and bool(self._peers_at[host.address])

    def _clear_guests(self, host: Host) -> bool:
        """Order the guests of a device to leave for a pair; returns whether there are any."""
        guests = self._deciding.snapshot.guests
        there = {one.job.id for one in guests if one.address == host.address}
        self.leaves |= there
        return bool(there)

    def _start(self, job: QueuedJob, memory: int, host: Host, seat: PlannedPeer) -> None:
        deciding = self._deciding
        (member,) = job.demand.members
        placed = PlacedMember(
            role=member.role,
            rank=0,
            node_rank=0,
            node=host.node,
            device_indices=(host.index,),
            leaves=(HeldLeaf(address=host.address, virtual=""),),
            isolation=deciding.tenancies.level(job, member.role, host.node),
        )
        start = GuestStart(
            job_id=job.id,
            holder=host.holder,
            slot=host.free_slot,
            mode=host.mode.value,
            floor=memory,
            most=memory,
            member=placed,
        )
        self.starts.append(PeerStart(seat=start, turn_seconds=seat.turn_seconds))
        deciding.ports.take(job.demand)
        self._hosts[host.address] = replace(
            host,
            slots=tuple(sorted((*host.slots, host.free_slot))),
            memory_free=host.memory_free - memory,
        )
