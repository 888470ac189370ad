"""Account of the delay that guests may still cause to the holder of a device.

Each step of the holder pays in a part of its allowed slowdown; each delay against the baseline is
withdrawn. The delay over any span is therefore at most the payments of the span, plus the
reserve, plus the amount by which the newest close came too late: independently of the behaviour of
guest and device.

``observe`` is the arithmetic of the specification, which counts a step as at most four baselines.
A module of a guest that lasts longer than three steps of the holder hides a part of its delay
behind that clip. ``book``, which the law uses, therefore charges the excess of long steps as well,
except for the excess that closed steps show to be the holder's own.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple, Optional, Tuple

from tessera.node.sharing.figures import median, stdev

BASELINE_STEPS = 48
LONGEST_STEP = 4.0
"""Clip of a step in baselines: a longer one is a checkpoint, or contains a module of a guest."""
PAID_IN = 0.8
"""Part of the slowdown that is paid in; the rest covers delays that cannot be measured."""
_RESERVE_SECONDS = 4.0
_RESERVE_STEPS = 60
_FADE_SECONDS = 120.0
_PRIOR_SECONDS = 0.25  # assumed closed time without long steps, so that old evidence counts less
_MOST_RESERVES = 2.0
"""Largest charge of one step in reserves: a first checkpoint may close the gate for about 10 s."""
_LEAST_COUNT = 0.1


class Gate(enum.Enum):
    """State of the gate of the guests during a step of the holder."""

    OPEN = "open"
    CLOSED = "closed"
    SETTLING = "settling"  # the gate moved during the step: the step is charged, but not measured


class OwnExcess(NamedTuple):
    """Seconds of the holder's own long steps beyond the clip, measured in closed steps.

    The sums fade with time, so that guests are charged again after such steps have ceased.

    Attributes:
        seconds: sum of the baselines of the closed steps.
        excess: sum of the seconds beyond the clip.
        squares: sum of the squares of these seconds.
    """

    seconds: float = 0.0
    excess: float = 0.0
    squares: float = 0.0

    @property
    def rate(self) -> float:
        """Expected excess per second of baseline, plus one standard error."""
        error = min(math.sqrt(self.squares), self.excess)  # the root fades more slowly
        return (self.excess + error) / (self.seconds + _PRIOR_SECONDS)

    @property
    def size(self) -> float:
        """Typical excess of a long step: the mean, weighted by excess; 0 without long steps."""
        return self.squares / self.excess if self.excess else 0.0

    @property
    def is_known(self) -> bool:
        """Whether a recent closed step was long (one counts for 5 minutes)."""
        return self.excess * self.excess > _LEAST_COUNT * self.squares

    def after(self, seconds: float) -> OwnExcess:
        """Return the faded sums after some time."""
        left = math.exp(-seconds / _FADE_SECONDS)
        return OwnExcess(self.seconds * left, self.excess * left, self.squares * left)

    def plus(self, baseline: float, excess: float) -> OwnExcess:
        """Return the sums with one more closed step."""
        squares = self.squares + excess * excess
        return OwnExcess(self.seconds + baseline, self.excess + excess, squares)


class DelayAccount(NamedTuple):
    """Delay account of a holder.

    Attributes:
        closed: seconds of the newest closed steps, oldest first, at most ``BASELINE_STEPS``.
        baseline: mean of ``closed``, each at most ``clip``, in seconds; None before the first.
        scatter: standard deviation of these clipped steps, in seconds.
        balance: seconds of delay that guests may still cause; negative if they caused too much.
        clip: 4 times the median of ``closed``; the seconds of a step beyond it are its excess.
        own: excess of closed steps.
        allowance: excess of open steps, in seconds, that ``own`` explains in advance.
    """

    closed: Tuple[float, ...] = ()
    baseline: Optional[float] = None
    scatter: float = 0.0
    balance: float = 0.0
    clip: float = math.inf
    own: OwnExcess = OwnExcess()
    allowance: float = 0.0

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


def book(
    account: DelayAccount, seconds: float, gate: Gate, slowdown: float
) -> Tuple[DelayAccount, float]:
    """Book one step of the holder with its excess; the arguments are those of ``observe``.

    Returns:
        The account after the step, and the counted seconds of the step.
    """
    account = observe(account, seconds, gate, slowdown)
    baseline = account.baseline
    if baseline is None:
        return account, seconds
    counted = min(seconds, account.clip)
    excess = seconds - counted
    own, allowance = account.own.after(seconds), account.allowance
    if gate is Gate.CLOSED:
        own = own.plus(baseline, excess)
    else:
        allowance = min(allowance + own.rate * baseline, _most_allowance(own, baseline))
        charged = max(excess - allowance, 0.0)
        counted += min(charged, _MOST_RESERVES * reserve(baseline, slowdown))
        allowance = max(allowance - excess, 0.0)
    balance = account.balance + clipped(seconds, baseline) - counted
    balance = min(balance, reserve(baseline, slowdown))
    return account._replace(own=own, allowance=allowance, balance=balance), counted


def _most_allowance(own: OwnExcess, baseline: float) -> float:
    return own.size + own.rate * max(_RESERVE_SECONDS, _RESERVE_STEPS * baseline)


def clipped(seconds: float, baseline: float) -> float:
    """Return the seconds of a step, at most four baselines."""
    return min(seconds, LONGEST_STEP * baseline)


def reserve(baseline: float, slowdown: float) -> float:
    """Return the highest balance, in seconds: the payments of 4 s or of 60 steps."""
    return PAID_IN * slowdown * max(_RESERVE_SECONDS, _RESERVE_STEPS * baseline)


def forget(account: DelayAccount, newest: int) -> DelayAccount:
    """Return an empty account with a baseline of only the newest closed steps."""
    return _with_closed(DelayAccount(), account.closed[-newest:])


def _with_closed(account: DelayAccount, closed: Tuple[float, ...]) -> DelayAccount:
    clip = LONGEST_STEP * median(closed)
    counted = [min(seconds, clip) for seconds in closed]
    scatter = stdev(counted) if len(counted) > 1 else 0.0
    baseline = sum(counted) / len(counted)
    return account._replace(closed=closed, baseline=baseline, scatter=scatter, clip=clip)
