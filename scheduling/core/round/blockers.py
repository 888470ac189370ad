"""Blockers of a job under any policy: an impossible demand, or unhealthy nodes.

A policy knows numbers of devices, and gives nothing to an impossible job. Its reason ("others come
first") would be wrong: the job would wait for ever, for an unknown reason.
"""

from collections.abc import Collection, Hashable
from typing import Final

from scheduling.core.cells import Preempt, RequestError, Wait
from scheduling.core.reasons import Reason
from scheduling.core.round.caps import cut_down
from scheduling.core.round.gang_requests import requests_of
from scheduling.core.round.placement import never_together, refused, wait_reason
from scheduling.core.round.starting import kept_off
from scheduling.core.round.state import RoundState
from scheduling.core.values import QueuedJob
from tessera.reasons import ReasonCode

SEARCHES: Final = 128
"""Questions of a round for which cells are searched."""

EVICTION: Final = 8
"""Number of searches that one for evictable jobs counts as: it takes that much longer."""


def name_hindrances(deciding: RoundState, only: Collection[int] | None = None) -> None:
    """Set the blocking reason, if one exists, of jobs to which their policy gives nothing.

    Jobs are checked after all decisions, at their smallest possible size; jobs with equal demands
    share one check. Cells are searched only where a node is unhealthy or not open to every job,
    for the highest priorities first and at most ``SEARCHES`` times.

    Args:
        deciding: the round, after its last placement.
        only: the jobs to judge; None: all.
    """
    known: dict[Hashable, Reason | None] = {}
    left = SEARCHES
    held = [
        deciding.waiting[job_id]
        for job_id, reason in deciding.reasons.items()
        if reason.code is ReasonCode.HELD_BY_POLICY and (only is None or job_id in only)
    ]
    for waiting in sorted(held, key=lambda one: (-one.priority, one.id)):
        job = _smallest(deciding, waiting)
        question = deciding.questions.of(job)
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
    """A fault in a job's numbers and names, or in all nodes, independent of usage."""
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
    """Whether there are nodes that it may not have, so that not only others can be in its way."""
    return (
        deciding.tenancies.bind
        or deciding.restrictions.of(job).nodes is not None
        or not deciding.engine.is_sound
    )


def _by_search(deciding: RoundState, job: QueuedJob) -> tuple[Reason | None, int]:
    """The blocker besides other jobs, if any, and the cost of the search."""
    restriction, cost = deciding.restrictions.of(job), 0
    requests = requests_of(job, deciding.vcs[job.vc].name)
    nodes = deciding.tenancies.tiers(job, restriction.nodes)[-1].nodes
    for request in requests:
        decision = deciding.engine.schedule(request, suggested=nodes)
        cost += EVICTION if isinstance(decision, Preempt) else 1
        if not isinstance(decision, Wait):
            continue
        reason = kept_off(deciding, job, requests, restriction)
        if reason is not None:
            return reason, cost
        found = deciding.engine.hindrance(decision, suggested=nodes)
        if found is not None:
            return wait_reason(found, deciding.remedies(found, nodes)), cost
    return None, cost
