"""Bounds of guests: decisions of the coordinator, which expire. So the gate closes if it dies."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

LIFETIME_SECONDS = 3.0
FREEZE_AFTER_SECONDS = 1.0
"""A guest whose bound has been expired for this time is frozen by its own runner."""
_MOST_MEMORY = 1 << 50


class Bound(NamedTuple):
    """The allowed use of a device by a guest.

    Attributes:
        number: counts the bounds of a guest; the highest number is the valid one.
        compute: seconds of delay that the guest may cause in a second, 0 to 1; 0 = gate closed.
        memory: bytes of device memory.
        until: time of expiry on the node's boot clock, in seconds.
    """

    number: int
    compute: float
    memory: int
    until: float


def issued(previous: Optional[Bound], compute: float, memory: int, now: float) -> Bound:
    """Return the next bound of a guest, valid for ``LIFETIME_SECONDS`` from ``now`` on."""
    number = 1 if previous is None else previous.number + 1
    compute = min(max(compute, 0.0), 1.0)
    return Bound(number, compute, min(max(memory, 0), _MOST_MEMORY), now + LIFETIME_SECONDS)


def parsed(document: Any) -> Optional[Bound]:
    """Return the bound in a decoded JSON document, or None where it is not a valid one."""
    if not isinstance(document, dict) or document.get("version") != 1:
        return None
    number, memory = document.get("number"), document.get("memory")
    compute, until = _finite(document.get("compute")), _finite(document.get("until"))
    if type(number) is not int or number < 1 or compute is None or until is None:
        return None
    if type(memory) is not int or not 0 <= memory <= _MOST_MEMORY or not 0 <= compute <= 1:
        return None
    return Bound(number, compute, memory, until)


def newest(known: Optional[Bound], found: Optional[Bound]) -> Optional[Bound]:
    """Return the bound with the higher number; an older file never replaces a newer bound."""
    if known is None or found is None:
        return known or found
    return found if found.number > known.number else known


def compute_at(bound: Optional[Bound], now: float) -> float:
    """Return the current compute: 0 without a bound, and 0 after its expiry.

    A bound that ends later than any coordinator could have written counts as expired.
    """
    if bound is None or not now < bound.until <= now + LIFETIME_SECONDS:
        return 0.0
    return bound.compute


def must_freeze(bound: Optional[Bound], now: float) -> bool:
    """Return whether the guest's runner must freeze it, since its bound was not renewed."""
    return bound is None or now >= bound.until + FREEZE_AFTER_SECONDS


def _finite(value: Any) -> Optional[float]:
    if type(value) not in (int, float) or not math.isfinite(value):
        return None
    return float(value)
