"""What keeps a job from starting whatever its policy does: it asks for too much, or nodes are ill.

A policy knows numbers of devices, and gives nothing to a job that cannot have what it wants. What
it says of that ("others come first") would be wrong: the job would wait for ever, and nobody knew.
"""

from collections.abc import Hashable

from scheduling.core.caps import cut_down
from scheduling.core.cells import RequestError, Wait
from scheduling.core.deciding import Deciding
from scheduling.core.placing import refused, wait_reason
from scheduling.core.reasons import Reason, ReasonCode
from scheduling.core.requests import requests_of
from scheduling.core.values import QueuedJob


def name_hindrances(deciding: Deciding) -> None:
    """Give jobs to which their policy gives nothing the reason that stands behind it, if one does.

    Jobs are judged after all that was decided, at the smallest size that they could have; those
    that ask alike are asked about once.
    """
    known: dict[Hashable, Reason | None] = {}
    for job_id, reason in list(deciding.reasons.items()):
        if reason.code is not ReasonCode.HELD_BY_POLICY:
            continue
        job = _smallest(deciding, deciding.waiting[job_id])
        question = deciding.questions.of(job)
        if question not in known:
            known[question] = _hindrance(deciding, job)
        deciding.reasons[job_id] = known[question] or reason


def _smallest(deciding: Deciding, job: QueuedJob) -> QueuedJob:
    known = deciding.snapshot.known.get(job.id)
    return job if known is None else cut_down(job, known, job, left=0)


def _hindrance(deciding: Deciding, job: QueuedJob) -> Reason | None:
    restriction = deciding.restrictions.of(job)
    if restriction.reason is not None:
        return restriction.reason
    for request in requests_of(job, deciding.vcs[job.vc].name):
        try:
            decision = deciding.engine.schedule(request, suggested=restriction.nodes)
        except RequestError as error:
            return refused(error)
        if not isinstance(decision, Wait):
            continue
        found = deciding.engine.hindrance(decision, suggested=restriction.nodes)
        if found is not None:
            return wait_reason(found, deciding.remedies(found, restriction.nodes))
    return None
