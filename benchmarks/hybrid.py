"""Hybrid jobs: policies on the traces of Crius on the simulation engine, and decision times.

Traces, step times and clusters are those of Crius' artefact, below ``TESSERA_SHARED``
(``../shared`` unless it is set); without them only decisions are measured, on jobs with random
grids. All policies know the same rates of all grids. ``fifo`` is held to the requested type and
size, as published. Progress is real, each restart costs 60 s, and all jobs count.

    python -m benchmarks.hybrid [--trace pai ...] [--devices 64 1280] [--jobs N]
        [--decisions | --traces]
"""

import argparse
import json
import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.entries import entry, p95
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.performance.live import LiveModel
from scheduling.core.policies import make_policy
from scheduling.core.policy_interface import (
    Alloc,
    BestGrid,
    GridTable,
    JobPhase,
    Kind,
    Part,
    PolicyJob,
    Pool,
    Scale,
    Snapshot,
    Step,
    Terms,
    TypeInfo,
)
from scheduling.core.simulation.results import Result
from scheduling.core.simulation.setups import Conditions, Setup
from scheduling.core.simulation.workload_run import run_workload
from scheduling.core.workloads.clusters import NodeGroup, SimCluster
from scheduling.core.workloads.readers import read_trace
from scheduling.core.workloads.traces import Knowledge, Trace

ROOT: Final = Path(__file__).resolve().parent.parent
SHARED: Final = Path(os.environ.get("TESSERA_SHARED", ROOT.parent / "shared"))
DATA: Final = SHARED / "data/crius-arena"
CLUSTERS: Final = SHARED / "cases/crius/inputs/clusters.json"
#: Policies with their knowledge; ``asked`` holds jobs to the requested type.
RUNS: Final[Mapping[str, tuple[str, bool, bool]]] = {
    "fifo, requested type": ("fifo", True, False),
    "fifo": ("fifo", False, False),
    "crius": ("crius", False, False),
    "tessera": ("tessera", False, False),
    "tessera, known steps": ("tessera", False, True),
}
#: The artefact divides the iterations of its traces by this number.
DIVIDED: Final = 5.0
DECISIONS: Final = {1_280: (150, 20), 10_000: (1_500, 20)}
_TYPES: Final = {"a100": 4, "v100": 16, "a40": 2, "a10": 2}
_SIZES: Final = (1, 2, 4, 8, 16)
_REPEATS: Final = 20


def main() -> None:
    """Print the entries as soon as they are known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", nargs="+", default=["pai"])
    parser.add_argument("--devices", nargs="+", default=["64", "1280"])
    parser.add_argument("--jobs", type=int, help="only the first jobs of each trace")
    parser.add_argument("--decisions", action="store_true", help="only decision times")
    parser.add_argument("--traces", action="store_true", help="only traces")
    options = parser.parse_args()
    for one in decision_entries() if options.decisions or not options.traces else ():
        print(json.dumps(one), flush=True)
    if options.decisions or not CLUSTERS.is_file():
        return
    for name in options.trace:
        for devices in options.devices:
            for one in trace_entries(name, devices, options.jobs):
                print(json.dumps(one), flush=True)


def trace_entries(name: str, devices: str, jobs: int | None) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each policy on a trace, and the ratios of geometric means."""
    trace, cluster = _trace(name, jobs), _cluster(devices)
    results = {}
    for label in RUNS:
        results[label] = result = _run(trace, cluster, label)
        hours = result.to_json()
        context = (
            f"{label} on {name}, {devices} devices, {len(trace.jobs)} jobs: p99 "
            f"{hours['p99_jct_h']} h, mean {hours['avg_jct_h']} h, worst fairness "
            f"{hours['worst_ftf']}, {hours['avg_restarts']} restarts per job, "
            f"{result.refused} refused, {hours['censored']} incomplete; "
            f"{len(result.fallbacks)} faults, decisions p95 {hours['policy_ms']['p95']} ms"
        )
        slug = label.replace(", ", "_").replace(" ", "_")
        yield entry(
            f"hybrid_{name}_{devices}_{slug}", geometric_hours(result), "h", "lower", context
        )
    for ours, theirs in (
        ("crius", "fifo, requested type"),
        ("crius", "fifo"),
        ("tessera", "crius"),
        ("tessera, known steps", "crius"),
    ):
        ratio = _ratio(results[ours], results[theirs])
        context = f"{ours} over {theirs}: geometric mean over jobs complete in both"
        slug = f"{ours}_over_{theirs}".replace(", ", "_").replace(" ", "_")
        yield entry(f"hybrid_{name}_{devices}_{slug}", ratio, "ratio", "lower", context)


