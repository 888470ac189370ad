"""Control law: opens and closes the gate of a holder's guests, and sets their compute.

The law limits the holder to its slowdown by the ``account``. Inside that limit, ``compute`` is
the delay that a guest may cause in a second, so that the loss of the holder is about right from
the first opening on. Corrections are needed only if guests cost more or less than their own
working time. The gate also closes to measure the baseline again.
"""

from __future__ import annotations

import enum
import math
from typing import Iterable, NamedTuple, Optional, Sequence, Tuple

from tessera.node.sharing.account import (
    LONGEST_STEP,
    PAID_IN,
    DelayAccount,
    Gate,
    book,
    clipped,
    forget,
    reserve,
)
from tessera.node.sharing.figures import median, stdev

LEAST_BASELINE_STEPS = 8
_AFTER_OVERDRAFT_STEPS = 3
_PROBE_SECONDS = (10.0, 30.0)
_PROBE_STEPS = 80  # a probe takes at least 8 steps: about 10 % of the time
_STALE_STEPS = (3, 8)
_LEAST_COMPUTE, _MOST_COMPUTE = 0.05, 4 * PAID_IN  # as multiples of the allowed slowdown
_RECENT_STEPS = 8
_FEW_STEPS = 5
_LONG_WITHIN = 20
_SHUT_SECONDS = (60.0, 900.0)
_MISFITS = 3
_MISFIT_SECONDS = 60.0


class HolderStep(NamedTuple):
    """A step that a holder reported: its times in seconds on the node's boot clock."""

    start: float
    end: float


class Limits(NamedTuple):
    """Parameters of a holder.

    Attributes:
        slowdown: allowed loss as a fraction of the holder's baseline, 0.01 to 0.2.
        settle_seconds: longest time from a move of the gate until guests obey it: the delivery
            of the bound and the module in flight. Steps that begin earlier are settling.
    """

    slowdown: float
    settle_seconds: float


class LawRule(enum.Enum):
    """Rule that moved the gate; ``START`` before the first move."""

    START = "start"
    READY = "ready"
    OVERDRAWN = "overdrawn"
    PROBE = "probe"
    FASTER = "faster"  # the holder is faster than the baseline, which is thus too long
    LONG_STEPS = "long-steps"
    MISFIT = "misfit"


class State(NamedTuple):
    """State of the law for one holder.

    Attributes:
        account: the delay account.
        compute: seconds of delay that a guest may cause in a second of open time.
        is_open: whether guests may run.
        rule: rule that moved the gate last.
        moved_at: time of the latest move of the gate.
        closed_steps: closed steps since that move.
        needed_steps: closed steps that are needed before the gate opens.
        last_closed: end of the newest closed step.
        window: counted seconds of the open steps since ``window_start``.
        window_start: time of the latest change or check of ``compute``.
        open_steps: seconds of the newest open steps since the latest close.
        baselines: baselines at the latest openings, at most 3.
        probe_seconds: longest open time before the baseline is measured again.
        shut_until: time before which the gate stays closed.
        shut_seconds: length of the next closure of a pair that does not fit.
        misfits: times of the latest overdrafts with the least compute.
        counted: counted seconds of each step of the latest look.
    """

    account: DelayAccount
    compute: float
    is_open: bool = False
    rule: LawRule = LawRule.START
    moved_at: float = -math.inf
    closed_steps: int = 0
    needed_steps: int = LEAST_BASELINE_STEPS
    last_closed: float = -math.inf
    window: Tuple[float, ...] = ()
    window_start: float = 0.0
    open_steps: Tuple[float, ...] = ()
    baselines: Tuple[float, ...] = ()
    probe_seconds: float = _PROBE_SECONDS[0]
    shut_until: float = -math.inf
    shut_seconds: float = _SHUT_SECONDS[0]
    misfits: Tuple[float, ...] = ()
    counted: Tuple[float, ...] = ()


