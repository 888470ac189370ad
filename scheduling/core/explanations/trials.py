"""Trials: whether changed versions of a job would start in a round."""

from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace

from scheduling.core.jobspec import Demand
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import decide
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round.gang_requests import parts_of
from scheduling.core.round.gang_sizes import scale_of
from scheduling.core.round.gates import closed_gate
from scheduling.core.round.policy_answers import MakePolicy, is_plain
from scheduling.core.round.state import RoundState
from scheduling.core.values import ClusterSnapshot, JobFacts, QueuedJob


class Trials:
    """Trials of changed jobs in a round: whether each would start.

    Args:
        snapshot: snapshot of the round.
        moving: the waiting jobs that the round would start, or for which it would preempt others.
            Other queued jobs are ignored if the policy considers each job separately.
        limit: bounds the time of each policy.
        make: builds a policy from its name and parameters.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        moving: Collection[int],
        *,
        limit: TimeLimit = nullcontext,
        make: MakePolicy = make_policy,
    ) -> None:
        self.snapshot = snapshot
        self._moving, self._limit, self._make = frozenset(moving), limit, make
        self._after: RoundState | None = None

    def refusal(self, job: QueuedJob) -> Reason | None:
        """Return why ``job`` waits instead of its version in the snapshot; None if it starts.

        The reason has fewer remedies than that of a round.
        """
        if self._stands_alone(job):
            return self._at_once(job)
        result = decide(
            self._with(job), limit=self._limit, make=self._make, trials=0, explain={job.id}
        )
        if any(start.job_id == job.id for start in result.starts):
            return None
        for rejection in result.rejections:
            if rejection.job_id == job.id:
                return rejection.reason
        return result.reasons[job.id]

    def _stands_alone(self, job: QueuedJob) -> bool:
        """Return whether no other waiting job affects ``job``; one engine request then decides."""
        vc = next((vc for vc in self.snapshot.vcs if vc.id == job.vc), None)
        if vc is None or not is_plain(vc) or vc.policy_args.get("backfill") is False:
            return False
        return job.id not in self._moving and len(parts_of(job.demand)) == 1

    def _at_once(self, job: QueuedJob) -> Reason | None:
        if self._after is None:
            queued = tuple(one for one in self.snapshot.queued if one.id in self._moving)
            moving = replace(self.snapshot, queued=queued)
            self._after = RoundState(moving, self._limit, self._make, engine_for(moving))
            self._after.trials = 0
            self._after.run()
        return closed_gate(job, self.snapshot.now) or self._after.refusal(job)

    def _with(self, job: QueuedJob) -> ClusterSnapshot:
        queued = [one for one in self.snapshot.queued if one.id != job.id]
        known = dict(self.snapshot.known)
        if job.id in known:
            known[job.id] = _asking(known[job.id], self._asked(job.id), job.demand)
        return replace(self.snapshot, queued=(*queued, replace(job, claims=None)), known=known)

    def _asked(self, job_id: int) -> Demand | None:
        return next((one.demand for one in self.snapshot.queued if one.id == job_id), None)


def _asking(known: JobFacts, before: Demand | None, demand: Demand) -> JobFacts:
    """Return the policy's view of a job that requests ``demand`` instead.

    An elastic job retains its bounds; a rigid job gets the new demand.
    """
    scale = known.terms.scale
    if scale is None or before is None or demand == before:
        return replace(known, asked=demand)
    least, most = (
        demand.devices if bound == before.devices else bound
        for bound in (scale.minimum, scale.maximum)
    )
    terms = replace(known.terms, scale=scale_of(demand, least, most))
    return replace(known, asked=demand, terms=terms)
