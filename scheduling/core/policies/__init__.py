"""The policies by name, each with the parameters that it takes."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.policies.base import Policy
from scheduling.core.policies.fifo import Fifo

POLICIES: Final[Mapping[str, Callable[..., Policy]]] = MappingProxyType({"fifo": Fifo})


class UnknownPolicyError(ValueError):
    """No policy has this name, or it does not take these parameters."""


def make_policy(name: str, args: Mapping[str, Any]) -> Policy:
    """The policy ``name`` with ``args``.

    Raises:
        UnknownPolicyError: the name, a parameter's name or its type is not known; the message
            says which are.
    """
    factory = POLICIES.get(name)
    if factory is None:
        raise UnknownPolicyError(
            f"there is no policy {name!r}; there are {', '.join(sorted(POLICIES))}"
        )
    known = {f.name: f.type for f in fields(factory)}  # type: ignore[arg-type] # policies are dataclasses
    for key, value in args.items():
        if key not in known:
            raise UnknownPolicyError(
                f"policy {name} takes no {key!r}; it takes {', '.join(sorted(known)) or 'nothing'}"
            )
        if not isinstance(value, known[key]):  # type: ignore[arg-type] # plain types only
            raise UnknownPolicyError(
                f"policy {name}: {key} is {value!r}; use a {known[key].__name__}"
            )  # type: ignore[union-attr]
    return factory(**args)
