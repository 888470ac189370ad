"""Typed parameters of policies: type, bounds and help text, and prices of device-hours as text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from scheduling.core.jobspec.errors import shortened
from scheduling.core.messages import sentence
from scheduling.core.policy_interface import Snapshot, TypeInfo

_KEY: Final = "parameter"
_PART: Final = "part"
#: Metadata of a dataclass field that is not a parameter: the creator of the policy sets it.
NO_PARAMETER: Final[Mapping[str, bool]] = MappingProxyType({_PART: True})

_WORDS: Final = {
    bool: sentence("kind-boolean"),
    int: sentence("kind-integer"),
    float: sentence("kind-number"),
    str: sentence("kind-word"),
}
_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

#: Limits of a text of prices, and of a price; only the proportions of prices count.
_PRICES_MOST_TYPES: Final = 64
_PRICES_LONGEST: Final = 4_000
_PRICE_LEAST: Final = 1e-3
_PRICE_LARGEST: Final = 1e6
_PRICES_FORM: Final = sentence("price-pairs")


class UnknownPolicyError(ValueError):
    """The policy does not exist, or does not accept these parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a policy.

    Attributes:
        kind: ``bool``, ``int``, ``float`` or ``str``.
        low: the smallest value, for numbers.
        high: the largest value, for numbers.
        choices: all values, for string parameters.
        reads: parses a value; a ``ValueError`` lists the valid ones.
        text: one line for forms and help.
    """

    name: str
    kind: type
    default: Any
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    text: str = ""
    reads: Callable[[str], object] | None = None

    def check(self, value: Any) -> Any:
        """Return ``value`` as this parameter's type.

        Raises:
            ValueError: its type or size is wrong; the message names the valid ones.
        """
        if self.kind is float and type(value) is int:
            value = self._as_float(value)
        if type(value) is not self.kind:
            raise ValueError(f"{self.name} is {shown(value)}; use {_WORDS[self.kind]}")
        if self.choices and value not in self.choices:
            raise ValueError(
                f"{self.name} is {shown(value)}; use one of {', '.join(self.choices)}"
            )
        if self.reads is not None:
            self._read_word(str(value))
        if isinstance(value, int | float) and not self._fits(value):
            raise ValueError(f"{self.name} is {shown(value)}; use {self.range_text}")
        return value

    def read(self, text: str) -> Any:
        """Parse ``text`` from a command line.

        Raises:
            ValueError: as for ``check``.
        """
        if self.kind is bool:
            return self.check(_TRUTH.get(text.lower(), text))
        try:
            return self.check(self.kind(text))
        except ValueError as error:
            if str(error).startswith(self.name):
                raise
            raise ValueError(f"{self.name} is {shown(text)}; use {_WORDS[self.kind]}") from None

    @property
    def range_text(self) -> str:
        """The bounds as text."""
        if self.low is None and self.high is None:
            return _WORDS[self.kind]
        kind = _WORDS[self.kind]
        if self.high is None:
            return sentence("kind-at-least", kind=kind, low=f"{self.low:g}")
        if self.low is None:
            return sentence("kind-at-most", kind=kind, high=f"{self.high:g}")
        return sentence("kind-between", kind=kind, low=f"{self.low:g}", high=f"{self.high:g}")

    def _read_word(self, value: str) -> None:
        assert self.reads is not None  # noqa: S101 narrows the type only
        try:
            self.reads(value)
        except ValueError as error:
            raise ValueError(f"{self.name} is {shown(value)}; use {error}") from None

    def _as_float(self, value: int) -> float:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{self.name} is {shown(value)}; use {self.range_text}") from None

    def _fits(self, value: float) -> bool:
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high) and value == value  # noqa: PLR0124  not nan


def shown(value: object) -> str:
    """Format a refused value for an error: quoted, and shortened if it is long."""
    return repr(shortened(value)) if isinstance(value, str) else shortened(repr(value))


def parameter(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    reads: Callable[[str], object] | None = None,
) -> Any:
    """Define a dataclass field that is a parameter of a policy, with its bounds."""
    told = {"text": text, "low": low, "high": high, "choices": choices, "reads": reads}
    return field(default=default, metadata={_KEY: told})


def parameters_of(policy: type) -> tuple[Parameter, ...]:
    """Return the parameters of a policy's class, in the order of their declaration."""
    return _declared(policy)


