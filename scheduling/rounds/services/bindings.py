"""Writing down that running jobs have lost their guarantee, or have it back; nobody is evicted."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from scheduling.core.messages import sentence
from scheduling.core.values import Rebinding
from scheduling.jobs.services.lifecycle import Note, record_job_events
from scheduling.runs.models import Attempt, Lease

LOST: Final = "guarantee_lost"
REGAINED: Final = "guarantee_regained"
_LOST_TEXT: Final = sentence("borrows-now")
_REGAINED_TEXT: Final = sentence("guaranteed-now")


def write_rebindings(
    *, rebindings: Iterable[Rebinding], round_number: int, now: datetime
) -> tuple[int, ...]:
    """Write the virtual leaf of each lease, and a line in each job's events; inside a round.

    Jobs that let go of their devices meanwhile are left out.

    Args:
        rebindings: what the round has found.
        round_number: which round, for the events.
        now: the instant that is written.

    Returns:
        The jobs that were written.
    """
    wanted = {
        (rebinding.job_id, leaf.address): leaf.virtual
        for rebinding in rebindings
        for leaf in rebinding.leaves
    }
    if not wanted:
        return ()
    rows = Lease.objects.filter(released_at=None, job_id__in={job_id for job_id, _ in wanted})
    leases = []
    for lease in rows.select_related("device").order_by("id"):
        virtual = wanted.get((lease.job_id, lease.device.address))
        if virtual is not None:
            lease.virtual_cell = virtual
            leases.append(lease)
    Lease.objects.bulk_update(leases, ["virtual_cell"], batch_size=500)
    lost = {lease.job_id for lease in leases if not lease.virtual_cell}
    found = {lease.job_id for lease in leases}
    _tell(lost, borrows=True, round_number=round_number, now=now)
    _tell(found - lost, borrows=False, round_number=round_number, now=now)
    return tuple(sorted(found))


def _tell(jobs: set[int], *, borrows: bool, round_number: int, now: datetime) -> None:
    if not jobs:
        return
    attempts = Attempt.objects.filter(job_id__in=jobs, ended_at=None)
    attempts.update(opportunistic=borrows)
    numbers = dict(attempts.values_list("job_id", "number"))
    text = _LOST_TEXT if borrows else _REGAINED_TEXT
    record_job_events(
        notes={
            job_id: Note(text=text, attempt=numbers.get(job_id), detail={"round": round_number})
            for job_id in sorted(jobs)
        },
        kind=LOST if borrows else REGAINED,
        now=now,
    )
