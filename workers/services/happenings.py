"""What a training tells beside its steps: checkpoints saved, missed, broken, taken up."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from workers.services.reports import LONGEST_LINE

CHECKPOINT: Final = "checkpoint"
KINDS: Final = (CHECKPOINT, "checkpoint-failed", "checkpoint-broken", "resumed")
MOST_AT_ONCE: Final = 16
LONGEST_REASON: Final = 200
LARGEST_NUMBER: Final = 1 << 53

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBERS: Final = ("step", "bytes", "seconds", "seed", "logical_workers", "threads")
_WORDS: Final = ("level", "torch", "path", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One of `KINDS`, with the facts that are known of it."""

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
        path = self.facts.get("path", "")
        return f"The checkpoint {path} is damaged{reason}; the one before it is used."


def read_happening(line: bytes) -> Happening | None:
    """The happening in a line of a job's reports; None where there is none that is known."""
    if len(line) > LONGEST_LINE or b'"event"' not in line:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("event") not in KINDS:
        return None
    return Happening(kind=found["event"], facts=MappingProxyType(_facts(found)))


def _facts(found: dict[str, Any]) -> dict[str, str | int | float]:
    facts: dict[str, str | int | float] = {}
    for name in _NUMBERS:
        value = found.get(name)
        if isinstance(value, int | float) and 0 <= value <= LARGEST_NUMBER:
            facts[name] = value
    for name in _WORDS:
        value = found.get(name)
        if isinstance(value, str):
            facts[name] = "".join(c if c.isprintable() else " " for c in value)[:LONGEST_REASON]
    sha256 = found.get("sha256")
    if isinstance(sha256, str) and _SHA256.fullmatch(sha256):
        facts["sha256"] = sha256
    return facts


class Happenings:
    """Collects them between two looks; a crowd of checkpoints leaves its newest."""

    def __init__(self) -> None:
        self._found: list[Happening] = []

    def add(self, happening: Happening) -> None:
        """Take one in; what is too much is dropped, the newest checkpoint never."""
        if happening.kind == CHECKPOINT:
            self._found = [one for one in self._found if one.kind != CHECKPOINT]
        if happening.kind == CHECKPOINT or len(self._found) < MOST_AT_ONCE:
            self._found.append(happening)

    def take(self) -> tuple[Happening, ...]:
        """All since the last call."""
        found, self._found = tuple(self._found), []
        return found
