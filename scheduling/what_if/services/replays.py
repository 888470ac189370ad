"""Simulation of recorded days: accuracy of the replay, then winners and losers of a change."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

import numpy as np

from scheduling.core.messages import sentence
from scheduling.core.policies import make_policy
from scheduling.core.round.engine_setup import empty_engine, guaranteed_devices
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.simulation import (
    ClusterChange,
    SimulatedCluster,
    SimulationRecord,
    SimulationSettings,
)
from scheduling.core.simulation.guarantees import GuaranteeError, with_guarantee
from scheduling.core.values import ClusterSnapshot, JobFacts, VcFacts
from scheduling.what_if.services.recorded_days import RecordedDays, RecordedJob
from tenants.errors import InvalidError

_HOUR: Final = 3600.0


def figures(
    jobs: Sequence[RecordedJob], record: SimulationRecord, *, vc: str, devices: int
) -> dict[str, Any]:
    """Return the figures of a virtual cluster's jobs.

    Completion times are those of jobs that have ended in fact: the work of the others is unknown,
    and their simulated end would be too early.

    Args:
        jobs: its jobs.
        record: result of the simulation.
        vc: its name.
        devices: its guaranteed devices.
    """
    ends = {job.id: record.ends[job.id] for job in jobs if job.id in record.ends}
    done = [job for job in jobs if job.id in ends]
    hours = [(ends[job.id] - job.submitted) / _HOUR for job in done if job.has_ended]
    begun = min((job.submitted for job in jobs), default=0.0)
    used = sum(record.device_seconds.get(job.id, 0.0) for job in jobs)
    active = _active_seconds((job.submitted, ends[job.id]) for job in done)
    unfair = _unfairness(done, ends, devices)
    faults = [fault for fault in record.faults if fault.startswith(f"{vc}: ")]
    return {
        "jobs": len(jobs),
        "completed": len(hours),
        "avg_jct_h": round(sum(hours) / len(hours), 6) if hours else None,
        **{f"p{level}_jct_h": percentile(hours, level, 6) for level in (50, 90, 99)},
        "makespan_h": round((max(ends.values()) - begun) / _HOUR, 6) if ends else None,
        "avg_restarts": round(sum(record.restarts[job.id] for job in jobs) / max(1, len(jobs)), 6),
        "worst_ftf": round(max(unfair), 6) if unfair else None,
        "avg_gpus_busy": round(used / active, 6) if active else 0.0,
        "fallbacks": faults[:10],
        "failed_decisions": len(faults),
    }


def percentile(values: Sequence[float], level: float, digits: int) -> float | None:
    """Return a percentile, or None without values."""
    return round(float(np.percentile(values, level)), digits) if values else None


def _active_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of time spans."""
    total = until = 0.0
    for begin, end in sorted(spans):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


def _unfairness(jobs: Sequence[RecordedJob], ends: dict[int, float], devices: int) -> list[float]:
    """Return finish-time fairness: completion time over that on an equal part of the guarantee.

    (Themis, NSDI '20.) Speed is proportional to devices; a job is never faster than requested.
    """
    if not devices:
        return []
    steps = sorted([(job.submitted, 1) for job in jobs] + [(ends[job.id], -1) for job in jobs])
    times = [at for at, _ in steps]
    live = list(accumulate(step for _, step in steps))
    areas = [
        0.0,
        *accumulate(n * (b - a) for n, a, b in zip(live, times, times[1:], strict=False)),
    ]

    def area(until: float) -> float:
        place = bisect_right(times, until) - 1
        return areas[place] + live[place] * (until - times[place])

    found = []
    for job in jobs:
        span = ends[job.id] - job.submitted
        others = (area(ends[job.id]) - area(job.submitted)) / span if span > 0.0 else 1.0
        alone = job.work * max(1.0, job.devices * max(1.0, others) / devices)
        found.append(span / (alone + job.overhead.start))
    return found


MOST_JOBS_TOLD: Final = 1000
SAME_SECONDS: Final = 1.0
SAME_PART: Final = 0.01
"""Minimum difference of a winner or loser: seconds, and share of its time."""

HORIZON: Final = 90 * 86400.0
"""Seconds after the start of the period at which a simulation ends."""

MOST_TICKS: Final = 2000
"""Maximum number of rounds without events; a month with a round per minute would exceed the time
limit."""

