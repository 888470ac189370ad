"""Training events other than steps: checkpoints saved, missed, broken, restored."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from workers.services.reports import LONGEST_LINE

CHECKPOINT: Final = "checkpoint"
CHECKPOINT_BROKEN: Final = "checkpoint-broken"
KINDS: Final = (
    CHECKPOINT,
    "checkpoint-failed",
    CHECKPOINT_BROKEN,
    "resumed",
    "acknowledged",
    "batch",
    "layout",
    "determinism",
)
CHECKPOINT_MOVED: Final = "checkpoint-moved"
CHECKPOINT_LEFT: Final = "checkpoint-left"
"""The node service reports these two, never a training."""
MOST_AT_ONCE: Final = 16
LONGEST_REASON: Final = 200
LONGEST_LIST: Final = 2_000
LARGEST_NUMBER: Final = 1 << 53

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBERS: Final = (
    *("step", "bytes", "seconds", "seed", "logical_workers", "threads"),
    *("batch", "accumulation", "refused"),
)
_LISTS: Final = ("obstacles", "counts")
MOST_ITEMS: Final = 64
_WORDS: Final = ("level", "torch", "path", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEvent:
    """One of `KINDS`, with its known facts."""

    kind: str
    facts: Mapping[str, str | int | float]

    @property
    def text(self) -> str:
        """A line for people."""
        step, sha256 = self.facts.get("step"), str(self.facts.get("sha256", ""))
        at = "" if step is None else f" of step {step:,}"
        reason = f": {self.facts['reason']}" if "reason" in self.facts else ""
        if self.kind == CHECKPOINT:
            return f"Checkpoint{at} saved, {sha256[:12] or 'without a hash'}."
        if self.kind == "resumed":
            return f"Training goes on from the checkpoint{at}, {sha256[:12]}."
        if self.kind == "checkpoint-failed":
            return f"The checkpoint{at} could not be saved{reason}."
        if self.kind in _TEXTS:
            return _TEXTS[self.kind](self.facts)
        path = self.facts.get("path", "")
        return f"The checkpoint {path} is damaged{reason}; the one before it is used."


Facts = Mapping[str, str | int | float]


def _acknowledged(facts: Facts) -> str:
    why = f" ({facts['reason']})" if "reason" in facts else ""
    return f"The job has acknowledged the notice to leave{why}."


def _batch(facts: Facts) -> str:
    batch, step = facts.get("batch", "another number of"), facts.get("step")
    since = "" if step is None else f" from step {step:,} on"
    shown = batch if isinstance(batch, str) else f"{batch:,}"
    return f"It trains with {shown} samples a step{since}."


def _layout(facts: Facts) -> str:
    return f"Logical workers by process: {facts.get('counts', 'not told')}."


def _determinism(facts: Facts) -> str:
    level, found = facts.get("level", "the level"), facts.get("obstacles", "")
    if facts.get("refused"):
        return f"{level} is refused: {found or 'the model cannot keep it'}."
    return f"{level} is kept, but {found}." if found else f"{level} can be kept by this model."


def _moved(facts: Facts) -> str:
    return (
        f"The checkpoint of step {facts['step']:,} was brought from {facts['path']}"
        f" ({facts['bytes']:,} bytes, verified)."
    )


def _left(facts: Facts) -> str:
    return (
        f"The checkpoint of step {facts['step']:,} stays on {facts['path']}: {facts['reason']}."
        " Training goes on from what the new node has, or begins anew."
    )


_TEXTS: Final[Mapping[str, Callable[[Facts], str]]] = {
    "acknowledged": _acknowledged,
    "batch": _batch,
    "layout": _layout,
    "determinism": _determinism,
    CHECKPOINT_MOVED: _moved,
    CHECKPOINT_LEFT: _left,
}


def read_happening(line: bytes) -> TrainingEvent | None:
    """Return the training event in a line of a job's reports; None if unknown."""
    if len(line) > LONGEST_LINE or b'"event"' not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("event") not in KINDS:
        return None
    return TrainingEvent(kind=found["event"], facts=MappingProxyType(_facts(found)))


def _facts(found: dict[str, Any]) -> dict[str, str | int | float]:
    facts: dict[str, str | int | float] = {}
    for name in _NUMBERS:
        value = found.get(name)
        if isinstance(value, int | float) and 0 <= value <= LARGEST_NUMBER:
            facts[name] = value
    for name in _WORDS:
        value = found.get(name)
        if isinstance(value, str):
            facts[name] = plain(value)
    for name in _LISTS:
        items = found.get(name)
        if isinstance(items, list) and items:
            words = ", ".join(plain(str(item)) for item in items[:MOST_ITEMS])
            facts[name] = words[:LONGEST_LIST]
    sha256 = found.get("sha256")
    if isinstance(sha256, str) and _SHA256.fullmatch(sha256):
        facts["sha256"] = sha256
    return facts


def plain(text: str) -> str:
    """Untrusted text, shortened to one line."""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_REASON])


class TrainingEvents:
    """Collects events between two calls; of too many checkpoints the newest remain."""

    def __init__(self) -> None:
        self._found: list[TrainingEvent] = []

    def add(self, happening: TrainingEvent) -> None:
        """Add an event; the excess is dropped, but never the newest checkpoint."""
        if happening.kind == CHECKPOINT:
            self._found = [one for one in self._found if one.kind != CHECKPOINT]
        if happening.kind == CHECKPOINT or len(self._found) < MOST_AT_ONCE:
            self._found.append(happening)

    def take(self) -> tuple[TrainingEvent, ...]:
        """Return all since the last call."""
        found, self._found = tuple(self._found), []
        return found
