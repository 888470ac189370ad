"""Stat tiles: the numbers a page opens with."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One tile.

    Attributes:
        label: what is counted, with its span of time.
        value: the number as it is read; empty while it is not known.
        unit: small words after it.
        context: one line: a comparison or a cause.
        trend: values of a sparkline, only where the trend decides something.
        url: where the number is explained.
        tone: ``bad`` or ``warn`` where somebody must act.
        bind: path of the live value (``jobs.running``), if the page keeps it up to date.
    """

    label: str
    value: str = ""
    unit: str = ""
    context: str = ""
    trend: Sequence[float | None] = ()
    url: str = ""
    tone: str = ""
    bind: str = ""
