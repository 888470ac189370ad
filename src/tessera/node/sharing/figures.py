"""Median and standard deviation of a few numbers.

The module ``statistics`` computes with fractions: it is slow, and its imports would be copied by
each fork of a session.
"""

from __future__ import annotations

import math
from typing import Sequence


def median(numbers: Sequence[float]) -> float:
    """Return the median of at least one number."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def stdev(numbers: Sequence[float]) -> float:
    """Return the standard deviation of a sample of at least two numbers."""
    mean = sum(numbers) / len(numbers)
    squares = math.fsum((number - mean) ** 2 for number in numbers)
    return math.sqrt(squares / (len(numbers) - 1))
