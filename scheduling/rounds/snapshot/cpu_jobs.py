"""Jobs without devices in a snapshot, with the parts of nodes' pools that they lease."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypedDict

from scheduling.core.cpu_pools import CpuPool, PoolLease
from scheduling.core.lifecycle import HOLDING, JobState
from scheduling.core.values import HeldCpuJob, QueuedJob
from scheduling.rounds.snapshot.live_jobs import LiveJobRow, cpu_jobs, waiting_cpu_jobs
from scheduling.runs.models import CpuLease


class CpuWork(TypedDict):
    """Fields of a snapshot about jobs without devices."""

    cpu_pools: tuple[CpuPool, ...]
    cpu_queued: tuple[QueuedJob, ...]
    cpu_holding: tuple[HeldCpuJob, ...]


def cpu_work(
    pools: Sequence[CpuPool],
    rows: Sequence[LiveJobRow],
    after: Mapping[int, Sequence[tuple[int, str]]],
    turns: Mapping[int, int],
    using: str,
) -> CpuWork:
    """Return the pools of nodes, and the jobs that use them or wait for them.

    Args:
        pools: the pools of all nodes.
        rows: all live jobs.
        after: unfinished dependencies with their states, by job.
        turns: maximum number of concurrent jobs of the sweep, by job that its sweep holds.
        using: alias of the database with a consistent view.
    """
    alone = [row for row in rows if not row.devices]
    running = cpu_jobs(row for row in alone if row.state in HOLDING)
    queued = (row for row in alone if row.state == JobState.QUEUED)
    leases = _leases(using) if running else {}
    return {
        "cpu_pools": tuple(pools),
        "cpu_queued": waiting_cpu_jobs(queued, after, turns),
        "cpu_holding": tuple(
            HeldCpuJob(job=job, leases=tuple(leases.get(job.id, ()))) for job in running.values()
        ),
    }


def _leases(using: str) -> dict[int, list[PoolLease]]:
    """Return the leased parts of pools by job."""
    found: dict[int, list[PoolLease]] = defaultdict(list)
    rows = CpuLease.objects.using(using).filter(released_at=None)
    for job_id, node, cpus, memory in rows.order_by("job_id", "member__node_rank").values_list(
        "job_id", "node__name", "cpus", "memory_bytes"
    ):
        found[job_id].append(PoolLease(node=node, cpus=cpus, memory=memory))
    return found
