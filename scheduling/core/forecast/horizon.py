"""How far forecasts look ahead."""

from typing import Final

HORIZON: Final = 14 * 86400.0
"""Seconds after which nobody looks any further: what starts later counts as if it came then."""