def geometric_hours(result: Result) -> float:
    """Return the geometric mean of the completion times in hours."""
    return math.exp(sum(math.log(seconds / 3600.0) for seconds in result.jcts) / len(result.jcts))


def _ratio(ours: Result, theirs: Result) -> float:
    logs = [
        math.log((one.finished - one.submitted) / (other.finished - other.submitted))
        for one, other in zip(ours.jobs, theirs.jobs, strict=True)
        if one.finished is not None and other.finished is not None
    ]
    return math.exp(sum(logs) / len(logs))


def _run(trace: Trace, cluster: SimCluster, label: str) -> Result:
    name, is_asked, is_sized = RUNS[label]
    if is_asked:
        jobs = tuple(replace(job, types=(job.wish,)) for job in trace.jobs)
        trace = replace(trace, jobs=jobs)
    policy = make_policy(name, {})
    setup = Setup(
        trace=trace,
        cluster=cluster,
        files=lambda file: (DATA / "perf" / file).read_text(),
        knowledge=Knowledge(size_aware=is_sized),
        conditions=Conditions(restart_seconds=60.0),
        policy=policy,
        hybrid=True,
    )
    return run_workload(
        setup, policy, rules="events", workload=trace.name, timer=time.process_time
    )


def _trace(name: str, jobs: int | None) -> Trace:
    path = DATA / f"traces/simulate_trace_{name}.csv"
    trace = read_trace(path.read_text(), path.name, "crius")
    shorter = (replace(job, steps=(job.steps or 0.0) / DIVIDED) for job in trace.jobs[:jobs])
    return replace(trace, jobs=tuple(shorter))


def _cluster(devices: str) -> SimCluster:
    groups = json.loads(CLUSTERS.read_text())[devices]
    return SimCluster(groups={kind: NodeGroup(**group) for kind, group in groups.items()})


def decision_entries() -> Iterator[dict[str, Any]]:
    """Yield the processor time of one plan of ``crius`` and ``tessera`` on full clusters."""
    for devices, (running, waiting) in DECISIONS.items():
        for name in ("crius", "tessera"):
            policy, times = make_policy(name, {}), []
            for seed in range(_REPEATS):
                view = full_view(devices, running, waiting, random.Random(seed))
                began = time.process_time()
                policy.plan(view, {})
                times.append(time.process_time() - began)
            context = (
                f"one plan of {name}, {devices} devices of 4 types, {running} running and "
                f"{waiting} waiting jobs, max {max(times):.3f} s of {_REPEATS}"
            )
            yield entry(f"hybrid_decision_{devices}_{name}_p95", p95(times), "s", "lower", context)


def full_view(devices: int, running: int, waiting: int, chance: random.Random) -> Snapshot:
    """Return a view whose running jobs hold nearly all devices, with random grids."""
    each = devices // len(_TYPES)
    free = dict.fromkeys(_TYPES, each)
    jobs = []
    for number in range(1, running + waiting + 1):
        size, kind = chance.choice(_SIZES), chance.choice(sorted(_TYPES))
        held = number <= running and free[kind] >= size
        if held:
            free[kind] -= size
        jobs.append(_job(number, size, kind if held else None, chance))
    # No device is free, so that the waiting jobs need changes of others.
    capacity = {kind: each - free[kind] for kind in _TYPES}
    infos = {k: TypeInfo(nodes=max(1, each // n), node_devices=n) for k, n in _TYPES.items()}
    return Snapshot(
        now=10_000.0,
        round_seconds=60.0,
        round_number=1,
        seed=1,
        pool=Pool(capacity=capacity, types=infos),
        jobs=tuple(jobs),
        model=LiveModel(jobs, {}),
    )


def _job(number: int, size: int, held: str | None, chance: random.Random) -> PolicyJob:
    member = MemberDemand(role="worker", count=size, devices=1)
    return PolicyJob(
        id=number,
        owner=1,
        priority=0,
        job_class=JobClass.GUARANTEED,
        submitted=float(number),
        demand=Demand(members=(member,)),
        phase=JobPhase.QUEUED if held is None else JobPhase.RUNNING,
        since=1_000.0,
        alloc=None if held is None else Alloc(parts=(Part(n=size, type=held),)),
        terms=Terms(kind=Kind.ELASTIC, scale=Scale(minimum=1, maximum=16, step=Step.POWER_OF_TWO)),
        grids=_grids(chance),
    )


def _grids(chance: random.Random) -> GridTable:
    scaling = chance.uniform(0.6, 0.95)
    return tuple(
        BestGrid(
            type=kind,
            devices=size,
            nodes=-(-size // node),
            rate=chance.uniform(0.8, 1.2) * size**scaling,
        )
        for kind, node in sorted(_TYPES.items())
        for size in _SIZES
    )


if __name__ == "__main__":
    main()
