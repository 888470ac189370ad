"""Optimus: devices to the largest gain in completion time (Peng et al., EuroSys '18, section 4).

Every job first gets its smallest size, in order of arrival. Then each step goes to the job with
the largest gain in remaining time per device. The model supplies the remaining steps
and their speed: the fit of loss curves and speeds (section 3), or an oracle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, runtime_checkable

from scheduling.core.messages import sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.greedy import greedy_marginal, meant
from scheduling.core.policies.engines.room import FreeDevices, borrows, present, shape_of
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Alloc, Part, Plan, PolicyJob, Snapshot


@runtime_checkable
class CountsSteps(Protocol):
    """A model that returns the remaining steps of a job at a given batch."""

    def steps_left(self, job: PolicyJob, batch: int | None) -> float | None:
        """Return the remaining steps at a total batch size (None for the current one), or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimus:
    """Gives each further device to the job with the largest gain.

    Attributes:
        young: factor on the gains of jobs with less than a tenth of their steps done, whose
            remaining steps are most uncertain (section 4.1).
    """

    young: float = parameter(1.0, sentence("param-young-factor"), low=0.0, high=1.0)

    name: ClassVar[str] = "optimus"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "gives each device to the job whose remaining time it shortens most"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RUNTIME, Need.THROUGHPUT})
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Plan the smallest sizes first, then grow step by step; small jobs are placed first."""
        jobs = present(snapshot)
        room = FreeDevices(snapshot)
        allocs = room.take_pinned(jobs)
        for lent in (False, True):
            group = [job for job in jobs if borrows(job) is lent and job.id not in allocs]
            allocs |= self._served(snapshot, room, group)
        ordered = sorted(
            jobs, key=lambda job: (allocs[job.id].devices if job.id in allocs else 0, job.id)
        )
        return meant(allocs, ordered), state

    def _served(
        self, snapshot: Snapshot, room: FreeDevices, jobs: Sequence[PolicyJob]
    ) -> dict[int, Alloc]:
        """Allocate one class of jobs, and take its devices out of ``room``."""
        kinds: dict[int, str] = {}
        start: dict[int, int] = {}
        for job in sorted(jobs, key=lambda job: (job.submitted, job.id)):
            least = job.least
            kind = _kind(room, job, least)
            if kind is not None:
                kinds[job.id], start[job.id] = kind, least
                room.take(job, Alloc(parts=(Part(n=least, type=kind),)))
        served = [job for job in jobs if job.id in start]
        growth = _Growth(snapshot, served, kinds, self.young)
        free = {kind: room.free(kind, served[0]) for kind in room.kinds} if served else {}
        counts = greedy_marginal(
            start=start, step=growth.step, gain=growth.gain, free=free, pool_of=kinds.__getitem__
        )
        allocs: dict[int, Alloc] = {}
        for job in served:
            more = counts[job.id] - start[job.id]
            if more:
                room.take(job, Alloc(parts=(Part(n=more, type=kinds[job.id]),)))
            allocs[job.id] = _alloc(job, kinds[job.id], counts[job.id])
        return allocs


class _Growth:
    """The next size of each job, and its gain."""

    def __init__(
        self,
        snapshot: Snapshot,
        jobs: Sequence[PolicyJob],
        kinds: Mapping[int, str],
        young: float,
    ) -> None:
        self._jobs = {job.id: job for job in jobs}
        self._left = {job.id: _remaining(snapshot, job, young) for job in jobs}

        @cache
        def seconds(job_id: int, devices: int) -> float | None:
            job = self._jobs[job_id]
            shape = shape_of(snapshot, kinds[job_id], devices)
            rate = snapshot.model.rate(job, shape, job.terms.batch)
            return 1.0 / rate if rate > 0.0 else None

        self._seconds = seconds

    def step(self, job_id: int, devices: int) -> int | None:
        """Return the next size that the job allows and at which it can run."""
        job = self._jobs[job_id]
        most = job.terms.scale.maximum if job.terms.scale else job.gang
        following = next((n for n in range(devices + 1, most + 1) if job.allows(n)), None)
        if following is None or self._seconds(job_id, following) is None:
            return None
        return following

    def gain(self, job_id: int, devices: int, following: int) -> float:
        """Return the seconds until completion saved per device."""
        now, then = self._seconds(job_id, devices), self._seconds(job_id, following)
        if now is None or then is None:
            return 0.0
        return (now - then) * self._left[job_id] / (following - devices)


def _remaining(snapshot: Snapshot, job: PolicyJob, young: float) -> float:
    """Return the remaining steps; if unknown, the number of finished ones."""
    left = None
    if isinstance(snapshot.model, CountsSteps):
        left = snapshot.model.steps_left(job, job.terms.batch)
    if left is None:
        left = job.facts.steps_left
    if left is None:
        return max(1.0, job.facts.steps_done)
    begun = job.facts.steps_done >= 0.1 * (job.facts.steps_done + left)
    return left if begun else left * young


def _kind(room: FreeDevices, job: PolicyJob, devices: int) -> str | None:
    """Return the type for a job: its present one, otherwise the first with room."""
    free = room.free_for(job, devices)
    held = job.alloc.parts[0].type if job.alloc else None
    if held is not None and free.get(held, 0) >= devices:
        return held
    kinds = list(free) if job.types else sorted(free, key=lambda kind: (-free[kind], kind))
    return next((kind for kind in kinds if free[kind] >= devices), None)


def _alloc(job: PolicyJob, kind: str, devices: int) -> Alloc:
    """Return devices of a type at the requested batch; the current allocation if equal."""
    held = job.alloc
    batch = job.terms.batch
    is_same = held is not None and held.share is None and held.batch == batch
    if held is not None and is_same and held.sizes == ((devices, kind),):
        return held
    return Alloc(parts=(Part(n=devices, type=kind),), batch=batch)
