"""Stat tiles: the key numbers at the top of a page."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One tile.

    Attributes:
        label: the quantity, with its span of time.
        value: the formatted number; empty if unknown.
        unit: unit behind it.
        context: one line: a comparison or a cause.
        trend: values of a sparkline, only where the trend matters.
        url: page that explains the number.
        tone: ``bad`` or ``warn`` where action is needed.
        bind: path of the live value (``jobs.running``), if the page updates it.
    """

    label: str
    value: str = ""
    unit: str = ""
    context: str = ""
    trend: Sequence[float | None] = ()
    url: str = ""
    tone: str = ""
    bind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVerdict:
    """The answer to the question of a page in one sentence, above its numbers.

    Attributes:
        text: the sentence.
        detail: a second sentence: the figure that limits the first one; may be empty.
        tone: ``ok``, ``warn``, ``bad``, or empty for grey.
    """

    text: str
    detail: str = ""
    tone: str = ""

    @property
    def icon(self) -> str:
        """Return the symbol of the tone."""
        return {"ok": "succeeded", "warn": "warning", "bad": "failed"}.get(self.tone, "info")
