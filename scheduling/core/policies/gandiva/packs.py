"""Packing: two jobs on one device while they gain more together than in turns.

Gandiva (OSDI '18, section 4.1): packing is tried while the cluster is overloaded, lowest
utilisation first, and undone if the measured rates are too low.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scheduling.core.policy_interface import JobPhase, PolicyJob, Snapshot

Pair = tuple[int, int]

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
        """JSON values."""
        return {
            "pairs": [list(pair) for pair in sorted(self.pairs)],
            "barred": [list(pair) for pair in sorted(self.barred)],
            "alone": {str(job): pace for job, pace in sorted(self.alone.items())},
        }

    def measure(self, jobs: Mapping[int, PolicyJob]) -> None:
        """Store the rates of jobs alone, and undo packs slower than one device alone."""
        self.alone = {job: pace for job, pace in self.alone.items() if job in jobs}
        self.barred = {pair for pair in self.barred if jobs.keys() >= set(pair)}
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
            key=lambda job: (_busy(job), job.id),
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
        """Devices' worth of work that a pack makes; None while it has not been seen."""
        total = 0.0
        for job_id in pair:
            job = jobs[job_id]
            shares = job.alloc is not None and job.alloc.share is not None
            if not shares or not job.facts.step_time or job_id not in self.alone:
                return None
            total += (1.0 / job.facts.step_time) / self.alone[job_id]
        return total


def _busy(job: PolicyJob) -> float:
    return 1.0 if job.facts.util is None else job.facts.util


def _promises(
    first: PolicyJob, other: PolicyJob, snapshot: Snapshot, kinds: Sequence[str]
) -> bool:
    """Whether two jobs fit into a device's memory and should make more together."""
    needed = (first.facts.memory_peak or 0) + (other.facts.memory_peak or 0)
    for kind in kinds:
        info = snapshot.pool.types.get(kind)
        fits = info is None or info.memory is None or needed <= info.memory
        if fits and sum(snapshot.model.pair(first, other, kind)) > 1.0:
            return True
    return False
