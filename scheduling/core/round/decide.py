"""One round as a pure function: snapshot in, starts, preemptions and reasons out.

The policy of each virtual cluster decides which jobs run and in which order; the cell engine
decides where. Guaranteed jobs come first, since opportunistic ones may only use the rest;
opportunistic jobs take turns by tenant, weighted max-min fair. Both drivers, the production rounds
and the simulator, call ``decide``.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from scheduling.core.cells import CellEngine
from scheduling.core.jobspec import JobClass
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.round.blockers import name_hindrances
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.round.state import TRIALS, RoundState
from scheduling.core.values import ClusterSnapshot, RoundResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Waiting jobs of one virtual cluster, by number, the one that is tried first at the front."""

    guaranteed: list[int] = field(default_factory=list)
    opportunistic: list[int] = field(default_factory=list)

    def of(self, job_class: JobClass) -> list[int]:
        """Those of one class."""
        return self.opportunistic if job_class is JobClass.OPPORTUNISTIC else self.guaranteed


Lines = Mapping[int, Line]
"""By virtual cluster; one without waiting jobs may be missing."""


def decide(
    snapshot: ClusterSnapshot,
    *,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
    engine: CellEngine | None = None,
    trials: int = TRIALS,
    explain: Collection[int] | None = None,
) -> RoundResult:
    """Decide one round.

    Args:
        snapshot: the whole input of the round.
        limit: bounds the time of each policy.
        make: builds a policy from its name and parameters.
        engine: already contains all devices of ``snapshot``, and records the decisions; None: a
            new one is created.
        trials: maximum number of refusals for which the smallest change is sought.
        explain: jobs whose blocker is sought if their policy gives them nothing, None: all; if
            empty, reasons retain the numbers of their trial.

    Returns:
        The changes; deterministic, and independent of the order of the snapshot's jobs.
    """
    deciding = RoundState(snapshot, limit, make, engine or engine_for(snapshot))
    deciding.trials = trials
    deciding.run()
    name_hindrances(deciding, explain)
    if explain is None or explain:
        deciding.restate()
    return deciding.result()


def decide_with_queue_order(
    snapshot: ClusterSnapshot,
    *,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
) -> tuple[RoundResult, Lines]:
    """Decide one round, and return the order in which the waiting jobs were tried.

    Jobs that may not start yet, or that their policy does not try, are not in it.
    """
    deciding = RoundState(snapshot, limit, make, engine_for(snapshot))
    deciding.run()
    name_hindrances(deciding)
    deciding.restate()
    result = deciding.result()
    gone = {start.job_id for start in result.starts}
    gone |= {rejection.job_id for rejection in result.rejections}
    lines: dict[int, Line] = defaultdict(Line)
    for line in deciding.lines:
        for job, _strict in line:
            if job.id not in gone:
                lines[job.vc].of(job.job_class).append(job.id)
    return result, lines
