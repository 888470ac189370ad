"""Policy rules around a policy, selected by name, including the replacement of a failing policy.

Every policy has a parameter ``wrap``, a mapping of rule names to parameters. The order of nesting
is fixed, since most other orders are useless. A failing policy is replaced innermost, so that its
rules also apply to the replacement. Caps are outermost, so that no rule exceeds them.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

from scheduling.core.messages import sentence
from scheduling.core.policies.base import Combinator, Policy, TimeLimit, guarded_plan
from scheduling.core.policies.combinators.holding import DeviceCeiling, Hysteresis
from scheduling.core.policies.combinators.waiting import (
    Backfilled,
    DeadlineGuard,
    Opportunistic,
    ReserveHead,
)
from scheduling.core.policies.parameters import (
    NO_PARAMETER,
    UnknownPolicyError,
    checked,
    parameter,
    read_args,
    shown,
)
from scheduling.core.policies.queues.backfilling import Backfill
from scheduling.core.policies.queues.capacity import Capacity
from scheduling.core.policies.queues.ordered import Fifo, ShortestService, ShortestTime
from scheduling.core.policies.queues.shares import DominantShare, FairShare
from scheduling.core.policy_interface import Plan, Snapshot

#: Policies that are fast for every view.
FALLBACKS: Final[Mapping[str, type[Policy]]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Fifo,
            Backfill,
            Capacity,
            DominantShare,
            FairShare,
            ShortestService,
            ShortestTime,
        )
    }
)

#: The parameter of every policy with its policy rules.
WRAP: Final = "wrap"

Wraps = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded(Combinator):
    """Runs the inner policy, or ``fallback`` if it fails, times out or returns an illegal plan.

    Attributes:
        fallback: name of another policy, one that only orders jobs and takes negligible time.
        limit: limits the time of a call; created by the driver, which has the clock.
    """

    fallback: str = parameter("fifo", sentence("param-fallback"), choices=tuple(FALLBACKS))
    limit: TimeLimit = field(default=nullcontext, metadata=NO_PARAMETER)

    name: ClassVar[str] = "guarded"
    summary: ClassVar[str] = sentence("summary-guarded")

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Return the inner plan if it is legal; else its notes contain the fault.

        ``instead`` in them names the policy that decides: if ``fallback`` also fails, running jobs
        do not change, and others start first in, first out.
        """
        plan, after, fault = guarded_plan(self.inner, snapshot, state, limit=self.limit)
        if fault is None:
            return plan, after
        fallback = FALLBACKS[self.fallback]()
        instead, _, worse = guarded_plan(fallback, snapshot, {}, limit=self.limit)
        faults = [fault] if worse is None else [fault, worse]
        told = {"faults": faults, "instead": self.fallback if worse is None else Fifo.name}
        return replace(instead, notes={**instead.notes, **told}), state


#: By name, from the innermost to the outermost.
COMBINATORS: Final[Mapping[str, type[Combinator]]] = MappingProxyType(
    {
        combinator.name: combinator
        for combinator in (
            Guarded,
            Backfilled,
            Hysteresis,
            Opportunistic,
            DeadlineGuard,
            ReserveHead,
            DeviceCeiling,
        )
    }
)


def parted(args: Mapping[str, Any]) -> tuple[dict[str, Any], Wraps]:
    """Split off the policy's own parameters from its policy rules.

    Raises:
        UnknownPolicyError: the rules are not a mapping of mappings.
    """
    own = {name: value for name, value in args.items() if name != WRAP}
    wraps = args.get(WRAP, {})
    whole = isinstance(wraps, Mapping) and all(
        isinstance(name, str)
        and isinstance(given, Mapping)
        and all(isinstance(key, str) for key in given)
        for name, given in wraps.items()
    )
    if not whole:
        raise UnknownPolicyError(
            f"{WRAP} is {wraps!r:.80}; use a mapping such as {{hysteresis: {{min_run: 600}}}}"
        )
    return own, wraps


def wrapped(policy: Policy, wraps: Wraps) -> Policy:
    """Return ``policy`` inside its policy rules.

    Raises:
        UnknownPolicyError: a rule is unknown, or does not accept its parameters.
    """
    for name in wraps:
        _combinator(name)
    for name, combinator in COMBINATORS.items():
        if name in wraps:
            policy = combinator(inner=policy, **checked(combinator, wraps[name], name))
    return policy


def read_wraps(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``NAME[:ARG=VALUE,...]`` texts, one for each policy rule.

    Raises:
        UnknownPolicyError: a text is malformed, unknown or repeated.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _mark, rest = text.partition(":")
        if name in found:
            raise UnknownPolicyError(f"policy rule {name} is used twice")
        pairs = [pair for pair in rest.split(",") if pair]
        found[name] = read_args(_combinator(name), pairs, name)
    return found


def stand_in(args: Mapping[str, Any]) -> str:
    """Return the name of the policy that replaces a failing one with these parameters."""
    wraps = args.get(WRAP)
    if not isinstance(wraps, Mapping) or Guarded.name not in wraps:
        return "fifo"
    return str(wraps[Guarded.name].get("fallback", "fifo"))


def _combinator(name: str) -> type[Combinator]:
    combinator = COMBINATORS.get(name)
    if combinator is None:
        raise UnknownPolicyError(
            f"policy rule {shown(name)} not found; known: {', '.join(sorted(COMBINATORS))}"
        )
    return combinator
