"""Gandiva: time slices, packing, migration and growth by measured rates (OSDI '18).

Sections 4.1 and 4.2: jobs that do not fit together run in time slices. While the cluster is
overloaded, small jobs are packed onto shared devices. Otherwise, jobs move to types on which they
are faster, and elastic jobs grow into idle devices. The policy does not choose nodes or
devices: the preference for nodes with gangs of the same size is the allocator's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.greedy import meant, serve_rest
from scheduling.core.policies.engines.room import (
    FreeDevices,
    borrows,
    on_type,
    one_type,
    present,
    rates_by_size,
    shape_of,
)
from scheduling.core.policies.gandiva.device_turns import device_turns
from scheduling.core.policies.gandiva.packing import PackedGang, Packs, Seat, in_turn, seat
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Alloc, Kind, Part, Plan, PolicyJob, Share, Snapshot

_WAITS: Final = sentence(message("other-slice"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gandiva:
    """Time-slices jobs; packs small jobs under load, and migrates and grows jobs otherwise.

    Attributes:
        quantum: seconds of a slice of time.
        packing: small jobs may share a device while the cluster is overloaded.
        migrate: minimum speed-up for a move to a type with room.
        grow_after: seconds of idle devices before a job grows.
        turns: how a job pauses in the slices of others: by ``checkpoint``, or suspended on
            its ``device``, if it may share one.
    """

    quantum: float = parameter(60.0, sentence("param-slice"), low=1.0, high=86_400.0)
    packing: bool = parameter(False, sentence("param-packing"))
    migrate: float = parameter(1.5, sentence("param-move-gain"), low=1.0, high=100.0)
    grow_after: float = parameter(120.0, sentence("param-idle-seconds"), low=0.0, high=86_400.0)
    turns: str = parameter("checkpoint", sentence("param-turns"), choices=("checkpoint", "device"))

    name: ClassVar[str] = "gandiva"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "time slices, packing, migration and growth, based on measurements"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TELEMETRY, Need.SHARING})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Seat the gangs, run the current row, and fill the rest."""
        jobs = present(snapshot)
        room = FreeDevices(snapshot)
        allocs = room.take_pinned(jobs)
        mine = {
            job.id: job
            for job in sorted(jobs, key=lambda job: (-job.priority, job.submitted, job.id))
            if job.id not in allocs and not borrows(job) and one_type(job, room.kinds)
        }
        free = {kind: room.free(kind) for kind in room.kinds}
        packs = Packs.from_state(state.get("packs", {}))
        before = _seats(state.get("seats", {}))
        gangs, packs = self._gangs(mine, snapshot, free, packs, before)
        seats = self._migrated(gangs, mine, snapshot, free, seat(gangs, free, before))
        row, turned = self._turn(snapshot, state, seats)
        if self.turns == "device":
            packed = {job_id for pair in packs.pairs for job_id in pair}
            alone = [gang for gang in gangs if gang.key not in packed]
            for group in device_turns(alone, seats, mine, free, self.quantum):
                allocs |= group
                room.take(mine[min(group)], Alloc(parts=group[min(group)].parts))
        rest = [gang for gang in in_turn(gangs, seats, row) if gang.key not in allocs]
        allocs |= _run(rest, seats, packs, mine, room)
        idle = None
        if mine.keys() <= allocs.keys() and any(room.free(kind) > 0 for kind in room.kinds):
            idle = snapshot.now if (since := state.get("idle")) is None else since
            if snapshot.now - idle >= self.grow_after:
                self._grow(snapshot, mine, room, allocs)
        serve_rest((job for job in jobs if job.id not in mine), room, allocs)
        several = len({seats[gang.key].row for gang in rest}) > 1
        plan = meant(
            allocs,
            [*mine.values(), *(job for job in jobs if job.id not in mine)],
            why=dict.fromkeys(mine, _WAITS),
            wake=turned + self.quantum if several else None,
        )
        return plan, {
            "seats": {str(key): [place.row, place.type] for key, place in seats.items()},
            "packs": packs.to_state(),
            "row": row,
            "turned": turned,
            "idle": idle,
        }

    def _gangs(
        self,
        mine: Mapping[int, PolicyJob],
        snapshot: Snapshot,
        free: Mapping[str, int],
        packs: Packs,
        before: Mapping[int, Seat],
    ) -> tuple[list[PackedGang], Packs]:
        """Return the gangs to seat: jobs, and packs while demand exceeds the capacity."""
        packs.measure(mine, {job.id for job in snapshot.jobs})
        alone = [_gang(job, snapshot, free) for job in mine.values()]
        overloaded = any(place.row > 0 for place in seat(alone, free, before).values())
        if not self.packing or not overloaded:
            packs.pairs = []
            return alone, packs
        packs.choose(list(mine.values()), snapshot, sorted(free))
        second = {pair[1] for pair in packs.pairs}
        return [gang for gang in alone if gang.key not in second], packs

    def _migrated(
        self,
        gangs: Sequence[PackedGang],
        mine: Mapping[int, PolicyJob],
        snapshot: Snapshot,
        free: Mapping[str, int],
        seats: dict[int, Seat],
    ) -> dict[int, Seat]:
        """Move gangs to a faster type with room, unless gangs take turns."""
        if any(place.row for place in seats.values()):
            return seats
        left = dict(free)
        for gang in gangs:
            if gang.key in seats:
                left[seats[gang.key].type] -= gang.n
        for gang in gangs:
            place = seats.get(gang.key)
            if place is None:
                continue
            job = mine[gang.key]
            now = _rate(job, snapshot, place.type)
            for kind in gang.types:
                faster = _rate(job, snapshot, kind) >= now * self.migrate
                if kind != place.type and left[kind] >= gang.n and faster:
                    left[place.type] += gang.n
                    left[kind] -= gang.n
                    seats[gang.key] = Seat(row=0, type=kind)
                    break
        return seats

    def _turn(
        self, snapshot: Snapshot, state: Mapping[str, Any], seats: Mapping[int, Seat]
    ) -> tuple[int, float]:
        """Return the running row, and its start."""
        rows = max((place.row for place in seats.values()), default=0) + 1
        row = int(state.get("row", 0)) % rows
        turned = float(state.get("turned", snapshot.now))
        if snapshot.now - turned >= self.quantum - 1e-6:
            return (row + 1) % rows, snapshot.now
        return row, turned

    def _grow(
        self,
        snapshot: Snapshot,
        mine: Mapping[int, PolicyJob],
        room: FreeDevices,
        allocs: dict[int, Alloc],
    ) -> None:
        """Grow into idle devices, up to a node; the next plan returns them to waiting jobs."""
        for job in mine.values():
            alloc = allocs.get(job.id)
            if (
                job.terms.kind is Kind.RIGID
                or alloc is None
                or alloc.share
                or len(alloc.parts) > 1
            ):
                continue
            part = alloc.single
            kind = part.type or ""
            info = snapshot.pool.types.get(kind)
            most = min(part.n + room.free(kind), info.node_devices if info else part.n)
            rates = rates_by_size(snapshot, job, kind, most)
            better = [n for n in rates if n > part.n and rates[n] > rates.get(part.n, 0.0)]
            if better:
                room.take(job, Alloc(parts=(replace(part, n=max(better) - part.n),)))
                allocs[job.id] = Alloc(parts=(replace(part, n=max(better)),))


