"""Philly: queues with quotas, and gangs that wait for locality before they do without.

Jeon et al., ATC '19, section 2.3. A gang first asks for the tightest domain that can hold it;
each time it has waited in vain for a while it asks for the next wider one. Gangs that wait hold
nothing, so smaller jobs may pass. Devices are taken back only when the cluster is nearly full. The
times and the mark of fullness are parameters, with our own defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from scheduling.core.jobspec import Within
from scheduling.core.messages import sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.parameters import parameter
from scheduling.core.policies.queues.capacity import Capacity
from scheduling.core.policy_interface import Alloc, JobPhase, Plan, PolicyJob, Snapshot

_TIGHTNESS: Final = {within: rank for rank, within in enumerate(Within)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Philly:
    """Quotas as in ``capacity``, with a locality that is relaxed by waiting.

    Attributes:
        relax_seconds: wait of a gang for one domain before it asks for a wider one.
        full: from this part of devices in use on, queues above their share give back.
    """

    relax_seconds: float = parameter(
        180.0, sentence("param-locality-wait"), low=0.0, high=86_400.0
    )
    full: float = parameter(0.9, sentence("param-preempt-from"), low=0.0, high=1.0)

    name: ClassVar[str] = "philly"
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "quotas, with locality relaxed while a gang waits"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CELLS})
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """The plan of the queues, each start with the locality that it asks for now."""
        running = [job for job in snapshot.jobs if job.phase is JobPhase.RUNNING]
        used = sum(job.gang for job in running)
        queues = Capacity(preempt=used >= self.full * snapshot.pool.devices)
        plan, _ = queues.plan(snapshot, {})
        jobs = {job.id: job for job in snapshot.jobs}
        allocs = {
            job_id: alloc
            if jobs[job_id].phase is JobPhase.RUNNING
            else self._localised(jobs[job_id], alloc, snapshot)
            for job_id, alloc in plan.allocs.items()
        }
        return replace(plan, allocs=allocs), state

    def _localised(self, job: PolicyJob, alloc: Alloc, snapshot: Snapshot) -> Alloc:
        parts = tuple(
            replace(part, level=self._level(job, member.within, part.type, part.n, snapshot))
            for part, member in zip(alloc.parts, job.demand.members, strict=True)
        )
        return replace(alloc, parts=parts)

    def _level(
        self, job: PolicyJob, asked: Within, kind: str | None, n: int, snapshot: Snapshot
    ) -> str:
        """The tightest domain with ``n`` free devices, or as wide a one as the wait has earned.

        The job's own ``within`` is never relaxed.
        """
        info = snapshot.pool.types.get(kind or "")
        in_node = info is None or n <= info.node_devices
        ladder = [Within.NODE, Within.RACK] if in_node else [Within.RACK]
        waited = snapshot.now - (job.facts.last_queued or job.since)
        step = int(waited / self.relax_seconds) if self.relax_seconds > 0 else len(ladder)
        wanted = ladder[step] if step < len(ladder) else asked
        # "rack" counts for all instances together, so it is the wish even of those within nodes.
        return min(wanted, asked, key=_TIGHTNESS.__getitem__).value
