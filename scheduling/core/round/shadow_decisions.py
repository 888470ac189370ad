"""Decisions of a shadow policy in a stored round, compared with the live ones."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.round.decide import decide
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowAnswer:
    """A shadow policy's round of one virtual cluster, which is not applied.

    Attributes:
        fault: its fault, if any; first in, first out has decided then.
        starts: jobs that it would have started.
        both: started jobs that the live round also started.
        only_shadow: started jobs that the live round did not start.
        only_live: live starts that it would have held.
        leaving: running jobs that it would have stopped or resized, with the rule.
        sizes: devices of jobs that it would have started at a size other than requested.
        why: a line for each live start that it would have held.
        state: state of the policy, for its next round.
    """

    fault: str
    starts: tuple[int, ...]
    both: tuple[int, ...]
    only_shadow: tuple[int, ...]
    only_live: tuple[int, ...]
    leaving: Mapping[int, str] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    why: Mapping[int, str] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


def shadow_round(
    snapshot: ClusterSnapshot,
    result: RoundResult,
    *,
    vc_id: int,
    policy: str,
    args: Mapping[str, Any],
    state: Mapping[str, Any],
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
) -> ShadowAnswer:
    """Decide a round again under another policy of one virtual cluster.

    Waiting jobs of other virtual clusters are omitted: their guarantees do not overlap with this
    one, and opportunistic jobs of this one get the devices that were idle before any borrowing.

    Args:
        snapshot: snapshot of the round.
        result: result of the round.
        vc_id: ID of the virtual cluster whose policy is replaced.
        policy: name of the replacement.
        args: its parameters.
        state: state from its last round of the same kind.
        limit: bounds its time.
        make: builds a policy from its name and parameters.
    """
    shadowed = _under(snapshot, vc_id, policy=policy, policy_args=args, policy_state=state)
    again = decide(shadowed, limit=limit, make=make)
    mine = {job.id for job in shadowed.queued}
    held = {job.id for job in snapshot.holding if job.vc == vc_id}
    wanted = {start.job_id: None for start in again.starts}
    was = {start.job_id: None for start in result.starts if start.job_id in mine}
    left = {p.job_id for p in result.preemptions}
    return ShadowAnswer(
        fault=again.policy_faults.get(vc_id, ""),
        starts=tuple(wanted),
        both=tuple(job_id for job_id in wanted if job_id in was),
        only_shadow=tuple(job_id for job_id in wanted if job_id not in was),
        only_live=tuple(job_id for job_id in was if job_id not in wanted),
        leaving={
            p.job_id: p.rule
            for p in again.preemptions
            if p.job_id in held and p.job_id not in left
        },
        sizes={s.job_id: s.demand.devices for s in again.starts if s.demand is not None},
        why={
            job_id: str(again.reasons[job_id].text)
            for job_id in was
            if job_id not in wanted and job_id in again.reasons
        },
        state=again.policy_states.get(vc_id, state),
    )


def _under(snapshot: ClusterSnapshot, vc_id: int, **policy: Any) -> ClusterSnapshot:
    """Copy the snapshot with another policy of one virtual cluster, and only its waiting jobs."""
    chosen = tuple(replace(vc, **policy) for vc in snapshot.vcs if vc.id == vc_id)
    # Policies of others are not called: first in, first out does not change running jobs.
    others = tuple(
        replace(vc, policy="fifo", policy_args={}) for vc in snapshot.vcs if vc.id != vc_id
    )
    queued = tuple(job for job in snapshot.queued if job.vc == vc_id)
    return replace(snapshot, vcs=(*chosen, *others), queued=queued)
