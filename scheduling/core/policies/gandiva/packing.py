"""Gandiva's time slots, and packing of two jobs on one device if their total speed increases.

The matrix of slots is Ousterhout's (ICDCS '82): columns are devices, rows are slices of time. A
gang has the same row on all of its devices, so that all its workers run at once. Packing (OSDI
'18, section 4.1) is tried while the cluster is overloaded, lowest utilisation first, and undone if
the measured rates are too low.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scheduling.core.policies.engines.pairs import Pair, measured_worth
from scheduling.core.policy_interface import JobPhase, PolicyJob, Snapshot

#: Maximum number of partners tried for a job, which bounds the cost of a long queue.
_TRIES: Final = 20


@dataclass(slots=True, kw_only=True)
class Packs:
    """Pairs that share a device, each job's rate alone, and failed pairs."""

    pairs: list[Pair] = field(default_factory=list)
    barred: set[Pair] = field(default_factory=set)
    alone: dict[int, float] = field(default_factory=dict)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Packs":
        """Parse the output of ``to_state``."""
        return cls(
            pairs=[(a, b) for a, b in state.get("pairs", [])],
            barred={(a, b) for a, b in state.get("barred", [])},
            alone={int(job): float(pace) for job, pace in state.get("alone", {}).items()},
        )

    def to_state(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "pairs": [list(pair) for pair in sorted(self.pairs)],
            "barred": [list(pair) for pair in sorted(self.barred)],
            "alone": {str(job): pace for job, pace in sorted(self.alone.items())},
        }

    def measure(self, jobs: Mapping[int, PolicyJob], live: Collection[int]) -> None:
        """Store the rates of jobs alone, and undo packs slower than one device alone.

        Args:
            jobs: the jobs that can get devices, by ID.
            live: these, and the jobs that leave their devices and will wait again.
        """
        self.alone = {job: pace for job, pace in self.alone.items() if job in live}
        self.barred = {(a, b) for a, b in self.barred if a in live and b in live}
        self.pairs = [pair for pair in self.pairs if jobs.keys() >= set(pair)]
        for job in jobs.values():
            measured = job.facts.step_time and job.phase is JobPhase.RUNNING
            if measured and job.alloc is not None and job.alloc.share is None:
                self.alone[job.id] = 1.0 / (job.facts.step_time or 1.0)
        for pair in list(self.pairs):
            worth = self._measured(pair, jobs)
            if worth is not None and worth <= 1.0:
                self.pairs.remove(pair)
                self.barred.add(pair)

    def choose(self, jobs: Sequence[PolicyJob], snapshot: Snapshot, kinds: Sequence[str]) -> None:
        """Pack suitable jobs, the least utilised first, if the expected rate is higher."""
        packed = {job for pair in self.pairs for job in pair}
        able = sorted(
            (
                job
                for job in jobs
                if job.gang == 1 and job.terms.shareable and job.id not in packed
            ),
            key=lambda job: (1.0 if job.facts.util is None else job.facts.util, job.id),
        )
        while len(able) > 1:
            first = able.pop(0)
            for other in able[:_TRIES]:
                pair = (min(first.id, other.id), max(first.id, other.id))
                alike = first.types == other.types and pair not in self.barred
                if alike and _promises(first, other, snapshot, kinds):
                    self.pairs.append(pair)
                    able.remove(other)
                    break

    def _measured(self, pair: Pair, jobs: Mapping[int, PolicyJob]) -> float | None:
        """Return the work of a pack in devices, or None before its first observation."""
        measured = measured_worth(pair, jobs)
        if measured is not None:
            return measured
        total = 0.0
        for job_id in pair:
            job = jobs[job_id]
            shares = job.alloc is not None and job.alloc.share is not None
            if not shares or not job.facts.step_time or job_id not in self.alone:
                return None
            total += (1.0 / job.facts.step_time) / self.alone[job_id]
        return total


def _promises(
    first: PolicyJob, other: PolicyJob, snapshot: Snapshot, kinds: Sequence[str]
) -> bool:
    """Return whether two jobs fit into a device's memory and should be faster together."""
    needed = (first.facts.memory_peak or 0) + (other.facts.memory_peak or 0)
    for kind in kinds:
        info = snapshot.pool.types.get(kind)
        fits = info is None or info.memory is None or needed <= info.memory
        if fits and sum(snapshot.model.pair(first, other, kind)) > 1.0:
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGang:
    """A job, or a pack of jobs, that is placed as one gang.

    Attributes:
        key: ID of the job, or of the first job of a pack.
        n: number of devices.
        types: possible types, best first.
    """

    key: int
    n: int
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A gang's seat: its row, and the type in it."""

    row: int
    type: str


def seat(
    gangs: Sequence[PackedGang], capacity: Mapping[str, int], before: Mapping[int, Seat]
) -> dict[int, Seat]:
    """Assign a seat to each gang that can fit, in as few rows as first-fit packing needs.

    Existing gangs retain their seats; new ones take the first row with room. Then gangs of the
    last row move to other rows as far as there is room, and empty rows are removed.

    Args:
        gangs: gangs in order of arrival.
        capacity: devices by type, equal in all rows.
        before: previous seats.
    """
    rows: list[dict[str, int]] = []
    seats: dict[int, Seat] = {}

    def sit(gang: PackedGang, row: int, kind: str) -> bool:
        while len(rows) <= row:
            rows.append(dict(capacity))
        if rows[row].get(kind, 0) < gang.n:
            return False
        rows[row][kind] -= gang.n
        seats[gang.key] = Seat(row=row, type=kind)
        return True

    able = [gang for gang in gangs if any(capacity.get(k, 0) >= gang.n for k in gang.types)]
    for gang in able:
        old = before.get(gang.key)
        if old is not None and old.type in gang.types:
            sit(gang, old.row, old.type)
    for gang in able:
        if gang.key not in seats:
            _sit_first(gang, len(rows) + 1, sit)
    _empty_last_rows(able, seats, rows, sit)
    used = sorted({place.row for place in seats.values()})
    return {
        key: Seat(row=used.index(place.row), type=place.type)
        for key, place in sorted(seats.items())
    }


def _empty_last_rows(
    able: Sequence[PackedGang],
    seats: Mapping[int, Seat],
    rows: list[dict[str, int]],
    sit: Callable[[PackedGang, int, str], bool],
) -> None:
    """Move gangs of the last row forwards as far as possible; remove the row if it is empty."""
    moved = True
    while moved:
        moved = False
        last = max((place.row for place in seats.values()), default=0)
        for gang in reversed(able):
            old = seats[gang.key]
            if old.row == last and _sit_first(gang, last, sit):
                rows[last][old.type] += gang.n
                moved = True


def in_turn(gangs: Sequence[PackedGang], seats: Mapping[int, Seat], row: int) -> list[PackedGang]:
    """Order gangs as they run now: those of ``row``, then those of the following rows."""
    rows = max((place.row for place in seats.values()), default=0) + 1
    seated = [gang for gang in gangs if gang.key in seats]
    return sorted(seated, key=lambda gang: (seats[gang.key].row - row) % rows)


def _sit_first(gang: PackedGang, most: int, sit: Callable[[PackedGang, int, str], bool]) -> bool:
    """Seat a gang in the first of ``most`` rows with room, on the best type with room."""
    return any(sit(gang, row, kind) for row in range(most) for kind in gang.types)
