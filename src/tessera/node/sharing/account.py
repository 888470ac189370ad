"""Account of the delay that guests may still cause to the holder of a device.

Each step of the holder pays in a part of its allowed slowdown; each delay against the baseline is
withdrawn. The delay over any span is therefore at most the payments of the span, plus the
reserve, plus the amount by which the newest close came too late: independently of the behaviour of
guest and device.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Optional, Tuple

from tessera.node.sharing.figures import median, stdev

BASELINE_STEPS = 48
LONGEST_STEP = 4.0
"""A step counts as at most this multiple of the baseline, or a checkpoint would close the gate."""
PAID_IN = 0.8
"""Part of the slowdown that is paid in; the rest covers delays that cannot be measured."""
_RESERVE_SECONDS = 4.0
_RESERVE_STEPS = 60


class Gate(enum.Enum):
    """State of the gate of the guests during a step of the holder."""

    OPEN = "open"
    CLOSED = "closed"
    SETTLING = "settling"  # the gate moved during the step: the step is charged, but not measured


class DelayAccount(NamedTuple):
    """Delay account of a holder.

    Attributes:
        closed: seconds of the newest closed steps, oldest first, at most ``BASELINE_STEPS``.
        baseline: mean of ``closed`` with long steps clipped, in seconds; None before the first.
        scatter: standard deviation of these clipped steps, in seconds.
        balance: seconds of delay that guests may still cause; negative if they caused too much.
    """

    closed: Tuple[float, ...] = ()
    baseline: Optional[float] = None
    scatter: float = 0.0
    balance: float = 0.0

    @property
    def overdrawn(self) -> bool:
        """Whether guests must wait: the balance is negative, or there is no baseline."""
        return self.baseline is None or self.balance < 0


def observe(account: DelayAccount, seconds: float, gate: Gate, slowdown: float) -> DelayAccount:
    """Book one step of the holder.

    Args:
        account: the account before the step.
        seconds: duration of the step, positive.
        gate: state of the gate during the step.
        slowdown: allowed loss of the holder as a fraction of its baseline, in (0, 1).
    """
    if gate is Gate.CLOSED:
        account = _with_closed(account, (*account.closed, seconds)[-BASELINE_STEPS:])
    baseline = account.baseline
    if baseline is None:
        return account
    delay = clipped(seconds, baseline) - baseline
    balance = account.balance + PAID_IN * slowdown * baseline - delay
    return account._replace(balance=min(balance, reserve(baseline, slowdown)))


def clipped(seconds: float, baseline: float) -> float:
    """Return the counted seconds of a step."""
    return min(seconds, LONGEST_STEP * baseline)


def reserve(baseline: float, slowdown: float) -> float:
    """Return the highest balance, in seconds: the payments of 4 s or of 60 steps."""
    return PAID_IN * slowdown * max(_RESERVE_SECONDS, _RESERVE_STEPS * baseline)


def forget(account: DelayAccount, newest: int) -> DelayAccount:
    """Return an empty account with a baseline of only the newest closed steps."""
    return _with_closed(DelayAccount(), account.closed[-newest:])


def _with_closed(account: DelayAccount, closed: Tuple[float, ...]) -> DelayAccount:
    longest = LONGEST_STEP * median(closed)
    counted = [min(seconds, longest) for seconds in closed]
    scatter = stdev(counted) if len(counted) > 1 else 0.0
    baseline = sum(counted) / len(counted)
    return account._replace(closed=closed, baseline=baseline, scatter=scatter)