@lru_cache(maxsize=256)
def _declared(policy: type) -> tuple[Parameter, ...]:
    hints = get_type_hints(policy)
    return tuple(
        _parameter(item, hints[item.name]) for item in fields(policy) if _PART not in item.metadata
    )


def checked(policy: type, args: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Check every value in ``args``.

    Raises:
        UnknownPolicyError: a parameter's name, type or size is not valid.
    """
    known = {item.name: item for item in parameters_of(policy)}
    values: dict[str, Any] = {}
    for key, value in args.items():
        _require_known(known, key, name)
        try:
            values[key] = known[key].check(value)
        except ValueError as error:
            raise UnknownPolicyError(f"policy {name}: {error}") from None
    return values


def read_args(policy: type, pairs: Sequence[str], name: str) -> dict[str, Any]:
    """Parse the values of ``key=value`` pairs.

    Raises:
        UnknownPolicyError: a pair, a name or a value is not valid.
    """
    known = {item.name: item for item in parameters_of(policy)}
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise UnknownPolicyError(f"policy {name}: {shown(pair)} is not of the form name=value")
        _require_known(known, key, name)
        try:
            values[key] = known[key].read(text)
        except ValueError as error:
            raise UnknownPolicyError(f"policy {name}: {error}") from None
    return values


def _require_known(known: Mapping[str, Parameter], key: str, name: str) -> None:
    if key not in known:
        names = ", ".join(sorted(known)) or "nothing"
        raise UnknownPolicyError(f"policy {name} has no parameter {shown(key)}; known: {names}")


def _parameter(item: Field[Any], kind: type) -> Parameter:
    if item.default is MISSING:
        raise TypeError(f"{item.name}: each parameter of a policy needs a default")
    return Parameter(
        name=item.name, kind=kind, default=item.default, **item.metadata.get(_KEY, {})
    )


@lru_cache(maxsize=256)
def read_prices(text: str) -> Mapping[str, float]:
    """Parse prices by type from ``TYPE=PRICE,TYPE=PRICE``; an empty text has none.

    Raises:
        ValueError: wrong form; the message shows the right one.
    """
    if len(text) > _PRICES_LONGEST:
        raise ValueError(_PRICES_FORM)
    found: dict[str, float] = {}
    for pair in filter(None, text.split(",")):
        kind, _, price = (part.strip() for part in pair.rpartition("="))
        try:
            value = float(price)
        except ValueError:
            raise ValueError(_PRICES_FORM) from None
        if not kind or kind in found or not _PRICE_LEAST <= value <= _PRICE_LARGEST:
            raise ValueError(_PRICES_FORM)
        found[kind] = value
    if len(found) > _PRICES_MOST_TYPES:
        raise ValueError(_PRICES_FORM)
    return MappingProxyType(found)


def prices_parameter() -> Any:
    """Define the price parameter of a policy; if empty, the view's prices apply."""
    return parameter("", sentence("param-prices"), reads=read_prices)


def priced(snapshot: Snapshot, prices: str) -> Snapshot:
    """Apply these prices to the view; types without one retain theirs."""
    given = read_prices(prices)
    if not given:
        return snapshot
    pool = snapshot.pool
    known = {**dict.fromkeys([*pool.capacity, *pool.borrow], TypeInfo()), **pool.types}
    types = {
        kind: replace(info, price=given[kind]) if kind in given else info
        for kind, info in known.items()
    }
    return replace(snapshot, pool=replace(pool, types=types))
