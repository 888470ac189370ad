"""Training events other than steps: checkpoints saved, missed, broken, restored."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.canaries import CANARY_EVENT
from scheduling.core.messages import message, sentence
from scheduling.jobs.models import CHECKPOINT
from tessera.messages import Message, Sentence, message_of
from workers.services.reports import LONGEST_LINE
from workers.services.tracked_runs import TrackedChange, TrackedTally, read_tracked_line

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
"""Events of the node service (both above); a training cannot send them."""
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
    def text(self) -> Sentence:
        """Description of the event for people."""
        return _TEXTS.get(self.kind, _damaged)(self.facts)


Facts = Mapping[str, str | int | float]


def _damaged(facts: Facts) -> Sentence:
    path = str(facts.get("path", ""))
    if "reason" not in facts:
        return sentence("checkpoint-damaged", path=path)
    return sentence("checkpoint-damaged-because", path=path, reason=facts["reason"])


def _not_saved(facts: Facts) -> Sentence:
    checkpoint = _checkpoint(facts)
    if "reason" not in facts:
        return sentence("checkpoint-not-saved", checkpoint=checkpoint)
    return sentence("checkpoint-not-saved-because", checkpoint=checkpoint, reason=facts["reason"])


def _acknowledged(facts: Facts) -> Sentence:
    if "reason" not in facts:
        return sentence("notice-acknowledged")
    return sentence("notice-acknowledged-because", reason=facts["reason"])


def _checkpoint(facts: Facts) -> Message:
    step = facts.get("step")
    return (
        message("one-checkpoint")
        if step is None
        else message("checkpoint-of-step", step=f"{step:,}")
    )


def _saved(facts: Facts) -> Sentence:
    sha256 = str(facts.get("sha256", ""))[:12] or message("without-hash")
    return sentence("checkpoint-saved", checkpoint=_checkpoint(facts), sha256=sha256)


def _resumed(facts: Facts) -> Sentence:
    sha256 = str(facts.get("sha256", ""))[:12]
    return sentence("training-resumed", checkpoint=_checkpoint(facts), sha256=sha256)


def _batch(facts: Facts) -> Sentence:
    found, step = facts.get("batch"), facts.get("step")
    batch = message("another-number") if found is None else f"{found:,}"
    if step is None:
        return sentence("trains-with-batch", batch=batch)
    return sentence("trains-with-batch-from", batch=batch, step=f"{step:,}")


def _determinism(facts: Facts) -> Sentence:
    level, found = facts.get("level", "the level"), facts.get("obstacles", "")
    if facts.get("refused"):
        return sentence("level-refused", level=level, found=found or message("model-cannot"))
    if found:
        return sentence("level-kept-but", level=level, found=found)
    return sentence("level-kept", level=level)


def _moved(facts: Facts) -> Sentence:
    return sentence(
        "checkpoint-moved",
        step=f"{facts['step']:,}",
        path=facts["path"],
        bytes=f"{facts['bytes']:,}",
    )


def _left(facts: Facts) -> Sentence:
    return sentence(
        "checkpoint-left",
        step=f"{facts['step']:,}",
        path=facts["path"],
        # A phrase of the portal, or the words of a node.
        reason=message_of(str(facts["reason"])),
    )


_TEXTS: Final[Mapping[str, Callable[[Facts], Sentence]]] = {
    CHECKPOINT: _saved,
    "resumed": _resumed,
    "checkpoint-failed": _not_saved,
    "acknowledged": _acknowledged,
    "batch": _batch,
    "layout": lambda facts: sentence(
        "logical-workers", counts=facts.get("counts", message("not-reported"))
    ),
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


def read_profile_line(line: bytes) -> Mapping[str, Any] | None:
    """Return the document of a profile in a line of a job's reports, unchecked; None if none.

    The figures of a canary job are such a document, too, with their event.
    """
    if len(line) > LONGEST_LINE or not (b'"profile"' in line or b'"canary"' in line):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("event") not in ("profile", CANARY_EVENT):
        return None
    left_out = ("time",) if found["event"] == CANARY_EVENT else ("event", "time")
    return {name: value for name, value in found.items() if name not in left_out}


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
    """Return untrusted text, shortened to one line."""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_REASON])


class TrainingEvents:
    """Collects events between two calls; of too many checkpoints, the newest are retained."""

    def __init__(self) -> None:
        self._found: list[TrainingEvent] = []
        self._profile: Mapping[str, Any] | None = None
        self._tracked = TrackedTally()

    def read(self, line: bytes) -> None:
        """Add the event, the change of an MLflow run or the profile in a line, if any."""
        happening, tracked = read_happening(line), read_tracked_line(line)
        if happening is not None:
            self.add(happening)
        elif tracked is not None:
            self._tracked.add(tracked)
        elif self._profile is None:
            self._profile = read_profile_line(line)

    def take_tracked(self) -> tuple[TrackedChange, ...]:
        """Return the changes of MLflow runs since the last call."""
        return self._tracked.take()

    def take_profile(self) -> Mapping[str, Any] | None:
        """Return the profile since the last call."""
        found, self._profile = self._profile, None
        return found

    def add(self, happening: TrainingEvent) -> None:
        """Add an event; the excess is dropped, but never the newest checkpoint."""
        if happening.kind == CHECKPOINT:
            self._found = [one for one in self._found if one.kind != CHECKPOINT]
        if happening.kind == CHECKPOINT or len(self._found) < MOST_AT_ONCE:
            self._found.append(happening)

    def take(self) -> tuple[TrainingEvent, ...]:
        """Return all events since the last call."""
        found, self._found = tuple(self._found), []
        return found
