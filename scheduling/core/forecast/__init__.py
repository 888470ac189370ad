"""Start estimates of waiting jobs: simulations of the live policies with random run times."""

from typing import Final

HORIZON: Final = 14 * 86400.0
"""Horizon in seconds; later starts count as starts at the horizon."""


def is_open(latest: float) -> bool:
    """Return whether a range exceeds the horizon; it ends ``latest`` seconds from now."""
    return latest >= HORIZON
