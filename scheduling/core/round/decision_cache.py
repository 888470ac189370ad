"""Cache between consecutive decisions on one cell engine: allowed nodes, and running jobs.

A simulation decides after each event, and an event changes few jobs. With the cache a decision
examines only jobs that changed; its result is the same as without.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scheduling.core.cells import CellEngine
from scheduling.core.jobspec import JobClass
from scheduling.core.round.caps import DeviceUse
from scheduling.core.round.engine_setup import disagrees, gangs_of, rebindings
from scheduling.core.round.placement import Restrictions
from scheduling.core.round_result import Rebinding
from scheduling.core.values import ClusterSnapshot, HoldingJob


class _HeldJob(NamedTuple):
    """A running job as counted: its devices, and those outside a guarantee."""

    job: HoldingJob
    devices: int
    borrowed: int


class HeldJobs:
    """The running jobs of a decision, and their devices.

    Attributes:
        engine: contains their gangs.
        jobs: the running jobs by ID.
        use: their devices by owner and virtual cluster.
    """

    def __init__(self, engine: CellEngine) -> None:
        self.engine = engine
        self.jobs: dict[int, HoldingJob] = {}
        self.use = DeviceUse()
        self._known: dict[int, _HeldJob] = {}
        self._disagreeing: set[int] = set()
        self._quota_changes = 0

    def update(self, holding: Sequence[HoldingJob]) -> None:
        """Update the running jobs; a job with other devices is another object."""
        known, before, changes = self._known, self.jobs, self.engine.quota_changes
        if changes != self._quota_changes:
            self._quota_changes, self.use, before = changes, DeviceUse(), {}
            known.clear()
            self._disagreeing.clear()
        self.jobs = jobs = {job.id: job for job in holding}
        for job in [job for job_id, job in jobs.items() if before.get(job_id) is not job]:
            if job.id in known:
                self._remove(known[job.id])
            self._add(job)
        if len(known) > len(jobs):
            for job_id in known.keys() - jobs.keys():
                self._remove(known[job_id])

    def rebindings(self) -> Iterator[Rebinding]:
        """Yield running jobs whose leases and engine disagree about the guarantee."""
        if self.engine.quota_changes != self._quota_changes:
            return rebindings(self.engine, self.jobs.values())
        return rebindings(self.engine, [self.jobs[job_id] for job_id in self._disagreeing])

    def _add(self, job: HoldingJob) -> None:
        gangs, devices = gangs_of(self.engine, job), job.devices
        borrowed = devices
        if job.job_class is not JobClass.OPPORTUNISTIC:
            borrowed = sum(
                spot.mask.bit_count()
                for gang in gangs
                if not gang.guaranteed
                for spot in gang.spots
            )
        self._known[job.id] = _HeldJob(job, devices, borrowed)
        self.use.add(job, devices=devices, borrowed=borrowed)
        stake = max(job.since, job.saved or 0.0), 0 if job.leaving else devices
        for gang in gangs:
            gang.stake = stake
        if disagrees(self.engine, job):
            self._disagreeing.add(job.id)

    def _remove(self, held: _HeldJob) -> None:
        del self._known[held.job.id]
        self.use.add(held.job, devices=-held.devices, borrowed=-held.borrowed)
        self._disagreeing.discard(held.job.id)


class DecisionCache:
    """Facts that consecutive decisions on one engine share; use one for each engine."""

    def __init__(self) -> None:
        self._restrictions: Restrictions | None = None
        self._held: HeldJobs | None = None

    def restrictions(self, snapshot: ClusterSnapshot) -> Restrictions:
        """Return the allowed nodes of jobs; computed again if nodes or rules have changed."""
        if self._restrictions is None or not self._restrictions.hold_for(snapshot):
            self._restrictions = Restrictions(snapshot)
        return self._restrictions

    def held(self, engine: CellEngine, holding: Sequence[HoldingJob]) -> HeldJobs:
        """Return the running jobs; all are counted again on another engine."""
        if self._held is None or self._held.engine is not engine:
            self._held = HeldJobs(engine)
        self._held.update(holding)
        return self._held
