"""Guests in a simulation: hosts for its rounds, and the speeds of holders and guests.

Rounds decide about guests as live ones do. While a guest runs, its holder is slower by the loss of
the pair, and the guest has its own speed on one device times its pace. A guest whose holder has
left makes no progress until the next round promotes it or requests it to leave.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from scheduling.core.jobspec import JobClass
from scheduling.core.round_result import RoundResult
from scheduling.core.sharing.hosts import (
    STEADY_SECONDS,
    STEADY_STEPS,
    Consent,
    GuestNeed,
    Host,
    SharingMode,
)
from scheduling.core.sharing.pairs import SLOWDOWN, Paces, PairPaces, PairRecord, guessed
from scheduling.core.simulation.events import EventClock, EventKind
from scheduling.core.simulation.job_table import JobTable
from scheduling.core.simulation.peers import SimulatedPeers
from scheduling.core.values import ClusterSnapshot, HeldGuest, HeldPeer, HoldingJob

Offer = Callable[[int, str], Host | None]
"""The device of a holder, by job ID and address, as a host without guests; None: no guests.

The simulation replaces its place, type, holder, tenant, slots, and the values that change.
"""

GUEST_GRACE: Final = 5.0
UNKNOWN_MEMORY: Final = 1 << 60
"""Bytes of a device whose memory is not in the snapshot: no limit."""


def _not_measured(holder: int, guest: int, device_type: str) -> Paces | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRules:
    """Guests of a simulation.

    Attributes:
        offer: the devices that admit guests.
        needs: memory needs of the jobs that may be guests, by job.
        paces: measured paces of pairs; without one, those of the host with the application of the
            guest; else the guest has the pace of its host, and the holder loses the part of 5 %
            that the delay account pays in.
        grace: seconds that a guest takes to leave.
        guests: running guests at the start.
        peer_needs: memory needs of the jobs that policies may pair, by job.
        pair_paces: measured pairs of these jobs, as in a snapshot.
        peers: running jobs on the devices of others at the start.
    """

    offer: Offer
    needs: Mapping[int, GuestNeed] = field(default_factory=dict)
    paces: PairPaces = _not_measured
    grace: float = GUEST_GRACE
    guests: tuple[HeldGuest, ...] = ()
    peer_needs: Mapping[int, GuestNeed] = field(default_factory=dict)
    pair_paces: Mapping[str, Mapping[str, Mapping[str, PairRecord]]] = field(default_factory=dict)
    peers: tuple[HeldPeer, ...] = ()


def rules_of(snapshot: ClusterSnapshot, paces: PairPaces = _not_measured) -> GuestRules | None:
    """Return the rules of a live snapshot; None if it has neither hosts nor guests.

    Of the holders that start later, only those that policies may pair admit others, since the
    snapshot does not have the consent of the other ones.
    """
    if not (snapshot.hosts or snapshot.guests or snapshot.peers or snapshot.peer_needs):
        return None
    known = {(host.holder, host.address): host for host in snapshot.hosts}
    running = {job.id for job in snapshot.holding}
    later = {
        job_id: _later_host(snapshot, need.floor)
        for job_id, need in snapshot.peer_needs.items()
        if job_id not in running
    }
    return GuestRules(
        offer=lambda job_id, address: known.get((job_id, address)) or later.get(job_id),
        needs=snapshot.guest_needs,
        paces=paces,
        guests=snapshot.guests,
        peer_needs=snapshot.peer_needs,
        pair_paces=snapshot.pair_paces,
        peers=snapshot.peers,
    )


def _later_host(snapshot: ClusterSnapshot, floor: int) -> Host:
    """Return the device of a job that has not started yet; all devices of its types are shared."""
    memory = max(snapshot.device_memory.values(), default=UNKNOWN_MEMORY)
    return Host(
        address="",
        type="",
        mode=SharingMode.COOPERATIVE,
        isolation="",  # only jobs of its tenant
        tenant=0,
        consent=Consent.SAME_TENANT,
        slots=(),
        most_guests=1,
        memory_free=max(0, memory - floor),
        steady_seconds=0.0,
        steps=0,
        account_empty=False,
        pace=guessed(SLOWDOWN, None).guest,
        seconds_left=0.0,
    )


class SimulatedGuests:
    """The guests of a simulation, whose jobs and progress are in the job table."""

    def __init__(self, jobs: JobTable, clock: EventClock, rules: GuestRules) -> None:
        self._jobs, self._clock, self._rules = jobs, clock, rules
        self._began = clock.now
        self._paces: dict[int, Paces] = {}
        self._memory: dict[int, int] = {}
        self._slowed: set[int] = set()
        self._devices: tuple[object, dict[tuple[str, int], tuple[str, int]]] = (None, {})
        self._peers = SimulatedPeers(jobs, clock, rules)
        for guest in rules.guests:
            jobs.take_over_guest(guest, rules.grace)
        for peer in rules.peers:
            jobs.take_over_guest(peer.guest, jobs.grace)
        for job_id in jobs.holding:
            self._await_steady(job_id)
        self._at_first = {
            guest.job.id: host
            for guest in rules.guests
            for host in [rules.offer(guest.holder, guest.address)]
            if host is not None
        }

    def snapshot(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Add hosts, guests and their needs to the snapshot of a round."""
        waiting, needs = self._jobs.waiting, self._rules.needs
        paired = self._peers.turns
        snapshot = replace(
            snapshot,
            hosts=self._hosts(),
            guests=tuple(
                guest for job_id, guest in self._jobs.guests.items() if job_id not in paired
            ),
            guest_needs={job_id: needs[job_id] for job_id in waiting if job_id in needs},
        )
        return self._peers.snapshot(snapshot)

    def delay(self, addresses: set[str]) -> float:
        """Return the seconds until all guests of some devices have left."""
        now = self._clock.now
        return max(
            (
                self._jobs.leaves_at.get(guest.job.id, now + self._grace_of(guest.job.id)) - now
                for guest in self._jobs.guests.values()
                if guest.address in addresses
            ),
            default=0.0,
        )

    def apply(self, result: RoundResult) -> None:
        """Apply the decisions of a round about guests."""
        jobs = self._jobs
        is_shared = result.guests or result.peers
        hosts = {host.address: host for host in self._hosts()} if is_shared else {}
        for job_id in result.guest_leaves:
            jobs.notify_guest(job_id, self._grace_of(job_id))
        for job_id in result.promotions:
            jobs.promote(job_id)
        for start in result.guests:
            (leaf,) = start.member.leaves
            host = hosts[leaf.address]
            job = jobs.start_guest(start, host.type)
            self._memory[job] = start.most
            measured = self._rules.paces(start.holder, job, host.type)
            self._paces[job] = measured or self._expected(host, job)
        self._peers.apply(result, hosts)
        for begun in result.starts:
            self._await_steady(begun.job_id)
        self.refresh()

    def _grace_of(self, job_id: int) -> float:
        """Return the seconds that a job takes to leave; a paired job saves its state."""
        return self._jobs.grace if job_id in self._peers.turns else self._rules.grace

    def refresh(self) -> None:
        """Set the speeds of all guests and of their holders."""
        jobs = self._jobs
        beside: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(lambda: 1.0))
        self._peers.charge()
        for guest in jobs.guests.values():
            paces = self._peers.paces_of(guest) or self._paces_of(guest)
            holder = jobs.holding.get(guest.holder)
            held = holder is not None and any(
                leaf.address == guest.address for leaves in holder.members for leaf in leaves
            )
            jobs.set_pace(guest.job.id, paces.guest if held else 0.0)
            if held:
                beside[guest.holder][guest.address] *= paces.holder
        for job_id in self._slowed - beside.keys():
            jobs.set_pace(job_id, 1.0)
        for job_id, devices in beside.items():
            jobs.set_pace(job_id, min(devices.values()))
        self._slowed = set(beside)

    def _paces_of(self, guest: HeldGuest) -> Paces:
        job_id = guest.job.id
        if job_id not in self._paces:
            host = self._at_first.get(job_id)
            measured = self._rules.paces(guest.holder, job_id, host.type) if host else None
            self._paces[job_id] = measured or self._expected(host, job_id)
        return self._paces[job_id]

    def _expected(self, host: Host | None, job_id: int) -> Paces:
        """Return the paces of a host with a guest, without a measurement by job IDs."""
        need = self._rules.needs.get(job_id)
        known = host.paces.get(need.application) if host is not None and need else None
        return known or Paces(guessed(SLOWDOWN, None).holder, host.pace if host else 0.0)

    def _await_steady(self, job_id: int) -> None:
        """Request a round when a holder is steady."""
        held, began = self._jobs.holding[job_id], self._jobs.began(job_id)
        for leaf in (leaf for leaves in held.members for leaf in leaves):
            offer = self._rules.offer(job_id, leaf.address)
            if offer is None or held.job_class is not JobClass.GUARANTEED:
                continue
            steady = offer.steady_seconds if began <= self._began else 0.0
            if steady < STEADY_SECONDS:
                self._clock.add(began + STEADY_SECONDS - steady, EventKind.WAKE)
                return

    def _hosts(self) -> tuple[Host, ...]:
        beside: dict[str, list[HeldGuest]] = defaultdict(list)
        for guest in self._jobs.guests.values():
            beside[guest.address].append(guest)
        return tuple(
            host
            for job in self._jobs.holding.values()
            if job.job_class is JobClass.GUARANTEED
            for leaves in job.members
            for leaf in leaves
            for host in [self._host(job, leaf.address, beside[leaf.address])]
            if host is not None
        )

    def _host(self, job: HoldingJob, address: str, guests: list[HeldGuest]) -> Host | None:
        offer = self._rules.offer(job.id, address)
        topology = self._jobs.engine.topology
        place = topology.leaves.get(address)
        if offer is None or place is None:
            return None
        node, index = self._device(place)
        began = self._jobs.began(job.id)
        elapsed = max(0.0, self._clock.now - max(began, self._began))
        steady = elapsed + (offer.steady_seconds if began <= self._began else 0.0)
        used = sum(self._memory.get(guest.job.id, 0) for guest in guests)
        used += sum(self._peers.memory_of(guest.job.id) for guest in guests)
        steps = max(offer.steps, STEADY_STEPS if steady >= STEADY_SECONDS else 0)
        return replace(
            offer,
            address=address,
            node=node,
            index=index,
            holder=job.id,
            tenant=job.tenant,
            type=topology.chains[place[0]].leaf_type,
            slots=tuple(sorted(guest.slot for guest in guests)),
            memory_free=max(0, offer.memory_free - used),
            steady_seconds=steady,
            steps=0 if job.leaving else steps,
            seconds_left=max(0.0, offer.seconds_left - elapsed),
        )

    def _device(self, place: tuple[str, int]) -> tuple[str, int]:
        topology = self._jobs.engine.topology
        if self._devices[0] is not topology:
            self._devices = topology, {leaf: device for device, leaf in topology.devices.items()}
        return self._devices[1][place]
