"""One round as a pure function: snapshot in, starts, preemptions and reasons out.

The policy of each virtual cluster says who should run and in which order; the cell engine says
where. Guaranteed jobs come first, since opportunistic ones may only have what they leave; the
opportunistic ones take turns by tenant, weighted max-min fair. Both drivers, the
production rounds and the simulator, call ``decide``.
"""

from collections import defaultdict
from contextlib import nullcontext

from scheduling.core.cells import CellEngine
from scheduling.core.deciding import TRIALS, Deciding
from scheduling.core.engines import engine_for
from scheduling.core.orders import MakePolicy
from scheduling.core.policies import make_policy
from scheduling.core.policies.guarding import TimeLimit
from scheduling.core.values import ClusterSnapshot, RoundResult


def decide(
    snapshot: ClusterSnapshot,
    *,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
    engine: CellEngine | None = None,
    trials: int = TRIALS,
) -> RoundResult:
    """Decide one round.

    Args:
        snapshot: everything that the round may know.
        limit: bounds the time of each policy.
        make: builds a policy from its name and parameters.
        engine: has all that ``snapshot`` says of devices on its books already, and keeps what is
            decided; None: one is made.
        trials: refusals for which the smallest change is sought.

    Returns:
        The desired changes; deterministic, and independent of the order of the snapshot's jobs.
    """
    deciding = Deciding(snapshot, limit, make, engine or engine_for(snapshot))
    deciding.trials = trials
    deciding.run()
    return deciding.result()


def jobs_ahead(
    snapshot: ClusterSnapshot,
    *,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
) -> dict[int, int]:
    """How many jobs each waiting job's policy tries before it, in its virtual cluster and class.

    Jobs that may not start yet, or that the policy does not try, are not in it.
    """
    deciding = Deciding(snapshot, limit, make, engine_for(snapshot))
    deciding.close_gates()
    found: dict[int, int] = {}
    for line in deciding.orders():
        counts: dict[int, int] = defaultdict(int)
        for job, _strict in line:
            found[job.id] = counts[job.vc]
            counts[job.vc] += 1
    return found
