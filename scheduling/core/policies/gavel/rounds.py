"""Rounds that give each combination of jobs its fraction of time on average.

A combination's priority on a type is its target fraction over its received fraction, and rounds
are filled in the order of the priorities (Gavel, OSDI '20, section 5).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.core.policy_interface import Alloc, JobPhase, PolicyJob, Snapshot

Combination = tuple[int, ...]

_NEVER_SERVED = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """Target time of one combination of jobs on one type.

    Attributes:
        jobs: one job, or two that share devices.
        type: device type.
        share: the fraction of time, above 0.
        received: seconds run on this type since the fractions were set.
        deficit: seconds still owed when the fractions were set.
        n: number of devices that it uses while it runs.
    """

    jobs: Combination
    type: str
    share: float
    received: float
    deficit: float
    n: int


def choose_round(
    claims: Sequence[TimeShare],
    *,
    free: Mapping[str, int],
    totals: Mapping[str, float],
    taken: Callable[[int], bool] = lambda _job: False,
) -> list[TimeShare]:
    """Return the claims that are served in this round, the most urgent first.

    Args:
        claims: all claims; a claim without a share is never served.
        free: devices by type.
        totals: seconds received by all combinations together by type.
        taken: jobs that run independently of their share.

    Returns:
        Claims that fit together, each job in at most one of them. A claim that does not fit is
        skipped, so that claimed devices are not idle.
    """
    left = dict(free)
    chosen: list[TimeShare] = []
    busy: set[int] = set()

    def urgency(claim: TimeShare) -> tuple[float, float, float, Combination, str]:
        total = totals.get(claim.type, 0.0)
        had = claim.received / total if total > 0 else 0.0
        priority = claim.share / had if had > 0 else claim.share * _NEVER_SERVED
        return (-priority, -claim.deficit, -claim.share, claim.jobs, claim.type)

    for claim in sorted((claim for claim in claims if claim.share > 0), key=urgency):
        if claim.n > left.get(claim.type, 0):
            continue
        if any(job in busy or taken(job) for job in claim.jobs):
            continue
        left[claim.type] -= claim.n
        busy.update(claim.jobs)
        chosen.append(claim)
    return chosen


@dataclass(slots=True, kw_only=True)
class Turns:
    """Seconds by combination and type, with the deficits at the last reset.

    Attributes:
        at: time of this state.
        reset: start of counting.
        rotated: time of the last rotation.
        jobs: jobs of the fractions.
        fractions: fractions by combination and type.
    """

    at: float
    reset: float
    rotated: float
    jobs: tuple[int, ...]
    fractions: dict[Combination, dict[str, float]]
    received: dict[Combination, dict[str, float]]
    owed: dict[Combination, dict[str, float]]

    @classmethod
    def from_state(cls, state: Mapping[str, Any], now: float) -> "Turns":
        """Parse the output of ``to_state``; an empty document gives a new state."""
        return cls(
            at=float(state.get("at", now)),
            reset=float(state.get("reset", now)),
            rotated=float(state.get("rotated", -1e18)),
            jobs=tuple(state.get("jobs", ())),
            fractions=_read(state.get("fractions", {})),
            received=_read(state.get("received", {})),
            owed=_read(state.get("owed", {})),
        )

    def to_state(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "at": self.at,
            "reset": self.reset,
            "rotated": self.rotated,
            "jobs": list(self.jobs),
            "fractions": _written(self.fractions),
            "received": _written(self.received),
            "owed": _written(self.owed),
        }

    def credit(self, snapshot: Snapshot) -> None:
        """Count the time since ``at`` for the current allocations."""
        for combination, kind, seconds in _held(snapshot, self.at):
            row = self.received.setdefault(combination, {})
            row[kind] = row.get(kind, 0.0) + seconds
        self.at = snapshot.now

    def start_over(self, now: float) -> None:
        """Reset the counts, and store the deficits."""
        elapsed = now - self.reset
        for combination, row in self.fractions.items():
            had = self.received.get(combination, {})
            owed = self.owed.setdefault(combination, {})
            for kind, share in row.items():
                owed[kind] = owed.get(kind, 0.0) + share * elapsed - had.get(kind, 0.0)
        self.received = {}
        self.reset = now

    def forget(self, jobs: Iterable[int]) -> None:
        """Drop jobs that have left."""
        there = set(jobs)
        for table in (self.fractions, self.received, self.owed):
            for combination in [c for c in table if not there >= set(c)]:
                del table[combination]

    def claims(self, sizes: Mapping[int, int], seed_seconds: float) -> list[TimeShare]:
        """Compute the target time of all jobs; newcomers count as if they had ``seed_seconds``."""
        return [
            TimeShare(
                jobs=combination,
                type=kind,
                share=share,
                received=self.received.get(combination, {}).get(kind, 0.0) + seed_seconds,
                deficit=self.owed.get(combination, {}).get(kind, 0.0),
                n=sizes[combination[0]],
            )
            for combination, row in sorted(self.fractions.items())
            for kind, share in sorted(row.items())
        ]


def running_claims(snapshot: Snapshot) -> set[tuple[Combination, str]]:
    """Return the running combinations on each type."""
    return {(combination, kind) for combination, kind, _ in _held(snapshot, snapshot.now)}


def _held(snapshot: Snapshot, since: float) -> list[tuple[Combination, str, float]]:
    groups: dict[str, list[PolicyJob]] = {}
    for job in sorted(snapshot.jobs, key=lambda job: job.id):
        if job.phase is JobPhase.RUNNING and job.alloc is not None and job.alloc.parts:
            groups.setdefault(_group(job.id, job.alloc), []).append(job)
    found = []
    for members in groups.values():
        alloc = members[0].alloc
        kind = alloc.parts[0].type if alloc is not None else None
        if kind is not None:
            begun = max(since, *(job.since for job in members), snapshot.now - 1e18)
            seconds = max(0.0, snapshot.now - begun)
            found.append((tuple(job.id for job in members), kind, seconds))
    return found


def _group(job_id: int, alloc: Alloc) -> str:
    group = alloc.share.group if alloc.share is not None else None
    return f"#{job_id}" if group is None else group


def _read(table: Mapping[str, Mapping[str, float]]) -> dict[Combination, dict[str, float]]:
    return {tuple(map(int, key.split("+"))): dict(row) for key, row in table.items()}


def _written(table: Mapping[Combination, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {"+".join(map(str, key)): dict(sorted(table[key].items())) for key in sorted(table)}
