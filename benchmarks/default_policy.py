"""Whether ``tessera`` is at least as good as ``fifo`` with backfill for rigid jobs of all traces.

Run by hand: ``python -m benchmarks.default_policy [--jobs N] [--load X]``; prints JSON.
Each public trace with durations and requested devices runs under both policies in the engine of
live rounds (rules ``events``), on nodes of 8 devices. Jobs are rigid and declare no sizes, as the
jobs of a new virtual cluster. The candidate passes a trace if its mean completion, its 99th
percentile and its worst finish-time fairness are at most ``TOLERANCE`` times those of the
baseline. It may become the default only if it passes all of them.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.entries import entry
from benchmarks.estimate_cases import Case, empty_cluster, jobs_of
from scheduling.core.policies import read_policy
from scheduling.core.simulation.setups import Setup
from scheduling.core.simulation.workload_run import run_workload
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Trace, TraceJob

BASELINE: Final = "fifo"
CANDIDATE: Final = "tessera"
TOLERANCE: Final = 1.005
"""Equal figures of two runs differ by rounding."""

FIGURES: Final[Mapping[str, str]] = {
    "avg_jct_h": "mean",
    "p99_jct_h": "p99",
    "worst_ftf": "fairness",
}
SOURCES: Final = (
    *(f"philly:{name}" for name in ("6214e9", "11cb48", "6c71a0", "b436b2", "103959", "0e4a51")),
    *(f"philly:{name}" for name in ("ee9e8c", "ed69ec", "7f04ca", "2869ce", "e13805")),
    *(f"itp:cluster0{number}" for number in (1, 2, 3, 4)),
    *(f"muri:trace{number}" for number in (1, 2, 3, 4)),
    *(f"chronus:trace_job_Philly_{name}" for name in ("MIX1", "MIX2", "SLO")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
    """One trace under both policies: the candidate's figures over the baseline's, by name."""

    trace: str
    jobs: int
    devices: int
    ratios: Mapping[str, float]
    seconds: float

    @property
    def passes(self) -> bool:
        """Whether no figure is worse than the baseline's."""
        return all(ratio <= TOLERANCE for ratio in self.ratios.values())


def compare_all(
    sources: Sequence[str], *, jobs: int, load: float, args: Sequence[str] = ()
) -> Iterator[TraceComparison]:
    """Compare the policies on each trace that is there."""
    for source in sources:
        case = Case(name=source, source=source, load=load)
        found = jobs_of(case, jobs)
        if found:
            yield compare(source, found, len(empty_cluster(case, found).nodes), args)


def compare(
    source: str, jobs: Sequence[TraceJob], nodes: int, args: Sequence[str] = ()
) -> TraceComparison:
    """Run a trace on nodes of 8 devices under both policies."""
    began = time.process_time()
    base, mine = (
        _figures(source, jobs, nodes, BASELINE),
        _figures(source, jobs, nodes, CANDIDATE, args),
    )
    return TraceComparison(
        trace=source,
        jobs=len(jobs),
        devices=nodes * 8,
        ratios={
            label: mine[name] / base[name] if base[name] else 1.0
            for name, label in FIGURES.items()
        },
        seconds=time.process_time() - began,
    )


def entries(found: Sequence[TraceComparison]) -> list[dict[str, Any]]:
    """Return the entries of some comparisons; there must be one or more."""
    context = f"{len(found)} traces, {sum(one.jobs for one in found)} rigid jobs"
    rows = [
        entry(
            "default_policy.passed",
            100.0 * sum(one.passes for one in found) / len(found),
            "%",
            "higher",
            f"{context}; the default changes only at 100",
        )
    ]
    for label in FIGURES.values():
        worst = max(found, key=lambda one: one.ratios[label])
        rows.append(
            entry(
                f"default_policy.worst_{label}",
                worst.ratios[label],
                "ratio",
                "lower",
                f"{CANDIDATE} over {BASELINE} on {worst.trace}",
            )
        )
    return rows


def _figures(
    source: str, jobs: Sequence[TraceJob], nodes: int, name: str, args: Sequence[str] = ()
) -> Mapping[str, float]:
    policy = read_policy(name, args, ())
    setup = Setup(
        trace=Trace(name=source, format=source.partition(":")[0], jobs=tuple(jobs)),
        cluster=read_cluster(f"gpu:{nodes}x8"),
        files=lambda _path: None,
        policy=policy,
    )
    result = run_workload(setup, policy, rules="events", workload=source, timer=time.perf_counter)
    document = result.to_json()
    if document["completed"] < len(jobs):
        raise RuntimeError(f"{source}: {document['completed']} of {len(jobs)} jobs under {name}")
    return {figure: float(document[figure] or 0.0) for figure in FIGURES}


def main() -> None:
    """Compare on all traces, and print one entry for each measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--source", action="append", choices=SOURCES)
    parser.add_argument("--policy-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    found = []
    for one in compare_all(
        options.source or SOURCES,
        jobs=options.jobs,
        load=options.load,
        args=options.policy_arg,
    ):
        found.append(one)
        if options.details:
            ratios = " ".join(f"{label} {ratio:.3f}" for label, ratio in one.ratios.items())
            print(
                f"{one.trace}: {one.jobs} jobs, {one.devices} devices, {ratios}, "
                f"{one.seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    print(json.dumps(entries(found) if found else [], indent=2))


if __name__ == "__main__":
    main()