def _gang(job: PolicyJob, snapshot: Snapshot, free: Mapping[str, int]) -> PackedGang:
    """Build the gang of a job with its types: the current one, then by speed."""
    held = {part.type for part in job.alloc.parts} if job.alloc else set()
    kinds = sorted(
        one_type(job, sorted(free)),
        key=lambda kind: (kind not in held, -_rate(job, snapshot, kind), kind),
    )
    return PackedGang(key=job.id, n=job.gang, types=tuple(kinds))


def _rate(job: PolicyJob, snapshot: Snapshot, kind: str) -> float:
    return snapshot.model.rate(job, shape_of(snapshot, kind, job.gang))


def _run(
    gangs: Iterable[PackedGang],
    seats: Mapping[int, Seat],
    packs: Packs,
    mine: Mapping[int, PolicyJob],
    room: FreeDevices,
) -> dict[int, Alloc]:
    """Allocate the gangs that run now on their seated types, within the free devices."""
    partner = dict(packs.pairs)
    allocs: dict[int, Alloc] = {}
    for gang in gangs:
        kind = seats[gang.key].type
        if room.free(kind) >= gang.n:
            members = [gang.key] + ([partner[gang.key]] if gang.key in partner else [])
            for job_id in members:
                allocs[job_id] = _alloc(mine[job_id], kind, members)
            room.take(mine[gang.key], Alloc(parts=(Part(n=gang.n, type=kind),)))
    return allocs


def _alloc(job: PolicyJob, kind: str, members: Sequence[int]) -> Alloc:
    whole = on_type(job, kind)
    if len(members) == 1:
        return whole
    group = "+".join(map(str, sorted(members)))
    return Alloc(parts=whole.parts, share=Share(fraction=1.0 / len(members), group=group))


def _seats(state: Mapping[str, Any]) -> dict[int, Seat]:
    return {int(key): Seat(row=int(row), type=str(kind)) for key, (row, kind) in state.items()}
