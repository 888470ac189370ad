"""Replay of recorded days under every policy: one recommendation, winners, losers and regret.

The first replay is unchanged, on the actual cluster; its accuracy is stated before all else. With
a planned number of nodes, all further replays run on the planned cluster.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from scheduling.core.messages import sentence
from scheduling.core.policies import POLICIES, make_policy
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.simulation import ClusterChange, SimulationRecord
from scheduling.core.simulation.advice import PolicyOutcome, advice_of, comparable_mean
from scheduling.core.simulation.guarantees import GuaranteeError
from scheduling.core.simulation.planned_nodes import (
    PlannedNodesError,
    fewer_nodes,
    least_held,
    more_nodes,
)
from scheduling.core.values import VcFacts
from scheduling.what_if.services.recorded_days import RecordedDays, RecordedJob
from scheduling.what_if.services.replays import (
    Change,
    accuracy,
    changed_days,
    figures,
    guaranteed_by_type,
    job_change,
    simulate_days,
    vc_of,
    verdict_counts,
)
from tenants.errors import InvalidError

ADVICE_SECONDS: Final = 900.0
"""Time of all replays together. Each policy gets an equal part of what is left."""

MOST_JOBS_TOLD: Final = 200
_HOUR: Final = 3600.0


class _TooSlowError(Exception):
    """A replay has used its part of the time."""


def candidates(vc: VcFacts) -> tuple[str, ...]:
    """Return the policies that are compared with the policy in force, the simplest first.

    Another set of parameters of the policy in force is not compared.
    """
    first = ("fifo", "backfill", "srtf", "srsf", "tiresias", "tessera")
    names = (*first, *sorted(set(POLICIES) - set(first)))
    return tuple(name for name in names if name in POLICIES and name != vc.policy)


def advice_steps(policy: str) -> int:
    """Return the number of steps of an advice: reading, the policy in force, and the others."""
    return 2 + sum(name != policy for name in POLICIES)


def advise(
    days: RecordedDays,
    *,
    nodes: Mapping[str, int],
    make: MakePolicy = make_policy,
    comes_to: Callable[[int], None] = lambda _step: None,
    go_on: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    seconds: float = ADVICE_SECONDS,
) -> dict[str, Any]:
    """Replay the days under every policy, and recommend one for their virtual cluster.

    Args:
        days: the recorded days.
        nodes: by device type, the number of nodes more, or fewer if negative.
        make: builds a policy from its name and parameters.
        comes_to: called at the start of each step.
        go_on: called after each simulated event; its exception ends the advice.
        clock: seconds that pass; only differences count.
        seconds: time of all replays.

    Returns:
        ``accuracy`` of the unchanged replay, ``actual`` figures on the actual cluster,
        ``policies`` with the policy in force first, ``recommendation``, ``regret``, and
        ``changes``: winners and losers by virtual cluster, and the jobs of its tenant.

    Raises:
        InvalidError: the planned nodes do not fit the cluster.
    """
    begun, vc = clock(), vc_of(days)
    planned = _planned(days, {kind: count for kind, count in nodes.items() if count})
    comes_to(1)
    before = simulate_days(days, make, go_on)
    now = before if planned is days else simulate_days(planned, make, go_on)
    replays = [_Replay(vc.policy, vc.policy_args, now, "")]
    names = candidates(vc)
    for place, name in enumerate(names):
        comes_to(2 + place)
        left = (seconds - (clock() - begun)) / (len(names) - place)
        within_time = _within_time(go_on, clock, left)
        replays.append(_replayed(planned, name, make, within_time))
    return {"nodes": dict(nodes), **_result(days, planned, before, replays)}


def _result(
    days: RecordedDays,
    planned: RecordedDays,
    before: SimulationRecord,
    replays: Sequence["_Replay"],
) -> dict[str, Any]:
    """Return the document of an advice, from the unchanged replay and those of all policies."""
    vc = vc_of(days)
    outcomes = [_outcome(planned, one) for one in replays]
    advice = advice_of(outcomes[0], outcomes[1:])
    chosen = _compared(outcomes, advice.place)
    return {
        "span": days.name,
        "rounds": days.rounds,
        "assumed": sum(job.assumed for job in days.jobs.values()),
        "left_out": dict(days.left_out),
        "accuracy": accuracy(days, before),
        "guarantee": guaranteed_by_type(days.snapshot, vc),
        "other_guarantee": guaranteed_by_type(planned.snapshot, vc),
        "actual": asdict(_outcome(days, _Replay(vc.policy, vc.policy_args, before, ""))),
        "policies": [asdict(one) for one in outcomes],
        "recommendation": {
            "verdict": advice.verdict.value,
            "policy": None if advice.place is None else outcomes[1 + advice.place].policy,
        },
        "regret": None if advice.regret is None else asdict(advice.regret),
        "changes": _changes(days, before, replays[chosen]),
    }


class _Replay:
    """The record of one policy, or the reason for which it has none."""

    __slots__ = ("args", "fault", "policy", "record")

    def __init__(
        self, policy: str, args: Mapping[str, Any], record: SimulationRecord | None, fault: str
    ) -> None:
        self.policy = policy
        self.args = dict(args)
        self.record = record
        self.fault = fault


def _within_time(
    go_on: Callable[[], None], clock: Callable[[], float], seconds: float
) -> Callable[[], None]:
    """Return ``go_on`` with a limit of ``seconds`` from now."""
    until = clock() + seconds

    def check() -> None:
        go_on()
        if clock() > until:
            raise _TooSlowError(sentence("policy-too-slow", seconds=format(seconds, ".0f")))

    return check


def _replayed(
    days: RecordedDays, policy: str, make: MakePolicy, go_on: Callable[[], None]
) -> _Replay:
    """Replay the days under a policy with its default parameters."""
    change = Change(policy=policy, policy_args={}, guarantee={}, size_aware=False)
    try:
        record = simulate_days(changed_days(days, change), make, go_on)
    except _TooSlowError as error:
        return _Replay(policy, {}, None, str(error))
    return _Replay(policy, {}, record, "")


def _outcome(days: RecordedDays, replay: _Replay) -> PolicyOutcome:
    if replay.record is None:
        return PolicyOutcome(policy=replay.policy, policy_args=replay.args, fault=replay.fault)
    vc = vc_of(days)
    jobs = [job for job in days.jobs.values() if job.vc == vc.id and not job.assumed]
    devices = sum(guaranteed_by_type(days.snapshot, vc).values())
    found = figures(jobs, replay.record, vc=vc.name, devices=devices)
    return PolicyOutcome(
        policy=replay.policy,
        policy_args=replay.args,
        completed=found["completed"],
        mean=_seconds(found["avg_jct_h"]),
        p99=_seconds(found["p99_jct_h"]),
        unfairness=found["worst_ftf"],
        restarts=found["avg_restarts"],
        failed_decisions=found["failed_decisions"],
    )


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else round(hours * _HOUR, 3)


def _compared(outcomes: Sequence[PolicyOutcome], place: int | None) -> int:
    """Return the index of the replay with winners and losers.

    It is the recommended one; without a recommendation, the lowest mean.
    """
    if place is not None:
        return 1 + place
    means = [
        (mean, index)
        for index, one in enumerate(outcomes)
        if (mean := comparable_mean(one, outcomes[0])) is not None
    ]
    return min(means, default=(0.0, 0))[1]


def _changes(days: RecordedDays, before: SimulationRecord, replay: _Replay) -> dict[str, Any]:
    """Return winners and losers by virtual cluster, and the jobs of the tenant's own."""
    after = replay.record or before
    known = [job for job in days.jobs.values() if not job.assumed]
    rows = [(job, job_change(job, before, after)) for job in known]
    own = [row for job, row in rows if job.tenant == vc_of(days).tenant]
    own.sort(key=lambda row: (-abs(row["change_s"] or 0.0), row["job"]))
    return {
        "policy": replay.policy,
        "virtual_clusters": list(_by_vc(days, rows)),
        "jobs": own[:MOST_JOBS_TOLD],
        "jobs_not_told": max(0, len(own) - MOST_JOBS_TOLD),
    }


