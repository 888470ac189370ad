"""EasyScale's inter-job scheduling of free GPUs (SC '23, algorithm 1)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduling.core.policies.easyscale.intra import Threads, Workers, best_threads, growths


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """A job for the inter-job scheduler.

    Attributes:
        types: its usable types, the preferred one first.
        least: GPUs below which it does not run.
        gpus: present GPUs; empty while it waits.
        wanted: its next GPUs, while it waits after it had to leave.
        mixes: it may use several types at once, its operators being alike on all of them.
        allows: whether it can run on a total number of GPUs.
        barred: numbers of GPUs by type that have been tried and were slower than predicted.
    """

    id: int
    workers: Workers
    types: tuple[str, ...]
    least: int = 1
    gpus: Mapping[str, int]
    wanted: Mapping[str, int] = field(default_factory=dict)
    mixes: bool = True
    allows: Callable[[int], bool] = lambda _gpus: True
    barred: tuple[Mapping[str, int], ...] = ()


def share_out(
    trainees: Sequence[Trainee], free: Mapping[str, int], *, most_waste: float
) -> dict[int, Threads]:
    """Admit waiting jobs, then grow those that gain most.

    Running jobs retain their GPUs. Waiting jobs come first, in the order given, each with its
    least number of GPUs of its best type with room; then each job proposes one growth per type,
    and the proposals that gain most per GPU are accepted, one per job at most.

    Args:
        trainees: running and waiting jobs, the earliest first.
        free: idle GPUs by type.
        most_waste: the greatest share of power that a proposal may lose.

    Returns:
        The configuration of each job that runs.
    """
    left = dict(free)
    running: dict[int, Threads] = {}
    for job in trainees:
        kept = best_threads(job.workers, job.gpus) if job.gpus else None
        if kept is not None:
            running[job.id] = kept
    for job in trainees:
        if job.id in running:
            continue
        begun = _begin(job, left)
        if begun is not None:
            running[job.id] = begun
            _take(left, begun.gpus)
    admitted = {job.id for job in trainees if not job.gpus}
    proposals = [
        (-pays, -grown.total, job.id, kind, grown)
        for job in trainees
        if job.id in running and job.id not in admitted
        for kind, (grown, pays) in growths(
            job.workers,
            running[job.id],
            _growable(job, running[job.id], left),
            most_waste=most_waste,
            allows=job.allows,
        ).items()
        if dict(grown.gpus) not in [dict(barred) for barred in job.barred]
    ]
    grown_jobs: set[int] = set()
    for _, _, job_id, kind, grown in sorted(proposals, key=lambda proposal: proposal[:4]):
        more = grown.gpus[kind] - running[job_id].gpus.get(kind, 0)
        if job_id in grown_jobs or more > left.get(kind, 0):
            continue
        left[kind] -= more
        running[job_id] = grown
        grown_jobs.add(job_id)
    return running


def _begin(job: Trainee, left: Mapping[str, int]) -> Threads | None:
    """The least that a waiting job runs on: its best type with room, that one alone.

    One that left to return at another size gets that one, if there is still room for it.
    Sizes at which a GPU would have nothing to do (3 for 4 workers) are passed over where there is
    room for the next one; else the job begins at its least, with that GPU idle.
    """
    if job.wanted and all(n <= left.get(kind, 0) for kind, n in job.wanted.items()):
        back = best_threads(job.workers, job.wanted)
        if back is not None and back.gpus == job.wanted:
            return back
    for kind in job.types:
        there = left.get(kind, 0)
        if there < job.least:
            continue
        sizes = range(job.least, min(there, job.workers.most) + 1)
        for n in (n for n in sizes if job.allows(n)):
            begun = best_threads(job.workers, {kind: n})
            if begun is not None and begun.total == n:
                return begun
        begun = best_threads(job.workers, {kind: job.least})
        if begun is not None:
            return replace(begun, gpus={kind: job.least})
    return None


def _growable(job: Trainee, now: Threads, left: Mapping[str, int]) -> dict[str, int]:
    """Types in which a job may grow: those it has, and others if it may mix."""
    return {
        kind: left.get(kind, 0)
        for kind in job.types
        if left.get(kind, 0) > 0 and (job.mixes or kind in now.gpus)
    }


def _take(left: dict[str, int], gpus: Mapping[str, int]) -> None:
    for kind, n in gpus.items():
        left[kind] -= n
