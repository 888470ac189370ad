"""Jobs that share a device as equals in a simulation: their paces, and the charge of each."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from scheduling.core.round_result import RoundResult
from scheduling.core.sharing.hosts import GuestNeed, Host
from scheduling.core.sharing.pairs import Paces, PairPaces, PairRecord
from scheduling.core.sharing.peers import MEASURED_SECONDS, PeerPairs
from scheduling.core.simulation.events import EventClock, EventKind
from scheduling.core.simulation.job_table import JobTable
from scheduling.core.values import ClusterSnapshot, HeldGuest, HeldPeer


class PeerRules(Protocol):
    """The rules of a simulation that concern jobs on the devices of others (``GuestRules``)."""

    @property
    def paces(self) -> PairPaces: ...

    @property
    def peer_needs(self) -> Mapping[int, GuestNeed]: ...

    @property
    def pair_paces(self) -> Mapping[str, Mapping[str, Mapping[str, PairRecord]]]: ...

    @property
    def peers(self) -> tuple[HeldPeer, ...]: ...


@dataclass(frozen=True, slots=True)
class _Pair:
    """A job beside a holder: seconds of a turn, and the paces of both at the same time."""

    turn_seconds: float
    paces: Paces


class SimulatedPeers:
    """The jobs beside the holders of devices; they are guests in the job table."""

    def __init__(self, jobs: JobTable, clock: EventClock, rules: PeerRules) -> None:
        self._jobs, self._clock, self._rules = jobs, clock, rules
        self._pairs = {
            peer.guest.job.id: _Pair(
                peer.turn_seconds,
                peer.paces or self._expected(peer.guest.holder, peer.guest.job.id, ""),
            )
            for peer in rules.peers
        }
        self._groups: dict[int, list[int]] = {}
        self._charged_at = clock.now

    @property
    def turns(self) -> Mapping[int, float]:
        """Seconds of a turn by job on the device of another one; 0 if both run at once."""
        there = self._jobs.guests.keys()
        return {job: pair.turn_seconds for job, pair in self._pairs.items() if job in there}

    def snapshot(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Add running pairs, needs and measurements to the snapshot of a round."""
        needs, known = self._rules.peer_needs, self._jobs
        live = known.waiting.keys() | known.holding.keys() | known.guests.keys()
        return replace(
            snapshot,
            peers=tuple(
                HeldPeer(
                    guest=known.guests[job_id],
                    turn_seconds=turn,
                    paces=self._measured(known.guests[job_id]),
                )
                for job_id, turn in sorted(self.turns.items())
            ),
            peer_needs={job_id: needs[job_id] for job_id in sorted(live & needs.keys())},
            pair_paces=self._rules.pair_paces if needs else {},
        )

    def apply(self, result: RoundResult, hosts: Mapping[str, Host]) -> None:
        """Start the jobs that a round seats beside others; forget those that have a device."""
        for job_id in result.promotions:
            self._pairs.pop(job_id, None)
        for start in result.peers:
            seat = start.seat
            (leaf,) = seat.member.leaves
            kind = hosts[leaf.address].type
            self._jobs.start_guest(seat, kind)
            self._pairs[seat.job_id] = _Pair(
                start.turn_seconds, self._expected(seat.holder, seat.job_id, kind)
            )
            self._clock.add(self._clock.now + MEASURED_SECONDS, EventKind.WAKE)

    def memory_of(self, job_id: int) -> int:
        """Return the device memory of a job beside another one; 0 for other jobs."""
        need = self._rules.peer_needs.get(job_id)
        return need.floor if need is not None and job_id in self._pairs else 0

    def paces_of(self, guest: HeldGuest) -> Paces | None:
        """Return the paces of holder and job now; None if the job is an opportunistic guest."""
        pair = self._pairs.get(guest.job.id)
        if pair is None or not pair.turn_seconds:
            return None if pair is None else pair.paces
        others = [
            one.job.id
            for one in self._jobs.guests.values()
            if one.holder == guest.holder and one.job.id in self._pairs
        ]
        part = 1.0 / (1 + len(others))
        # The losses that the jobs beside a holder cause are multiplied.
        return Paces(part ** (1.0 / len(others)), part)

    def charge(self) -> None:
        """Divide the device time since the last call among holders and the jobs beside them."""
        elapsed, self._charged_at = self._clock.now - self._charged_at, self._clock.now
        charged = self._jobs.record.device_seconds
        for holder, others in self._groups.items():
            part = elapsed / (1 + len(others))
            charged[holder] -= elapsed - part
            for job_id in others:
                charged[job_id] += part
        groups: dict[int, list[int]] = defaultdict(list)
        for job_id in self.turns:
            holder = self._jobs.guests[job_id].holder
            if holder in self._jobs.holding:
                groups[holder].append(job_id)
        self._groups = groups

    def _measured(self, guest: HeldGuest) -> Paces | None:
        """Return the paces of a pair that has run long enough."""
        pair = self._pairs[guest.job.id]
        began = self._jobs.began(guest.job.id)
        is_measured = not pair.turn_seconds and self._clock.now - began >= MEASURED_SECONDS
        return pair.paces if is_measured else None

    def _expected(self, holder: int, job_id: int, device_type: str) -> Paces:
        measured = self._rules.paces(holder, job_id, device_type)
        if measured is not None:
            return measured
        known = self._jobs.known
        utils = [known[one].facts.util if one in known else None for one in (holder, job_id)]
        pairs = PeerPairs(needs=self._rules.peer_needs, measured=self._rules.pair_paces)
        return pairs.paces((holder, job_id), (utils[0], utils[1]), device_type)
