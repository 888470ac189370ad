"""Policy rules around a policy, selected by name, with parameters.

They are the value of one more parameter of every policy, ``wrap``, a mapping of names to
parameters. The order of nesting is fixed, since most others are useless: a failing policy is
replaced inside, so that its rules apply to the replacement too, and caps are outermost, so that no
rule exceeds them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.policies.base import Policy
from scheduling.core.policies.combinators import (
    Backfilled,
    Combinator,
    DeadlineGuard,
    DeviceCeiling,
    Guarded,
    Hysteresis,
    Opportunistic,
    ReserveHead,
)
from scheduling.core.policies.parameters import UnknownPolicyError, checked, read_args, shown

#: The parameter of every policy with its policy rules.
WRAP: Final = "wrap"

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

Wraps = Mapping[str, Mapping[str, Any]]


def parted(args: Mapping[str, Any]) -> tuple[dict[str, Any], Wraps]:
    """Split off the policy's own parameters from its policy rules.

    Raises:
        UnknownPolicyError: the rules are not a mapping of mappings.
    """
    own = {name: value for name, value in args.items() if name != WRAP}
    wraps = args.get(WRAP, {})
    whole = isinstance(wraps, Mapping) and all(
        isinstance(name, str) and isinstance(given, Mapping) and all(map(_is_word, given))
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
            raise UnknownPolicyError(f"{name} is put around the policy twice")
        pairs = [pair for pair in rest.split(",") if pair]
        found[name] = read_args(_combinator(name), pairs, name)
    return found


def stand_in(args: Mapping[str, Any]) -> str:
    """The name of the policy that decides where the one with these parameters fails."""
    wraps = args.get(WRAP)
    if not isinstance(wraps, Mapping) or Guarded.name not in wraps:
        return "fifo"
    return str(wraps[Guarded.name].get("fallback", "fifo"))


def _combinator(name: str) -> type[Combinator]:
    combinator = COMBINATORS.get(name)
    if combinator is None:
        raise UnknownPolicyError(
            f"there is no {shown(name)} to put around a policy; there are "
            f"{', '.join(sorted(COMBINATORS))}"
        )
    return combinator


def _is_word(value: object) -> bool:
    return isinstance(value, str)
