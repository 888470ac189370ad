"""Format of results, and their statistics."""

import math
from collections.abc import Sequence
from typing import Any


def entry(name: str, value: float, unit: str, better: str, context: str) -> dict[str, Any]:
    """One line of ``results/latest.json``; ``better`` is ``higher`` or ``lower``."""
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "better": better,
        "context": context,
    }


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile (nearest rank)."""
    return sorted(values)[math.ceil(len(values) * 0.95) - 1]
