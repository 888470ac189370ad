"""Decisions of policies: rounds of Sia on 64 to 16,384 devices, and whole simulated workloads.

Measured in processor time of this process, over rounds before which a job came or went or a fit
changed. The workloads and profiles are those of Sia's artefact, below ``TESSERA_SHARED``
(``../shared`` unless it is set); without them nothing is measured.

    python -m benchmarks.policies [--scale K ...] [--plans [POLICY ...]]
        [--compare [SEED ...] [--policy-arg NAME=VALUE ...]]

``--compare`` simulates complete workloads and prints outcomes of ``tessera`` over those of
``sia``: on the published workloads, or for each seed on one of each set, drawn from its jobs and
arrival times. One decision of every policy over 2,000 jobs is measured without them
(``policy_plans``).
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.policy_plans import BUDGET, DEVICES, JOBS, large_view, plan_seconds
from benchmarks.reproductions.driver import simulate
from benchmarks.reproductions.sia.traces import read_sia
from benchmarks.reproductions.sia.world import SiaWorld
from scheduling.core.policies import POLICIES, make_policy
from scheduling.core.policies.base import Policy
from scheduling.core.policies.engines.assignment import assign, solve_whole
from scheduling.core.policies.parameters import read_args
from scheduling.core.policies.sia import Sia
from scheduling.core.policy_interface import Snapshot
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import NO_KNOWLEDGE, Knowledge, Trace

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TESSERA_SHARED", ROOT.parent / "shared")) / "data" / "sia"
#: Copies of the cluster of 64 devices and of every job, and the hours that are simulated.
SCALES: Mapping[int, float] = {1: 8.0, 2: 1.0, 8: 1.0, 32: 1.0, 256: 0.2}
#: By how much faster jobs come, where 2,500 of them are to be there at the end.
RUSH = {256: 2.5}
#: Interval in rounds at which HiGHS solves the same program as a whole, if in time.
COMPARED = {1: 20, 2: 5, 8: 5, 32: 5}

#: What ``tessera`` knows in each comparison; ``sia`` only knows the job's own observations.
SETTINGS: Final = {
    "blind": NO_KNOWLEDGE,
    "sizes": Knowledge(size_aware=True, shared_history=True),
}
#: Seconds by which a drawn arrival may differ from a published one, and samples of the interval.
_JITTER: Final = 120.0
_RESAMPLED: Final = 2_000

Entry = dict[str, Any]


@dataclass
class Rounds:
    """Measurements of one scale; times in milliseconds."""

    steps: list[float] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


def rounds(scale: int, hours: float) -> Rounds:
    """Sia on ``scale`` copies of the cluster and of a workload, for ``hours`` hours."""
    world = _world(_published("saturn", 1), scale)
    policy, measured = Sia(), Rounds()
    while not world.finished:
        at = world.next_time(None)
        if at is None or at > hours * 3600.0:
            break
        world.advance(at)
        snapshot = world.snapshot()
        if snapshot is None:
            continue
        began = time.process_time()
        plan, _state = policy.plan(snapshot, {})
        elapsed = time.process_time() - began
        if world.changed:
            measured.steps.append(elapsed * 1e3)
            measured.active.append(world.active)
            _compare(measured, policy, snapshot, COMPARED.get(scale))
        world.apply(plan)
    return measured


def _compare(measured: Rounds, policy: Sia, snapshot: Snapshot, every: int | None) -> None:
    """The program alone: its gap, and both solvers."""
    try:
        program = policy.market(snapshot).program()
    except ValueError:  # all jobs are unchanged
        return
    began = time.process_time()
    found = assign(program.worth, program.uses, program.capacity, gap=policy.gap)
    elapsed = time.process_time() - began
    measured.gaps.append(found.gap)
    if every and len(measured.gaps) % every == 0:
        measured.ours.append(elapsed * 1e3)
        began = time.process_time()
        solve_whole(program.worth, program.uses, program.capacity, gap=policy.gap)
        measured.whole.append((time.process_time() - began) * 1e3)


def entries_of(scale: int) -> list[Entry]:
    """Measure scheduling steps of Sia at one scale: times, memory, and HiGHS as baseline."""
    measured = rounds(scale, SCALES[scale])
    context = {
        "devices": 64 * scale,
        "rounds": len(measured.steps),
        "jobs_mean": round(statistics.mean(measured.active), 1),
        "jobs_max": max(measured.active),
        "calibration_ms": round(_calibration(), 1),
    }
    name = f"sia_step_{64 * scale}"
    found = [
        _entry(name, statistics.median(measured.steps), "ms", context),
        _entry(f"{name}_p95", _quantile(measured.steps, 0.95), "ms", context),
        _entry(f"{name}_gap", max(measured.gaps) * 100.0, "%", context),
        _entry(f"{name}_memory", _peak_mib(), "MiB", context),
    ]
    most = [
        step
        for step, active in zip(measured.steps, measured.active, strict=True)
        if active >= 0.9 * max(measured.active)
    ]
    found.append(_entry(f"{name}_fullest", statistics.median(most), "ms", context))
    if measured.whole:
        compared = {**context, "rounds": len(measured.whole), "sum_ms": round(sum(measured.ours))}
        sums = sum(measured.whole) / sum(measured.ours)
        found += [
            _entry(f"{name}_solve", statistics.median(measured.ours), "ms", compared),
            _entry(f"{name}_highs", statistics.median(measured.whole), "ms", compared),
            _entry(f"{name}_highs_ratio", sums, "x", compared),
        ]
    return found


def decision(policy: str) -> Entry:
    """One decision of a policy on a large view that is the same for all."""
    seconds, ended = plan_seconds(policy, large_view())
    context = {
        "jobs": JOBS,
        "devices": DEVICES,
        "ended": ended,
        "within_budget": ended and seconds <= BUDGET,
        "calibration_ms": round(_calibration(), 1),
    }
    return _entry(f"plan_{policy}_{JOBS}", seconds, "s", context)


def workload(policy: str) -> Entry:
    """One workload of 160 jobs, to the end."""
    result = simulate(
        _world(_published("philly", 1), 1),
        make_policy(policy, {}),
        rules="sia",
        workload="philly-1",
        timer=time.process_time,
    )
    hours = statistics.mean(result.jcts) / 3600.0
    context = {"jobs": len(result.jobs), "mean_hours": round(hours, 4)}
    context["calibration_ms"] = round(_calibration(), 1)
    return _entry(f"simulate_philly_{policy}", result.wall_seconds, "s", context)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated workload: completion times and makespan in hours, restarts, fairness."""

    hours: tuple[float, ...]
    makespan: float
    restarts: float
    unfairness: float

    @property
    def mean(self) -> float:
        return statistics.mean(self.hours)


