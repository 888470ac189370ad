"""Singularity: preemptible, elastic jobs, with tiers that guarantee a part of full speed.

Shukla et al., arXiv 2202.07848 (its service tiers). A tier guarantees a part of a job's ideal
speed over a window; the paper has no algorithm, so these rounds are an interpretation. Jobs
shrink to divisors of their size, since replicas are spliced onto fewer devices with the same
number of ranks on each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any, ClassVar, Final

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.greedy import meant
from scheduling.core.policies.engines.room import FreeDevices, borrows, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Alloc, JobPhase, Part, Plan, PolicyJob, Snapshot

_TIERS: Final = {"premium": 0, "standard": 1}
_BASIC: Final = 2
_NOT_ADMITTED: Final = sentence(message("tier-does-not-fit"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Singularity:
    """Gives each service tier its guaranteed fraction first, then divides the rest fairly.

    Attributes:
        premium: fraction of full speed that the tier ``premium`` guarantees.
        standard: guaranteed fraction of tier ``standard``; other tiers guarantee nothing.
        window: seconds over which the guaranteed fraction counts.
    """

    premium: float = parameter(0.95, sentence("param-premium"), low=0.0, high=1.0)
    standard: float = parameter(0.7, sentence("param-standard"), low=0.0, high=1.0)
    window: float = parameter(3600.0, sentence("param-promise-window"), low=60.0, high=864e3)

    name: ClassVar[str] = "singularity"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "tiers with a guaranteed fraction of full speed; jobs shrink and move"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Meet the guarantees, then allocate the rest to the jobs with the least usage."""
        achieved = self._achieved(snapshot, state)
        jobs = present(snapshot)
        refused = self._not_admitted(jobs, snapshot)
        ordered = sorted(jobs, key=lambda job: (borrows(job), *self._urgency(job, achieved)))
        room = FreeDevices(snapshot)
        allocs = room.take_pinned(jobs)
        queue = [job for job in ordered if job.id not in refused and job.id not in allocs]
        for job in queue:
            self._promise(job, room, allocs)
        for job in queue:
            _grow(job, room, allocs)
        after = {
            "at": snapshot.now,
            "achieved": {str(job.id): round(achieved[job.id], 6) for job in jobs},
        }
        why = dict.fromkeys(sorted(refused), _NOT_ADMITTED)
        return meant(allocs, ordered, why=why), after

    def _target(self, job: PolicyJob) -> float:
        return {0: self.premium, 1: self.standard}.get(_rank(job), 0.0)

    def _achieved(self, snapshot: Snapshot, state: Mapping[str, Any]) -> dict[int, float]:
        """Return each job's share of full speed over the window, with exponential decay."""
        elapsed = max(0.0, snapshot.now - float(state.get("at", snapshot.now)))
        before = state.get("achieved", {})
        keep = 0.5 ** (elapsed / self.window)
        found = {}
        for job in present(snapshot):
            part = job.alloc.devices / max(1, job.gang) if job.alloc else 0.0
            now = min(1.0, part) if job.phase is JobPhase.RUNNING else 0.0
            found[job.id] = float(before.get(str(job.id), now)) * keep + now * (1 - keep)
        return found

    def _urgency(self, job: PolicyJob, achieved: Mapping[int, float]) -> tuple[Any, ...]:
        """Return the sort key: guarantees at risk by tier and shortfall, then basic jobs by usage.

        A standard job above its guarantee comes between the two, the smallest surplus first.
        Rounding to tenths, and running jobs before waiting ones, prevent needless changes.
        """
        lack = self._target(job) - achieved[job.id]
        owed = lack > 0 or _rank(job) == 0
        tenths = floor(-lack * 10 + 1e-9)
        waits = job.phase is not JobPhase.RUNNING
        group = _rank(job) if owed else _BASIC + (_rank(job) == _BASIC)
        return (group, tenths, waits, -job.priority, job.submitted, job.id)

    def _not_admitted(self, jobs: Sequence[PolicyJob], snapshot: Snapshot) -> frozenset[int]:
        """Return the jobs that have never run and whose guarantee does not fit with others."""
        promised = 0.0
        refused: set[int] = set()
        newest_last = sorted(
            jobs, key=lambda job: (job.facts.last_run is None, job.submitted, job.id)
        )
        for job in newest_last:
            share = self._target(job) * job.gang
            new = job.facts.last_run is None and job.phase is JobPhase.QUEUED
            if new and promised + share > snapshot.pool.devices + 1e-9:
                refused.add(job.id)
            else:
                promised += share
        return frozenset(refused)

    def _promise(self, job: PolicyJob, room: FreeDevices, allocs: dict[int, Alloc]) -> None:
        """Allocate the smallest size that meets the guarantee, otherwise the largest that fits."""
        sizes = splices(job)
        enough = [size for size in sizes if size >= self._target(job) * job.gang]
        fewer = [size for size in reversed(sizes) if size not in enough]
        for size in [*enough[:1], *fewer]:
            alloc = sized(job, size, room)
            if alloc is not None:
                room.take(job, alloc)
                allocs[job.id] = alloc
                return


def splices(job: PolicyJob) -> list[int]:
    """Return the sizes with whole numbers of ranks on each device, in ascending order."""
    if job.terms.scale is None:
        return [job.gang]
    divisors = [n for n in range(1, job.gang + 1) if job.gang % n == 0 and job.allows(n)]
    return divisors or ([job.gang] if job.allows(job.gang) else [])


def sized(job: PolicyJob, size: int, room: FreeDevices) -> Alloc | None:
    """Allocate on one type: the current one if possible, else the one with most room."""
    if size == job.gang:
        return room.fit(job)
    level = job.demand.members[0].within.value
    held = {part.type for part in job.alloc.parts} if job.alloc else set()
    free = room.free_for(job, size)
    kinds = sorted(free, key=lambda kind: (kind not in held, -free[kind], kind))
    kind = next((kind for kind in kinds if free[kind] >= size), None)
    if kind is None:
        return None
    return Alloc(parts=(Part(n=size, type=kind, level=level),))


def _grow(job: PolicyJob, room: FreeDevices, allocs: dict[int, Alloc]) -> None:
    """Grow jobs up to their full size, on their assigned types."""
    alloc = allocs.get(job.id)
    if alloc is None or len(alloc.parts) > 1 or alloc.devices >= job.gang:
        return
    part = alloc.single
    for size in reversed(splices(job)):
        if 0 < size - part.n <= room.free_for(job, size).get(part.type or "", 0):
            more = replace(part, n=size - part.n)
            room.take(job, Alloc(parts=(more,)))
            allocs[job.id] = Alloc(parts=(replace(part, n=size),))
            return


def _rank(job: PolicyJob) -> int:
    return _TIERS.get(job.terms.tier, _BASIC)
