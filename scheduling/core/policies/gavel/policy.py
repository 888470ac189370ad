"""Gavel: fractions of time on each type, and rounds that follow them (OSDI '20, sections 3-5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.greedy import meant, serve_rest
from scheduling.core.policies.engines.pairs import WORTH, Pair, measured_worth
from scheduling.core.policies.engines.room import FreeDevices, borrows, on_type, one_type, present
from scheduling.core.policies.gavel.rounds import (
    Combination,
    TimeShare,
    Turns,
    choose_round,
    running_claims,
)
from scheduling.core.policies.parameters import parameter, priced, prices_parameter
from scheduling.core.policy_interface import Alloc, Plan, PolicyJob, Share, Snapshot

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
    """Optimises time shares by device type, then runs the jobs with the largest deficit.

    Attributes:
        objective: objective of the fractions.
        aware: whether to use the speed of each type; otherwise all types count equally.
        sharing: pairs of jobs may share devices.
        relative: throughputs count relative to each job's best type.
        within: distribution of a tenant's weight to its jobs, with ``hierarchical``.
        quantum: seconds between two rotations; in between, only free devices are allocated.
        reset_seconds: minimum seconds for which received time counts.
        spare: jobs without a fraction may have idle devices.
        prices: price of device-hours by type, for ``cost``.
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
    summary: ClassVar[str] = (
        "time shares on each device type by linear programs, applied round by round"
    )
    needs: ClassVar[frozenset[Need]] = frozenset({Need.THROUGHPUT, Need.RUNTIME})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Compute fractions if the jobs have changed, and allocate the devices of this round."""
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
        barred = self._barred(snapshot, able, turns, state)
        done = self._update(snapshot, turns, able, room, state, barred=barred)
        formed = {(tuple(jobs), kind) for jobs, kind in state.get("formed", ())}
        chosen = self._give_out(snapshot, turns, able, room, formed)
        by_id = {job.id: job for job in able}
        if self.spare:
            chosen += _spare_claims(able, room, chosen)
        for claim in chosen:
            for job_id in claim.jobs:
                allocs[job_id] = _alloc(by_id[job_id], claim)
            room.take(by_id[claim.jobs[0]], on_type(by_id[claim.jobs[0]], claim.type))
        # Fractions do not cover borrowers and gangs that need two types.
        serve_rest((job for job in jobs if job.id not in by_id), room, allocs)
        rank = {job_id: place for place, claim in enumerate(chosen) for job_id in claim.jobs}
        ordered = sorted(
            jobs, key=lambda job: (rank.get(job.id, len(chosen)), borrows(job), job.id)
        )
        why = dict.fromkeys((job.id for job in able), _WAITS)
        return meant(allocs, ordered, why=why), {
            **turns.to_state(),
            "isolated": done,
            **_pairs_state(barred, chosen),
        }

    def _barred(
        self,
        snapshot: Snapshot,
        able: Sequence[PolicyJob],
        turns: Turns,
        state: Mapping[str, Any],
    ) -> frozenset[Pair]:
        """Return the pairs that were slower together than alone, and drop their fractions.

        A job that leaves its device will wait again, so that its pairs are kept.
        """
        jobs, live = {job.id: job for job in able}, {job.id for job in snapshot.jobs}
        old = {(a, b) for a, b in state.get("barred", ()) if a in live and b in live}
        slow = {
            (combination[0], combination[1])
            for combination in turns.fractions
            if len(combination) == 2 and (measured_worth(combination, jobs) or 2.0) <= WORTH
        }
        if slow - old:
            turns.fractions = {}  # computed again, without these pairs
        return frozenset(old | slow)

    def _update(
        self,
        snapshot: Snapshot,
        turns: Turns,
        able: Sequence[PolicyJob],
        room: FreeDevices,
        state: Mapping[str, Any],
        *,
        barred: frozenset[Pair],
    ) -> Mapping[str, Any]:
        """Compute new fractions if the set of jobs changed, and each job's isolated run time."""
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
            view = view.with_pairs(barred)
        isolated = view.isolated_after(isolated)
        turns.fractions = view.solve(
            self.objective, within=self.within, relative=self.relative, isolated=isolated
        )
        turns.jobs = ids
        return isolated

    def _give_out(
        self,
        snapshot: Snapshot,
        turns: Turns,
        able: Sequence[PolicyJob],
        room: FreeDevices,
        formed: set[tuple[Combination, str]],
    ) -> list[TimeShare]:
        """Choose the jobs to run: all again after the quantum, else running and further ones.

        A pair that has been chosen runs as soon as its second job has started.
        """
        claims = turns.claims({job.id: job.gang for job in able}, snapshot.round_seconds / 2)
        free = {kind: room.free(kind) for kind in room.kinds}
        totals: dict[str, float] = {}
        for claim in claims:
            totals[claim.type] = totals.get(claim.type, 0.0) + claim.received
        if snapshot.now - turns.rotated >= self.quantum - 1e-6:
            turns.rotated = snapshot.now
            return choose_round(claims, free=free, totals=totals)
        running = running_claims(snapshot)
        forming = {pair for pair in formed if any(((job,), pair[1]) in running for job in pair[0])}
        running -= {((job,), kind) for jobs, kind in forming for job in jobs}
        running |= forming
        kept = choose_round(
            [claim for claim in claims if (claim.jobs, claim.type) in running],
            free=free,
            totals=totals,
        )
        for claim in kept:
            free[claim.type] -= claim.n
        busy = {job_id for claim in kept for job_id in claim.jobs}
        return kept + choose_round(claims, free=free, totals=totals, taken=busy.__contains__)


def _pairs_state(barred: frozenset[Pair], chosen: Sequence[TimeShare]) -> dict[str, Any]:
    """Return the state of pairs; nothing if there are none."""
    formed = [[list(claim.jobs), claim.type] for claim in chosen if len(claim.jobs) > 1]
    state: dict[str, Any] = {"barred": [list(pair) for pair in sorted(barred)]} if barred else {}
    return state | ({"formed": formed} if formed else {})


def _spare_claims(
    able: Sequence[PolicyJob], room: FreeDevices, chosen: Sequence[TimeShare]
) -> list[TimeShare]:
    """Claim idle devices without a share, type by type, in the order of the jobs."""
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
