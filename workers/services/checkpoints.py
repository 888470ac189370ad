"""Where the checkpoints of jobs lie that are to go on."""

from collections.abc import Iterable, Mapping

from scheduling.models import Attempt, JobEvent, Member
from workers.transports.base import LastSaved

CHECKPOINT = "checkpoint"


def last_saved(attempts: Iterable[Attempt]) -> Mapping[int, LastSaved]:
    """The last checkpoints that jobs told of before these attempts, by attempt.

    The first process of a gang saves, so that a checkpoint lies on the node of its first member.
    """
    again = [attempt for attempt in attempts if attempt.number > 1]
    found = {}
    for attempt in again:
        told = (
            JobEvent.objects.filter(
                job_id=attempt.job_id, kind=CHECKPOINT, attempt__lt=attempt.number
            )
            .order_by("-id")
            .values_list("attempt", "detail")
            .first()
        )
        if told is None:
            continue
        number, detail = told
        if number is None:
            continue
        where = (
            Member.objects.filter(
                attempt__job_id=attempt.job_id, attempt__number=number, node_rank=0
            )
            .values_list("node_id", "node__name")
            .first()
        )
        step, sha256 = detail.get("step"), detail.get("sha256")
        if where is None or not isinstance(step, int) or not isinstance(sha256, str):
            continue
        found[attempt.pk] = LastSaved(node_id=where[0], node=where[1], step=step, sha256=sha256)
    return found