def compare(seeds: Sequence[int], args: Sequence[str]) -> list[Entry]:
    """Compare ``tessera`` with ``sia`` on the published workloads, or on two per seed.

    Args:
        seeds: seeds of drawn workloads; empty for the published ones.
        args: parameters of ``tessera``, as ``name=value``.
    """
    policy = make_policy("tessera", read_args(POLICIES["tessera"], args, "tessera"))
    traces = [
        _drawn(kind, seed) if seeds else _published(kind, seed)
        for seed in seeds or (1, 2, 3)
        for kind in ("philly", "saturn")
    ]
    peers = [_outcome(Sia(), trace, NO_KNOWLEDGE) for trace in traces]
    found = []
    for setting, knowledge in SETTINGS.items():
        ours = [_outcome(policy, trace, knowledge) for trace in traces]
        found += _compared(setting, [trace.name for trace in traces], ours, peers)
    return found


def _compared(
    setting: str, names: Sequence[str], ours: Sequence[Outcome], peers: Sequence[Outcome]
) -> list[Entry]:
    """Relate outcomes of one setting to those of ``sia``, with each workload in the context."""

    def ratios(read: Callable[[Outcome], float]) -> list[float]:
        return [read(own) / read(peer) for own, peer in zip(ours, peers, strict=True)]

    def each(values: Sequence[float]) -> dict[str, float]:
        return {name: round(value, 3) for name, value in zip(names, values, strict=True)}

    means, makespans = ratios(lambda one: one.mean), ratios(lambda one: one.makespan)
    tails = ratios(lambda one: float(np.percentile(one.hours, 99)))
    own, peer = (np.array([hour for one in some for hour in one.hours]) for some in (ours, peers))
    restarts, unfair = [one.restarts for one in ours], [one.unfairness for one in ours]
    tail = float(np.percentile(own, 99) / np.percentile(peer, 99))
    name = f"tessera_{setting}"
    return [
        _entry(f"{name}_mean", statistics.mean(means), "of sia", each(means)),
        _entry(f"{name}_p99", tail, "of sia", {**each(tails), "interval": _interval(own, peer)}),
        _entry(f"{name}_makespan", statistics.mean(makespans), "of sia", each(makespans)),
        _entry(f"{name}_restarts", statistics.mean(restarts), "per job", each(restarts)),
        _entry(f"{name}_unfairness", max(unfair), "worst", each(unfair)),
    ]


