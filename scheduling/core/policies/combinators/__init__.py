"""Policy rules around policies: each applies the inner one's decisions, changed by one rule.

The state of a rule is the inner policy's, so that a virtual cluster may add or remove one without
losing its policy's state.
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