def initial(limits: Limits) -> State:
    """Return the state before the first step: closed, without a baseline."""
    return State(account=DelayAccount(), compute=PAID_IN * limits.slowdown)


def look(state: State, steps: Iterable[HolderStep], now: float, limits: Limits) -> State:
    """Book the steps that ended since the previous look, then move the gate if it must move.

    Args:
        state: the state after the previous look.
        steps: steps in order, each with ``end <= now``.
        now: the node's boot clock, in seconds.
        limits: parameters of the holder.
    """
    state = state._replace(counted=())
    for step in steps:
        state = _book(state, step, limits)
    if state.account.baseline is None:
        return state
    if not state.is_open:
        return _opened(state, now) if _may_open(state, now, limits) else state
    rule = _rule_to_close(state, now)
    if rule is None:
        return _adjusted(state, now, limits)
    return _closed(state, now, rule, limits)


def _book(state: State, step: HolderStep, limits: Limits) -> State:
    gate = _gate_during(step, state, limits)
    seconds = step.end - step.start
    account, counted = book(state.account, seconds, gate, limits.slowdown)
    state = state._replace(account=account, counted=(*state.counted, counted))
    if gate is Gate.CLOSED:
        count = state.closed_steps + 1
        return _without_stale(state._replace(closed_steps=count, last_closed=step.end), limits)
    if gate is Gate.OPEN and account.baseline is not None:
        newest = (*state.open_steps, seconds)[-_LONG_WITHIN:]
        return state._replace(window=(*state.window, counted), open_steps=newest)
    return state


def _gate_during(step: HolderStep, state: State, limits: Limits) -> Gate:
    if step.start < state.moved_at + limits.settle_seconds:
        return Gate.SETTLING
    return Gate.OPEN if state.is_open else Gate.CLOSED


def _without_stale(state: State, limits: Limits) -> State:
    """Forget old closed steps if the newest ones show that the holder itself has changed."""
    newest = state.closed_steps
    closed = state.account.closed
    if newest not in _STALE_STEPS or len(closed) - newest < _AFTER_OVERDRAFT_STEPS:
        return state
    old = closed[:-newest]
    change = abs(median(closed[-newest:]) - median(old))
    if change <= max(0.1 * median(old), 2.5 * stdev(old) / math.sqrt(newest)):
        return state
    return state._replace(
        account=forget(state.account, newest),
        compute=PAID_IN * limits.slowdown,
        baselines=(),
        probe_seconds=_PROBE_SECONDS[0],
    )


def _may_open(state: State, now: float, limits: Limits) -> bool:
    account = state.account
    return (
        account.baseline is not None
        and now >= state.shut_until
        and len(account.closed) >= LEAST_BASELINE_STEPS
        and state.closed_steps >= state.needed_steps
        and account.balance >= reserve(account.baseline, limits.slowdown) / 4
    )


def _opened(state: State, now: float) -> State:
    baselines = (*state.baselines, state.account.baseline or 0.0)[-3:]
    probe, longest = state.probe_seconds, _PROBE_SECONDS[1]
    if len(baselines) == 3:
        agree = max(baselines) < 1.02 * min(baselines)
        probe = min(2 * probe, longest) if agree else _PROBE_SECONDS[0]
    return state._replace(
        is_open=True,
        rule=LawRule.READY,
        moved_at=now,
        window=(),
        window_start=now,
        open_steps=(),
        baselines=baselines,
        probe_seconds=probe,
    )


def _rule_to_close(state: State, now: float) -> Optional[LawRule]:
    account = state.account
    if account.overdrawn or account.baseline is None:
        return LawRule.OVERDRAWN
    if now - state.last_closed > max(state.probe_seconds, _PROBE_STEPS * account.baseline):
        return LawRule.PROBE
    if _is_faster(state, account.baseline):
        return LawRule.FASTER
    if _has_long_steps(state, account.baseline):
        return LawRule.LONG_STEPS
    return None


