"""Simulation of recorded days under another policy: winners, losers and differences."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from scheduling.core.messages import sentence
from scheduling.core.policies import make_policy
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.simulator import Knowledge, NodeGroup, Result, Setup, SimCluster, simulate
from scheduling.core.simulator.rules.events import EventWorld
from scheduling.what_if.services.recorded_days import Lived, RecordedDays
from tenants.errors import InvalidError

MOST_JOBS_TOLD: Final = 1000
SAME_SECONDS: Final = 1.0
SAME_PART: Final = 0.01
"""Differences below these seconds, or this share of its time, make no winner or loser."""

_VERDICTS: Final = ("winner", "loser", "same", "unknown")


def replay(
    days: RecordedDays,
    policy: str,
    args: Mapping[str, Any],
    *,
    size_aware: bool = False,
    make: MakePolicy = make_policy,
    guarantee: Mapping[str, int] | None = None,
    comes_to: Callable[[int], None] = lambda _step: None,
) -> dict[str, Any]:
    """Compare recorded days under another policy with the same days under their own, per job.

    The same rules simulate both sides, so that simplifications apply to both. The result also
    contains the actual history, and it is deterministic.

    Args:
        days: the recorded days.
        policy: the other policy.
        args: parameters of the other policy.
        size_aware: whether policies get the remaining work of jobs.
        make: builds a policy from its name and parameters.
        guarantee: devices by type for the other policy; other types are unchanged.
        comes_to: called at the start of each step.

    Raises:
        InvalidError: the guarantee would be empty.
    """
    comes_to(1)
    before = _run(days, days.policy, days.policy_args, size_aware=size_aware, make=make)
    comes_to(2)
    other = replace(days, cluster=with_guarantee(days.cluster, guarantee or {}))
    after = _run(other, policy, args, size_aware=size_aware, make=make)
    rows = [
        _row(days.lived[old.name], old.submitted, _jct(old), _jct(new))
        for old, new in zip(before.jobs, after.jobs, strict=True)
    ]
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in _VERDICTS}
    rows.sort(key=lambda row: (-abs(row["change_s"] or 0.0), row["job"]))
    return {
        "span": days.trace.name,
        "rounds": days.rounds,
        "guarantee": dict(days.cluster.capacity),
        "other_guarantee": dict(other.cluster.capacity),
        "left_out": dict(days.trace.left_out),
        "size_aware": size_aware,
        "was": {"policy": days.policy, "policy_args": dict(days.policy_args), **_figures(before)},
        "would_be": {"policy": policy, "policy_args": dict(args), **_figures(after)},
        **counts,
        "jobs": rows[:MOST_JOBS_TOLD],
        "jobs_not_told": max(0, len(rows) - MOST_JOBS_TOLD),
    }


def with_guarantee(cluster: SimCluster, wanted: Mapping[str, int]) -> SimCluster:
    """Return the cluster with these numbers of devices by type, in nodes of the same size.

    Raises:
        InvalidError: no devices remain.
    """
    groups = dict(cluster.groups)
    for kind, devices in wanted.items():
        known = groups.pop(kind, None)
        largest = known.devices if known is not None else 8
        per_node = max((n for n in range(1, largest + 1) if devices % n == 0), default=1)
        if devices:
            groups[kind] = NodeGroup(nodes=devices // per_node, devices=per_node)
    if not groups:
        raise InvalidError(
            sentence("nothing-would-be-guaranteed"),
            field="guarantee",
            value=dict(wanted),
            remedy=sentence("leave-least-one-device"),
        )
    return SimCluster(groups=dict(sorted(groups.items())))


def _run(
    days: RecordedDays,
    policy: str,
    args: Mapping[str, Any],
    *,
    size_aware: bool,
    make: MakePolicy,
) -> Result:
    setup = Setup(
        trace=days.trace,
        cluster=days.cluster,
        files=lambda _path: None,
        knowledge=Knowledge(size_aware=size_aware),
    )
    return simulate(
        EventWorld(setup),
        make(policy, args),
        rules="events",
        workload=days.trace.name,
        timer=time.perf_counter,
    )


def _figures(result: Result) -> dict[str, Any]:
    """Return the reported figures of a run, which do not depend on the speed of the machine."""
    document = result.to_json()
    names = (
        "jobs", "completed", "avg_jct_h", "p50_jct_h", "p90_jct_h", "p99_jct_h", "makespan_h",
        "avg_restarts", "worst_ftf", "avg_gpus_busy",
    )  # fmt: skip
    return {
        **{name: document[name] for name in names},
        "fallbacks": list(result.fallbacks[:10]),
        "failed_decisions": len(result.fallbacks),
    }


def _jct(record: Any) -> float | None:
    return None if record.finished is None else float(record.finished - record.submitted)


def _row(
    lived: Lived, submitted: float, was: float | None, would_be: float | None
) -> dict[str, Any]:
    change = None if was is None or would_be is None else round(would_be - was, 3)
    in_fact = None if lived.finished is None else round(lived.finished - submitted, 3)
    return {
        "job": lived.job_id,
        "in_fact_s": in_fact,
        "was_s": _rounded(was),
        "would_be_s": _rounded(would_be),
        "change_s": change,
        "verdict": _verdict(lived, was, change),
        "has_ended": lived.has_ended,
    }


def _verdict(lived: Lived, was: float | None, change: float | None) -> str:
    if was is None or change is None or not lived.has_ended:
        return "unknown"
    if abs(change) <= max(SAME_SECONDS, SAME_PART * was):
        return "same"
    return "winner" if change < 0 else "loser"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
