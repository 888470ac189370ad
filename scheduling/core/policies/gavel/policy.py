"""Gavel: fractions of time on each type, and rounds that follow them (OSDI '20, sections 3-5)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.room import FreeDevices, borrows, on_type, one_type, present
from scheduling.core.policies.engines.sorting import meant, serve_rest
from scheduling.core.policies.engines.timeshare import Combination, TimeShare, choose_round
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.prices import priced, prices_parameter
from scheduling.core.policy_interface import Alloc, JobPhase, Plan, PolicyJob, Share, Snapshot


@dataclass(slots=True, kw_only=True)
class Turns:
    """Seconds by combination and type, with the deficits at the last reset.

    Attributes:
        at: time of this state.
        reset: start of counting.
        rotated: time of the last rotation.
        jobs: jobs of the fractions.
        fractions: by combination and type.
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
        """Parse the output of ``to_state``; empty: a new state."""
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
        """JSON values."""
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
        """Count the time since ``at`` for whatever is held now."""
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
        """Target time of all jobs, newcomers counted as if they had had ``seed_seconds``."""
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
    """Present combinations on each type."""
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


OBJECTIVES = (
    "max-min",
    "fifo",
    "makespan",
    "finish-time",
    "throughput",
    "cost",
    "slo",
    "hierarchical",
)
_WAITS = sentence(message("share-not-behind"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel:
    """Optimises time shares on each type, then serves the job with the largest deficit.

    Attributes:
        objective: of the fractions.
        aware: use the speed of each type; else all types count alike.
        sharing: pairs of jobs may share devices.
        relative: throughputs count relative to each job's best type.
        within: distribution of a tenant's weight to its jobs, with ``hierarchical``.
        quantum: seconds between two rotations; in between only free devices are given out.
        reset_seconds: minimum seconds for which received time counts.
        spare: jobs without a fraction may have idle devices.
        prices: of device-hours by type, for ``cost``.
    """

    objective: str = parameter("max-min", sentence("param-objective"), choices=OBJECTIVES)
    aware: bool = parameter(True, sentence("param-throughput"))
    sharing: bool = parameter(False, sentence("param-pairs"))
    relative: bool = parameter(True, sentence("param-scaled"))
    within: str = parameter("fairness", sentence("param-split"), choices=("fairness", "fifo"))
    quantum: float = parameter(360.0, sentence("param-rotation"), low=0.0, high=86_400.0)
    reset_seconds: float = parameter(1920.0, sentence("param-memory"), low=0.0, high=864_000.0)
    spare: bool = parameter(False, sentence("param-leftovers"))
    prices: str = prices_parameter()

    name: ClassVar[str] = "gavel"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "fractions of time on each type by linear programs, given as rounds"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.THROUGHPUT, Need.RUNTIME})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Compute fractions when the jobs have changed, and give out this round."""
        snapshot = priced(snapshot, self.prices)
        jobs = present(snapshot)
        room = FreeDevices(snapshot)
        allocs = room.take_pinned(jobs)
        able = [
            job
            for job in jobs
            if job.id not in allocs and not borrows(job) and one_type(job, room.kinds)
        ]
        turns = Turns.from_state(state, snapshot.now)
        turns.credit(snapshot)
        done = self._update(snapshot, turns, able, room, state)
        chosen = self._give_out(snapshot, turns, able, room)
        by_id = {job.id: job for job in able}
        if self.spare:
            chosen += _spare_claims(able, room, chosen)
        for claim in chosen:
            for job_id in claim.jobs:
                allocs[job_id] = _alloc(by_id[job_id], claim)
            room.take(by_id[claim.jobs[0]], on_type(by_id[claim.jobs[0]], claim.type))
        # No fraction speaks of borrowers, nor of gangs that need two types.
        serve_rest((job for job in jobs if job.id not in by_id), room, allocs)
        rank = {job_id: place for place, claim in enumerate(chosen) for job_id in claim.jobs}
        ordered = sorted(
            jobs, key=lambda job: (rank.get(job.id, len(chosen)), borrows(job), job.id)
        )
        why = dict.fromkeys((job.id for job in able), _WAITS)
        return meant(allocs, ordered, why=why), {**turns.to_state(), "isolated": done}

    def _update(
        self,
        snapshot: Snapshot,
        turns: Turns,
        able: Sequence[PolicyJob],
        room: FreeDevices,
        state: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """New fractions if the set of jobs has changed, and each job's isolated run time."""
        # The programs need arrays, which the portal's own processes do without.
        from scheduling.core.policies.gavel.fractions import GavelView  # noqa: PLC0415

        ids = tuple(job.id for job in able)
        isolated: Mapping[str, Any] = state.get("isolated", {})
        turns.forget(ids)
        if ids == turns.jobs and turns.fractions:
            return isolated
        if snapshot.now - turns.reset >= self.reset_seconds:
            turns.start_over(snapshot.now)
        view = GavelView.of(
            snapshot, able, {kind: room.free(kind) for kind in room.kinds}, self.aware
        )
        if self.sharing:
            view = view.with_pairs()
        isolated = view.isolated_after(isolated)
        turns.fractions = view.solve(
            self.objective, within=self.within, relative=self.relative, isolated=isolated
        )
        turns.jobs = ids
        return isolated

    def _give_out(
        self, snapshot: Snapshot, turns: Turns, able: Sequence[PolicyJob], room: FreeDevices
    ) -> list[TimeShare]:
        """Jobs to run: all chosen again after the quantum, else running ones and further ones."""
        claims = turns.claims({job.id: job.gang for job in able}, snapshot.round_seconds / 2)
        free = {kind: room.free(kind) for kind in room.kinds}
        totals: dict[str, float] = {}
        for claim in claims:
            totals[claim.type] = totals.get(claim.type, 0.0) + claim.received
        if snapshot.now - turns.rotated >= self.quantum - 1e-6:
            turns.rotated = snapshot.now
            return choose_round(claims, free=free, totals=totals)
        running = running_claims(snapshot)
        kept = choose_round(
            [claim for claim in claims if (claim.jobs, claim.type) in running],
            free=free,
            totals=totals,
        )
        for claim in kept:
            free[claim.type] -= claim.n
        busy = {job_id for claim in kept for job_id in claim.jobs}
        return kept + choose_round(claims, free=free, totals=totals, taken=busy.__contains__)


def _spare_claims(
    able: Sequence[PolicyJob], room: FreeDevices, chosen: Sequence[TimeShare]
) -> list[TimeShare]:
    """Claims without a share on idle devices, type by type, in the order of the jobs."""
    left = {kind: room.free(kind) for kind in room.kinds}
    for claim in chosen:
        left[claim.type] -= claim.n
    busy = {job_id for claim in chosen for job_id in claim.jobs}
    found = []
    for kind in room.kinds:
        for job in able:
            if job.id in busy or job.gang > left[kind] or kind not in one_type(job, room.kinds):
                continue
            left[kind] -= job.gang
            busy.add(job.id)
            found.append(
                TimeShare(
                    jobs=(job.id,), type=kind, share=0.0, received=0.0, deficit=0.0, n=job.gang
                )
            )
    return found


def _alloc(job: PolicyJob, claim: TimeShare) -> Alloc:
    if len(claim.jobs) == 1:
        return on_type(job, claim.type)
    group = "+".join(map(str, claim.jobs))
    share = Share(fraction=1.0 / len(claim.jobs), group=group)
    return replace(on_type(job, claim.type), share=share)
