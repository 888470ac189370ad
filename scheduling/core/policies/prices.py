"""Prices of a device-hour by type, as text for a policy."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.messages import sentence
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Snapshot, TypeInfo

MOST_TYPES: Final = 64
LONGEST: Final = 4_000
LEAST: Final = 1e-3
LARGEST: Final = 1e6

#: Only the proportions count.
_TEXT: Final = sentence("param-prices")
_USE: Final = sentence("price-pairs")


@lru_cache(maxsize=256)
def read_prices(text: str) -> Mapping[str, float]:
    """Parse prices by type from ``TYPE=PRICE,TYPE=PRICE``; an empty text has none.

    Raises:
        ValueError: wrong form; the message shows the right one.
    """
    if len(text) > LONGEST:
        raise ValueError(_USE)
    found: dict[str, float] = {}
    for pair in filter(None, text.split(",")):
        kind, _, price = (part.strip() for part in pair.rpartition("="))
        try:
            value = float(price)
        except ValueError:
            raise ValueError(_USE) from None
        if not kind or kind in found or not LEAST <= value <= LARGEST:
            raise ValueError(_USE)
        found[kind] = value
    if len(found) > MOST_TYPES:
        raise ValueError(_USE)
    return MappingProxyType(found)


def prices_parameter() -> Any:
    """The price parameter of a policy; empty: the view's prices."""
    return parameter("", _TEXT, reads=read_prices)


def priced(snapshot: Snapshot, prices: str) -> Snapshot:
    """The view with these prices; types without one retain theirs."""
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
