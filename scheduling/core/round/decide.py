"""A round as a pure function of the snapshot; the result has starts, preemptions and reasons.

The policy of each virtual cluster decides which jobs run and in which order; the cell engine
decides where. Guaranteed jobs come first, since opportunistic ones may only use the rest;
opportunistic jobs take turns by tenant, weighted max-min fair. Then jobs without a device may
become guests of devices in use (``round.guests``). Jobs without devices use the CPU pools of
nodes (``round.cpu_jobs``). Both drivers, live rounds and
``core.simulation``, call ``decide``.

A policy uses only numbers of devices, and allocates nothing to an impossible job. Its reason
("others come first") would be wrong, since such a job would wait forever. So jobs without an
allocation are checked for impossible demands and unhealthy nodes.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

from scheduling.core.cells import CellEngine, Preempt, RequestError, Wait
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.reasons import Reason
from scheduling.core.round.caps import cut_down
from scheduling.core.round.cpu_jobs import with_cpu_jobs
from scheduling.core.round.decision_cache import DecisionCache
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round.gang_requests import requests_of
from scheduling.core.round.guests import with_guests
from scheduling.core.round.peer_seats import with_peers
from scheduling.core.round.placement import never_together, question_of, refused, wait_reason
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.round.starting import tenancy_refusal
from scheduling.core.round.state import TRIALS, RoundState
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot, QueuedJob
from tessera.reasons import ReasonCode

DECISION_VERSION: Final = 4
"""Version of decisions; increases with each change of the decisions for a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """IDs of a virtual cluster's waiting jobs, in the order in which they are tried."""

    guaranteed: list[int] = field(default_factory=list)
    opportunistic: list[int] = field(default_factory=list)


Lines = Mapping[int, Line]
"""Waiting jobs by virtual cluster; one without waiting jobs may be missing."""


def decide(
    snapshot: ClusterSnapshot,
    *,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
    engine: CellEngine | None = None,
    cache: DecisionCache | None = None,
    trials: int = TRIALS,
    explain: Collection[int] | None = None,
) -> RoundResult:
    """Decide one round.

    Args:
        snapshot: the complete input of the round.
        limit: limits the time of each policy.
        make: builds a policy from its name and parameters.
        engine: contains all devices of ``snapshot``, and records the decisions; None for a new
            one.
        cache: facts from earlier decisions on the same engine; None: no earlier ones.
        trials: maximum number of refusals for which the smallest change is sought.
        explain: jobs whose blocker is sought if their policy gives them nothing, None: all; if
            empty, reasons retain the numbers of their trial.

    Returns:
        The changes; deterministic, and independent of the order of the snapshot's jobs.
    """
    deciding = RoundState(snapshot, limit, make, engine or engine_for(snapshot), cache)
    deciding.trials = trials
    deciding.run()
    name_hindrances(deciding, explain)
    if explain is None or explain:
        deciding.restate()
    return _completed(deciding)


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
    result = _completed(deciding)
    gone = {start.job_id for start in result.starts}
    gone |= {guest.job_id for guest in result.guests}
    gone |= {peer.seat.job_id for peer in result.peers}
    gone |= {rejection.job_id for rejection in result.rejections}
    lines: dict[int, Line] = defaultdict(Line)
    guaranteed, opportunistic = deciding.lines
    for job, _strict in guaranteed:
        if job.id not in gone:
            lines[job.vc].guaranteed.append(job.id)
    for job, _strict in opportunistic:
        if job.id not in gone:
            lines[job.vc].opportunistic.append(job.id)
    return result, lines


def _completed(deciding: RoundState) -> RoundResult:
    """Return the decisions about jobs with own devices, and then about all others."""
    beside = with_guests(deciding, with_peers(deciding, deciding.result()))
    return with_cpu_jobs(deciding, beside)


SEARCHES: Final = 128
"""Maximum number of cell searches in a round."""

EVICTION: Final = 8
"""Cost of a search with evictions, as a multiple of a search without evictions."""


def name_hindrances(deciding: RoundState, only: Collection[int] | None = None) -> None:
    """Set the blocking reason, if one exists, of jobs without an allocation.

    Jobs are checked after all decisions, at their smallest possible size; jobs with equal demands
    share one check. Cells are searched only where a node is unhealthy or not open to every job,
    for the highest priorities first and at most ``SEARCHES`` times.

    Args:
        deciding: the round, after its last placement.
        only: the jobs to examine; None for all.
    """
    if only is not None and not only:
        return
    known: dict[Hashable, Reason | None] = {}
    left = SEARCHES
    held = [
        deciding.waiting[job_id]
        for job_id, reason in deciding.reasons.items()
        if reason.code is ReasonCode.HELD_BY_POLICY and (only is None or job_id in only)
    ]
    for waiting in sorted(held, key=lambda one: (-one.priority, one.id)):
        job = _smallest(deciding, waiting)
        question = question_of(job)
        if question not in known:
            known[question] = _without_search(deciding, job)
            if known[question] is None and left > 0 and _may_be_kept_off(deciding, job):
                known[question], cost = _by_search(deciding, job)
                left -= cost
        deciding.reasons[job.id] = known[question] or deciding.reasons[job.id]


def _smallest(deciding: RoundState, job: QueuedJob) -> QueuedJob:
    known = deciding.snapshot.known.get(job.id)
    return job if known is None else cut_down(job, known, job, left=0)


def _without_search(deciding: RoundState, job: QueuedJob) -> Reason | None:
    """Find a fault in a job's numbers and names, or in all nodes, independent of usage."""
    restriction = deciding.restrictions.of(job)
    if restriction.reason is not None:
        return restriction.reason
    requests = requests_of(job, deciding.vcs[job.vc].name)
    for request in requests:
        try:
            found = deciding.engine.never(request)
        except RequestError as error:
            return refused(error)
        if found is not None:
            return wait_reason(found, deciding.remedies(found, restriction.nodes))
    return never_together(deciding.engine, requests)


def _may_be_kept_off(deciding: RoundState, job: QueuedJob) -> bool:
    """Return whether the job is excluded from some nodes, besides waiting for other jobs."""
    return (
        deciding.tenancies.bind
        or deciding.restrictions.of(job).nodes is not None
        or not deciding.engine.is_sound
    )


def _by_search(deciding: RoundState, job: QueuedJob) -> tuple[Reason | None, int]:
    """Search for a blocker besides other jobs; return it, if any, and the cost of the search."""
    restriction, cost = deciding.restrictions.of(job), 0
    requests = requests_of(job, deciding.vcs[job.vc].name)
    nodes = deciding.tenancies.tiers(job, restriction.nodes)[-1].nodes
    for request in requests:
        decision = deciding.engine.schedule(request, suggested=nodes)
        cost += EVICTION if isinstance(decision, Preempt) else 1
        if not isinstance(decision, Wait):
            continue
        reason = tenancy_refusal(deciding, job, requests, restriction)
        if reason is not None:
            return reason, cost
        found = deciding.engine.hindrance(decision, suggested=nodes)
        if found is not None:
            return wait_reason(found, deciding.remedies(found, nodes)), cost
    return None, cost