def _interval(own: Any, peer: Any) -> list[float]:
    """Bootstrap the ratio of 99th percentiles over pairs of jobs: 2.5 % and 97.5 %."""
    picks = np.random.default_rng(0).integers(0, len(own), (_RESAMPLED, len(own)))
    ratios = np.percentile(own[picks], 99, axis=1) / np.percentile(peer[picks], 99, axis=1)
    return [round(float(value), 3) for value in np.percentile(ratios, [2.5, 97.5])]


def _outcome(policy: Policy, trace: Trace, knowledge: Knowledge) -> Outcome:
    result = simulate(
        _world(trace, 1, knowledge),
        policy,
        rules="sia",
        workload=trace.name,
        timer=time.process_time,
    )
    document = result.to_json()
    return Outcome(
        hours=tuple(seconds / 3600.0 for seconds in result.jcts),
        makespan=document["makespan_h"],
        restarts=document["avg_restarts"],
        unfairness=document["worst_ftf"],
    )


def _published(kind: str, number: int) -> Trace:
    path = SHARED / "workloads" / kind / f"workload-{number}.csv"
    return replace(read_sia(path.read_text(), path.name), name=f"{kind}-{number}")


def _drawn(kind: str, seed: int) -> Trace:
    """Draw as many jobs as in a published workload, and their arrivals, with replacement."""
    published = [_published(kind, number) for number in (1, 2, 3)]
    pool = [job for trace in published for job in trace.jobs]
    chance = random.Random(f"{kind} {seed}")
    times = sorted(
        max(0.0, round(chance.choice(pool).submitted + chance.uniform(-_JITTER, _JITTER)))
        for _job in published[0].jobs
    )
    drawn = [replace(chance.choice(pool), submitted=at) for at in times]
    jobs = [replace(job, name=f"{job.application}-{row}") for row, job in enumerate(drawn)]
    return replace(published[0], name=f"{kind}-drawn-{seed}", jobs=tuple(jobs))


def _world(trace: Trace, scale: int, knowledge: Knowledge = NO_KNOWLEDGE) -> SiaWorld:
    """Repeat every job of a workload ``scale`` times at the same instant."""
    horizon = SCALES[scale] * 3600.0 if scale in RUSH else float("inf")
    jobs = tuple(
        replace(job, name=f"{job.name}-{copy}", submitted=job.submitted / RUSH.get(scale, 1.0))
        for job in trace.jobs
        for copy in range(scale)
        if job.submitted / RUSH.get(scale, 1.0) <= horizon
    )
    return SiaWorld(
        Setup(
            trace=replace(trace, jobs=jobs),
            cluster=read_cluster(f"aws:{6 * scale}x4,dgx-ext:{2 * scale}x8,rtx:{3 * scale}x8"),
            files=_profile,
            knowledge=knowledge,
        )
    )


def _profile(name: str) -> str | None:
    place = SHARED / "profiles" / name
    return place.read_text() if place.is_file() else None


def _calibration() -> float:
    """Milliseconds of a fixed loop: the current speed of this machine."""
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return (time.process_time() - began) * 1e3


def _quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def _entry(name: str, value: float, unit: str, context: Mapping[str, Any]) -> Entry:
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "better": "higher" if unit == "x" else "lower",
        "context": dict(context),
    }


def main() -> None:
    """Run each scale in its own process, so that memory is measured separately."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, nargs="*", choices=SCALES, metavar="K")
    parser.add_argument("--plans", nargs="*", choices=sorted(POLICIES), metavar="POLICY")
    parser.add_argument("--compare", type=int, nargs="*", metavar="SEED")
    parser.add_argument("--policy-arg", nargs="+", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    if options.plans is not None:
        _write_decisions(options.plans)
        return
    if not SHARED.is_dir():
        sys.stderr.write(f"policies: no workloads in {SHARED}; TESSERA_SHARED says where\n")
        return
    if options.compare is not None:
        for entry in compare(options.compare, options.policy_arg):
            sys.stdout.write(json.dumps(entry) + "\n")
        return
    if options.scale is not None:
        for scale in options.scale:
            for entry in entries_of(scale):
                sys.stdout.write(json.dumps(entry) + "\n")
        return
    for scale in SCALES:
        command = [sys.executable, "-m", "benchmarks.policies", "--scale", str(scale)]
        sys.stdout.flush()
        subprocess.run(command, check=True)
    for policy in ("sia", "tessera"):
        sys.stdout.write(json.dumps(workload(policy)) + "\n")
    # Last: a process starts with the peak of memory of the one that it comes from.
    _write_decisions([])


def _write_decisions(names: Sequence[str]) -> None:
    for name in names or sorted(POLICIES):
        sys.stdout.write(json.dumps(decision(name)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
