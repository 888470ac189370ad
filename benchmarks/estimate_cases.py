"""Cases of ``benchmarks.estimates``: jobs, policy, and number of devices.

Development cases take the first half, in time, of virtual clusters that were used for tuning.
Held-out cases take the second half of others, other sources, other layouts and other policies;
fresh cases among them were unseen when all choices were made.
"""

import gzip
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.values import ClusterSnapshot, NodeFacts, QueuedJob, VcFacts
from scheduling.core.workloads.readers import read_trace
from scheduling.core.workloads.traces import TraceJob

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("TESSERA_SHARED", ROOT.parent / "shared")) / "data"
NODE_DEVICES: Final = 8
SHORTEST: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Jobs of a trace on a separate cluster.

    Attributes:
        source: ``philly:NAME+NAME``, ``chronus:FILE``, ``muri:FILE``, ``itp:FILE``, ``made:SEED``;
            the names are virtual clusters of the trace.
        load: the jobs would use this fraction of the devices.
        later: of the second half of the trace, in time.
        held_out: not used for tuning.
        borrowing: share of jobs that are opportunistic.
    """

    name: str
    source: str
    policy: str = "fifo"
    args: Mapping[str, Any] = field(default_factory=dict)
    load: float = 0.7
    later: bool = False
    held_out: bool = False
    borrowing: float = 0.0


def _held(
    name: str,
    source: str,
    policy: str = "fifo",
    load: float = 0.7,
    later: bool = True,
    **more: Any,
) -> Case:
    return Case(
        name=name, source=source, policy=policy, load=load, later=later, held_out=True, **more
    )


CASES: Final = (
    Case(name="fifo", source="philly:ee9e8c"),
    Case(name="fifo-strict", source="philly:103959", args={"backfill": False}),
    Case(name="fifo-2", source="philly:0e4a51"),
    Case(name="tiresias", source="philly:ed69ec", policy="tiresias"),
    Case(name="drf", source="philly:b436b2", policy="drf"),
    Case(name="made", source="made:1", load=0.9),
    Case(name="shared", source="philly:ee9e8c+103959+0e4a51", borrowing=0.2),
    _held("held-fifo", "philly:11cb48"),
    _held("held-fifo-full", "philly:7f04ca", load=0.9),
    _held("held-strict", "philly:6c71a0", args={"backfill": False}),
    _held("held-tiresias", "philly:6214e9", "tiresias"),
    _held("held-drf", "philly:e13805+2869ce", "drf"),
    _held("held-itp", "itp:cluster03"),
    _held("held-itp-strict", "itp:cluster02", args={"backfill": False}),
    _held("held-muri", "muri:trace2", load=0.8),
    _held("held-shared", "chronus:trace_job_Philly_MIX2", borrowing=0.2),
    _held("held-made", "made:2", load=0.9),
    _held("held-later", "philly:103959", load=0.9),
    _held("held-strict-full", "philly:6c71a0", load=0.9, args={"backfill": False}, later=False),
    _held("fresh-large", "philly:6214e9", load=0.9, later=False),
    _held("fresh-fifo", "philly:7f04ca", load=0.9, later=False),
    _held("fresh-gangs", "philly:e13805", load=0.9),
    _held("fresh-gangs-strict", "philly:2869ce", load=0.9, args={"backfill": False}),
    _held("fresh-made", "made:11", load=0.95, args={"backfill": False}),
)


def jobs_of(case: Case, most: int) -> list[TraceJob]:
    """The jobs of a case in time order; empty without its data."""
    kind, _, name = case.source.partition(":")
    if kind == "made":
        return _made(int(name), most)
    mine = [
        job
        for job in _read(kind, "philly" if kind == "philly" else name)
        if kind != "philly" or job.tenant in name.split("+")
    ]
    if not mine:
        return []
    middle = (mine[0].submitted + mine[-1].submitted) / 2.0
    return [job for job in mine if (job.submitted >= middle) is case.later][:most]


@lru_cache(maxsize=2)
def _read(kind: str, name: str) -> tuple[TraceJob, ...]:
    """Return all jobs of a file that run long enough, in time order."""
    folder = DATA / ("elasticflow/raw" if kind == "itp" else kind)
    found = sorted(folder.glob(f"{name}.csv*"))
    if not found:
        return ()
    raw = found[0].read_bytes()
    if found[0].suffix == ".gz":
        raw = gzip.decompress(raw)
    jobs = (
        job
        for job in read_trace(raw.decode(), name, kind).jobs
        if (job.duration or 0.0) >= SHORTEST
    )
    return tuple(sorted(jobs, key=lambda job: job.submitted))


def _made(seed: int, most: int) -> list[TraceJob]:
    """Generated jobs of ten people with individual habits, more of them by day."""
    lots = np.random.default_rng(seed)
    typical = np.exp(lots.normal(8.0, 1.2, size=10))
    jobs, at = [], 0.0
    for number in range(most):
        busy = 1.0 + 0.8 * np.sin(2.0 * np.pi * at / 86400.0)
        at += float(lots.exponential(900.0 / busy))
        person = int(lots.integers(10))
        jobs.append(
            TraceJob(
                name=f"job-{number}",
                submitted=at,
                devices=int(lots.choice([1, 2, 4, 8, 16], p=[0.5, 0.15, 0.15, 0.15, 0.05])),
                duration=max(SHORTEST, float(typical[person] * np.exp(lots.normal(0.0, 1.0)))),
                user=str(person + 1),
                priority=int(lots.choice([0, 10], p=[0.9, 0.1])),
            )
        )
    return jobs


def queued_jobs(case: Case, jobs: Sequence[TraceJob]) -> list[QueuedJob]:
    """Return the jobs as input of rounds, numbered from 1; each tenant is a virtual cluster."""
    numbers = _clusters(jobs)
    lots = np.random.default_rng(len(jobs))
    found = []
    for number, job in enumerate(jobs, start=1):
        count, devices = 1, job.devices
        if devices > NODE_DEVICES:
            count, devices = -(-devices // NODE_DEVICES), NODE_DEVICES
        borrows = lots.random() < case.borrowing
        found.append(
            QueuedJob(
                id=number,
                vc=numbers[job.tenant],
                tenant=numbers[job.tenant],
                owner=int(job.user) if job.user.isdigit() else numbers[job.tenant],
                owner_name="alice",
                priority=10 + job.priority,
                job_class=JobClass.OPPORTUNISTIC if borrows else JobClass.GUARANTEED,
                demand=Demand(
                    members=(MemberDemand(role="worker", count=count, devices=devices),)
                ),
                submitted=job.submitted,
            )
        )
    return found


def empty_cluster(case: Case, jobs: Sequence[TraceJob]) -> ClusterSnapshot:
    """A cluster with the case's load, and with parts that each fit the largest job."""
    quotas = _guaranteed_nodes(case, jobs)
    names = [f"node-{number}" for number in range(sum(quotas.values()))]
    return ClusterSnapshot(
        now=jobs[0].submitted - 1.0,
        round_number=1,
        round_seconds=60.0,
        seed=1,
        topology_version=1,
        spec=ClusterSpec(
            cell_types={"node": CellType(child="gpu", count=NODE_DEVICES, node_level=True)},
            physical=tuple(PhysicalCell(type="node", address=name) for name in names),
            virtual_clusters={
                f"vc-{number}": VcSpec(quotas=(Quota(chain="node", level="node", count=count),))
                for number, count in quotas.items()
            },
        ),
        vcs=tuple(
            VcFacts(
                id=number,
                name=f"vc-{number}",
                tenant=number,
                policy=case.policy,
                policy_args=case.args,
            )
            for number in quotas
        ),
        nodes=tuple(
            NodeFacts(
                name=name,
                placeable=True,
                healthy=True,
                has_docker=True,
                cpus_per_device=4.0,
                memory_per_device=8 * 10**9,
            )
            for name in names
        ),
        queued=(),
        holding=(),
    )


def _guaranteed_nodes(case: Case, jobs: Sequence[TraceJob]) -> Mapping[int, int]:
    """Nodes by virtual cluster: for its work at the case's load, and for its largest job."""
    span = jobs[-1].submitted - jobs[0].submitted
    work: dict[str, float] = defaultdict(float)
    largest: dict[str, int] = defaultdict(int)
    for job in jobs:
        work[job.tenant] += job.devices * (job.duration or 0.0)
        largest[job.tenant] = max(largest[job.tenant], -(-job.devices // NODE_DEVICES))
    return {
        number: max(largest[name], round(work[name] / span / case.load / NODE_DEVICES), 1)
        for name, number in _clusters(jobs).items()
    }


def _clusters(jobs: Sequence[TraceJob]) -> Mapping[str, int]:
    """The number of the virtual cluster of each tenant."""
    return {name: number for number, name in enumerate(sorted({j.tenant for j in jobs}), start=1)}
