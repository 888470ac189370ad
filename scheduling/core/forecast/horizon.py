"""How far forecasts look ahead."""

from typing import Final

HORIZON: Final = 14 * 86400.0
"""Seconds after which nobody looks any further: what starts later counts as if it came then."""


def is_open(latest: float) -> bool:
    """Whether a range that ends so many seconds after it was worked out ends beyond that."""
    return latest >= HORIZON
