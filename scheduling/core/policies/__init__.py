"""The policies by name, each with the parameters that it takes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, get_type_hints

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
    known: dict[str, type] = get_type_hints(factory)
    for key, value in args.items():
        if key not in known:
            raise UnknownPolicyError(
                f"policy {name} takes no {key!r}; it takes {', '.join(sorted(known)) or 'nothing'}"
            )
        if type(value) is not known[key]:
            raise UnknownPolicyError(
                f"policy {name}: {key} is {value!r}; use a {known[key].__name__}"
            )
    return factory(**args)