_VERDICTS: Final = ("winner", "loser", "same", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of a what-if: a policy, and optionally a guarantee and known sizes.

    Attributes:
        guarantee: devices by type; other types do not change.
        size_aware: whether policies read the true work of jobs as their estimate.
    """

    policy: str
    policy_args: Mapping[str, Any]
    guarantee: Mapping[str, int]
    size_aware: bool


def replay(
    days: RecordedDays,
    policy: str,
    args: Mapping[str, Any],
    *,
    size_aware: bool = False,
    make: MakePolicy = make_policy,
    guarantee: Mapping[str, int] | None = None,
    comes_to: Callable[[int], None] = lambda _step: None,
    go_on: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Replay recorded days unchanged, then with one change of a virtual cluster.

    The first replay measures the accuracy of the simulation. Both simulate the whole
    cluster by the same rules. The result is deterministic. It names only jobs of the tenant of the
    virtual cluster; jobs of other tenants are counted.

    Args:
        days: the recorded days.
        policy: the other policy of the virtual cluster.
        args: parameters of the other policy.
        size_aware: whether the other policy gets the true work of jobs.
        make: builds a policy from its name and parameters.
        guarantee: devices by type for the other policy; other types are unchanged.
        comes_to: called at the start of each step.
        go_on: called after each simulated event; its exception ends the replay.

    Raises:
        InvalidError: the cluster cannot guarantee these devices.
    """
    change = Change(
        policy=policy, policy_args=args, guarantee=guarantee or {}, size_aware=size_aware
    )
    other = changed_days(days, change)
    comes_to(1)
    before = simulate_days(days, make, go_on)
    comes_to(2)
    after = simulate_days(other, make, go_on)
    vc = vc_of(days)
    known = [job for job in days.jobs.values() if not job.assumed]
    mine = [job for job in known if job.vc == days.vc]
    devices, other_devices = (guaranteed_by_type(one.snapshot, vc) for one in (days, other))
    was = figures(mine, before, vc=vc.name, devices=sum(devices.values()))
    would_be = figures(mine, after, vc=vc.name, devices=sum(other_devices.values()))
    return {
        "span": days.name,
        "rounds": days.rounds,
        "accuracy": accuracy(days, before),
        "guarantee": devices,
        "other_guarantee": other_devices,
        "left_out": dict(days.left_out),
        "assumed": len(days.jobs) - len(known),
        "size_aware": size_aware,
        "was": {"policy": vc.policy, "policy_args": dict(vc.policy_args), **was},
        "would_be": {"policy": policy, "policy_args": dict(args), **would_be},
        **_job_changes(known, before, after, tenant=vc.tenant),
    }


def _job_changes(
    jobs: Sequence[RecordedJob],
    before: SimulationRecord,
    after: SimulationRecord,
    *,
    tenant: int,
) -> dict[str, Any]:
    """Return the changes of a tenant's jobs, the largest first, and counts of all jobs."""
    own = [job_change(job, before, after) for job in jobs if job.tenant == tenant]
    others = [job_change(job, before, after) for job in jobs if job.tenant != tenant]
    own.sort(key=lambda row: (-abs(row["change_s"] or 0.0), row["job"]))
    return {
        **verdict_counts(own),
        "others": verdict_counts(others),
        "jobs": own[:MOST_JOBS_TOLD],
        "jobs_not_told": max(0, len(own) - MOST_JOBS_TOLD),
    }


def changed_days(days: RecordedDays, change: Change) -> RecordedDays:
    """Return the days with a change of their virtual cluster, also after recorded changes.

    Raises:
        InvalidError: the cluster cannot guarantee these devices.
    """
    vc = vc_of(days)

    def vcs_of(vcs: tuple[VcFacts, ...]) -> tuple[VcFacts, ...]:
        return tuple(
            replace(one, policy=change.policy, policy_args=change.policy_args, policy_state={})
            if one.id == vc.id
            else one
            for one in vcs
        )

    specs: dict[int, Any] = {}

    def changed(part: Any) -> Any:
        if id(part.spec) not in specs:
            specs[id(part.spec)] = _spec_of(part.spec, vc.name, change.guarantee)
        return replace(part, vcs=vcs_of(part.vcs), spec=specs[id(part.spec)])

    found = replace(
        days,
        snapshot=changed(days.snapshot),
        events=tuple(
            changed(event) if isinstance(event, ClusterChange) else event for event in days.events
        ),
    )
    return _with_sizes(found) if change.size_aware else found


def accuracy(days: RecordedDays, record: SimulationRecord) -> dict[str, Any]:
    """Compare the unchanged replay with the actual starts and ends.

    Returns:
        For ``starts`` and ``ends``: the number of compared jobs, the share within one round, the
        median and 90th percentile of the absolute difference in seconds, and the number of jobs
        whose replay has no start or end.
    """
    ran = [job for job in days.jobs.values() if not job.assumed]
    starts = {job.id: job.started for job in ran if job.started is not None}
    ends = {job.id: job.finished for job in ran if job.has_ended and job.finished is not None}
    seconds = days.snapshot.round_seconds
    return {
        "round_s": seconds,
        "starts": _gaps(starts, record.starts, seconds),
        "ends": _gaps(ends, record.ends, seconds),
    }


def _gaps(
    actual: Mapping[int, float], simulated: Mapping[int, float], round_seconds: float
) -> dict[str, Any]:
    gaps = [abs(simulated[job_id] - at) for job_id, at in actual.items() if job_id in simulated]
    within = sum(gap <= round_seconds for gap in gaps)
    return {
        "jobs": len(actual),
        "within_one_round": round(within / len(actual), 4) if actual else None,
        "median_s": percentile(gaps, 50.0, 3),
        "p90_s": percentile(gaps, 90.0, 3),
        "missing": len(actual) - len(gaps),
    }


def _spec_of(spec: Any, vc: str, guarantee: Mapping[str, int]) -> Any:
    try:
        changed = with_guarantee(spec, vc, guarantee)
    except GuaranteeError as error:
        raise InvalidError(
            sentence(
                "guarantee-does-not-fit",
                devices=error.devices,
                type=error.device_type,
                witness=error.witness,
            ),
            field="guarantee",
            value=dict(guarantee),
            remedy=sentence("guarantee-at-most", most=error.possible, type=error.device_type),
        ) from error
    return changed


def _with_sizes(days: RecordedDays) -> RecordedDays:
    """Let policies of the virtual cluster read the true work of its jobs as their estimate."""

    def told(job_id: int, known: JobFacts) -> JobFacts:
        job = days.jobs[job_id]
        if job.vc != days.vc:
            return known
        estimate = known.facts.executed + job.work
        return replace(
            known,
            terms=replace(known.terms, estimate=estimate),
            facts=replace(known.facts, steps_left=None),
        )

    known = {job_id: told(job_id, facts) for job_id, facts in days.snapshot.known.items()}
    return replace(
        days,
        snapshot=replace(days.snapshot, known=known),
        arrivals=tuple((job, told(job.id, facts)) for job, facts in days.arrivals),
    )


def simulate_days(
    days: RecordedDays, make: MakePolicy, go_on: Callable[[], None] = lambda: None
) -> SimulationRecord:
    """Simulate recorded days with their policies until all jobs have ended, or the horizon.

    Args:
        days: the recorded days, possibly changed.
        make: builds a policy from its name and parameters.
        go_on: called after each event; its exception ends the simulation.
    """
    world = SimulatedCluster(
        days.snapshot,
        lambda job_id: days.jobs[job_id].work,
        settings=SimulationSettings(horizon=HORIZON, tick=_tick(days)),
        arrivals=days.arrivals,
        events=days.events,
        speedup=days.speedup,
        overhead=lambda job_id: days.jobs[job_id].overhead,
        make=make,
    )
    world.decide()
    while (due := world.next_time()) is not None:
        world.advance(due)
        world.decide()
        go_on()
    return world.record


def _tick(days: RecordedDays) -> float:
    """Return the interval of rounds without events, in seconds; longer in long periods."""
    return max(60.0, days.snapshot.round_seconds, days.seconds / MOST_TICKS)


def vc_of(days: RecordedDays) -> VcFacts:
    """Return the virtual cluster that a what-if changes."""
    return next(vc for vc in days.snapshot.vcs if vc.id == days.vc)


def guaranteed_by_type(snapshot: ClusterSnapshot, vc: VcFacts) -> dict[str, int]:
    """Return the guaranteed devices of a virtual cluster by type."""
    return dict(sorted(guaranteed_devices(empty_engine(snapshot.spec), vc.name).items()))


def job_change(
    job: RecordedJob, before: SimulationRecord, after: SimulationRecord
) -> dict[str, Any]:
    """Return the completion of a job in two simulations, in seconds, and its verdict."""
    was, would_be = (_completion(job, record.ends.get(job.id)) for record in (before, after))
    change = None if was is None or would_be is None else round(would_be - was, 3)
    return {
        "job": job.id,
        "in_fact_s": _rounded(_completion(job, job.finished)),
        "was_s": _rounded(was),
        "would_be_s": _rounded(would_be),
        "change_s": change,
        "verdict": _verdict(job, was, change),
        "has_ended": job.has_ended,
    }


def _verdict(job: RecordedJob, was: float | None, change: float | None) -> str:
    if was is None or change is None or not job.has_ended:
        return "unknown"
    if abs(change) <= max(SAME_SECONDS, SAME_PART * was):
        return "same"
    return "winner" if change < 0 else "loser"


def _completion(job: RecordedJob, end: float | None) -> float | None:
    return None if end is None else end - job.submitted


def verdict_counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the numbers of winners, losers, unchanged and unknown jobs."""
    found = Counter(row["verdict"] for row in rows)
    return {verdict: found[verdict] for verdict in _VERDICTS}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
