"""Policies made of policies: each keeps the inner one's decisions but for one rule of its own.

The state of a combinator is the inner policy's, so that a virtual cluster may put one around its
policy, or take it away, without losing what the policy remembers.
"""

from scheduling.core.policies.combinators.base import Combinator
from scheduling.core.policies.combinators.filling import Backfilled, Opportunistic
from scheduling.core.policies.combinators.guarded import Guarded
from scheduling.core.policies.combinators.holding import DeviceCeiling, Hysteresis
from scheduling.core.policies.combinators.urgency import DeadlineGuard, ReserveHead

__all__ = [
    "Backfilled",
    "Combinator",
    "DeadlineGuard",
    "DeviceCeiling",
    "Guarded",
    "Hysteresis",
    "Opportunistic",
    "ReserveHead",
]