def _is_faster(state: State, baseline: float) -> bool:
    newest = [clipped(seconds, baseline) for seconds in state.open_steps[-_RECENT_STEPS:]]
    if len(newest) < _RECENT_STEPS:
        return False
    change = baseline - sum(newest) / len(newest)
    return change > max(0.03 * baseline, 2 * _error(newest, state.account))


def _has_long_steps(state: State, baseline: float) -> bool:
    """Whether there are two long open steps of a holder that has none by itself."""
    longest = LONGEST_STEP * baseline
    if state.account.own.is_known:
        return False
    return sum(seconds > longest for seconds in state.open_steps) >= 2


def _closed(state: State, now: float, rule: LawRule, limits: Limits) -> State:
    shut_until = state.shut_until
    if rule is LawRule.LONG_STEPS:
        shut_until = now + _SHUT_SECONDS[0]
    if rule is LawRule.OVERDRAWN:
        state, rule = _after_overdraft(state, now, limits)
        if rule is LawRule.MISFIT:
            shut_until = now + state.shut_seconds
            longer = min(2 * state.shut_seconds, _SHUT_SECONDS[1])
            state = state._replace(shut_seconds=longer, misfits=())
    overdrawn = rule is LawRule.OVERDRAWN
    return state._replace(
        is_open=False,
        rule=rule,
        moved_at=now,
        closed_steps=0,
        needed_steps=_AFTER_OVERDRAFT_STEPS if overdrawn else LEAST_BASELINE_STEPS,
        window=(),
        open_steps=(),
        shut_until=shut_until,
    )


def _after_overdraft(state: State, now: float, limits: Limits) -> Tuple[State, LawRule]:
    """Halve compute if guests are the cause; count overdrafts at the minimum compute.

    Late steps of the holder itself also overdraw the account; they only close the gate.
    """
    loss, error = _loss(state.window, state.account)
    if loss - error <= limits.slowdown:
        return state, LawRule.OVERDRAWN
    least = _LEAST_COMPUTE * limits.slowdown
    if state.compute > least:
        halved = max(state.compute / 2, least)
        return state._replace(compute=halved), LawRule.OVERDRAWN
    recent = [then for then in state.misfits if now - then <= _MISFIT_SECONDS]
    misfits = (*recent, now)
    rule = LawRule.MISFIT if len(misfits) >= _MISFITS else LawRule.OVERDRAWN
    return state._replace(misfits=misfits), rule


def _adjusted(state: State, now: float, limits: Limits) -> State:
    """Correct compute where guests cost clearly more or less than their own working time."""
    count, seconds = len(state.window), now - state.window_start
    if not ((count >= 20 and seconds >= 1) or (count >= _FEW_STEPS and seconds >= 4)):
        return state
    compute = state.compute
    loss, error = _loss(state.window, state.account)
    if loss - error > limits.slowdown:
        compute = max(compute / 2, _LEAST_COMPUTE * limits.slowdown)
    elif loss + 2 * error < limits.slowdown / 2:
        compute = min(compute * 1.5, _MOST_COMPUTE * limits.slowdown)
    return state._replace(compute=compute, window=(), window_start=now)


def _loss(window: Sequence[float], account: DelayAccount) -> Tuple[float, float]:
    """Return the loss in open steps and its standard error, both relative to the baseline.

    An account that was overdrawn before 5 open steps is evidence of a loss without a measurement.
    """
    if len(window) < _FEW_STEPS or account.baseline is None:
        return math.inf, 0.0
    mean = sum(window) / len(window)
    return mean / account.baseline - 1, _error(window, account) / account.baseline


def _error(window: Sequence[float], account: DelayAccount) -> float:
    """Return the standard error of the difference of the means of open and closed steps.

    A few open steps may lack rare late steps, so their scatter counts as at least that of the
    closed steps.
    """
    scatter = max(stdev(window), account.scatter)
    return scatter * math.sqrt(1 / len(window) + 1 / len(account.closed))
