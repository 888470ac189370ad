"""Start estimates of waiting jobs: the live policies run forward over drawn run times."""

from typing import Final

HORIZON: Final = 14 * 86400.0
"""Horizon in seconds; later starts count as if they came then."""


def is_open(latest: float) -> bool:
    """Whether a range that ends the given seconds after its calculation exceeds the horizon."""
    return latest >= HORIZON