def _by_vc(
    days: RecordedDays, rows: Sequence[tuple[RecordedJob, Mapping[str, Any]]]
) -> Iterator[dict[str, Any]]:
    for vc in sorted(days.snapshot.vcs, key=lambda one: one.name):
        mine = [row for job, row in rows if job.vc == vc.id]
        changes = [row["change_s"] for row in mine if row["change_s"] is not None]
        yield {
            "id": vc.id,
            "name": vc.name,
            "tenant": vc.tenant,
            "mean_change_s": round(sum(changes) / len(changes), 3) if changes else None,
            **verdict_counts(mine),
        }


def _planned(days: RecordedDays, nodes: Mapping[str, int]) -> RecordedDays:
    """Return the days on the planned cluster, also after recorded changes of the cluster."""
    if not nodes:
        return days
    vc = vc_of(days)
    closed = {kind: _closed(days, kind, -count) for kind, count in nodes.items() if count < 0}
    planned: dict[int, Any] = {}

    def changed(part: Any) -> Any:
        spec, facts = part.spec, part.nodes
        try:
            for kind, count in sorted(nodes.items()):
                if count > 0:
                    spec, facts = more_nodes(spec, facts, vc.name, kind, count)
                else:
                    spec, facts = fewer_nodes(spec, facts, vc.name, kind, closed[kind])
        except PlannedNodesError as error:
            raise _node_error(error) from error
        except GuaranteeError as error:
            raise _guarantee_error(error, nodes) from error
        # One object for equal cells: the engine of a specification is built once.
        spec = planned.setdefault(id(part.spec), spec)
        return replace(part, spec=spec, nodes=facts)

    return replace(
        days,
        snapshot=changed(days.snapshot),
        events=tuple(
            changed(event) if isinstance(event, ClusterChange) else event for event in days.events
        ),
    )


def _closed(days: RecordedDays, kind: str, count: int) -> tuple[str, ...]:
    try:
        return least_held(days.snapshot.spec, kind, count, days.snapshot.holding)
    except PlannedNodesError as error:
        raise _node_error(error) from error


def _node_error(error: PlannedNodesError) -> InvalidError:
    return InvalidError(
        sentence("fewer-nodes-than", possible=error.possible, type=error.device_type),
        field="nodes",
        value=error.device_type,
    )


def _guarantee_error(error: GuaranteeError, nodes: Mapping[str, int]) -> InvalidError:
    return InvalidError(
        sentence(
            "guarantee-does-not-fit",
            devices=error.devices,
            type=error.device_type,
            witness=error.witness,
        ),
        field="nodes",
        value=dict(nodes),
        remedy=sentence("guarantee-at-most", most=error.possible, type=error.device_type),
    )
