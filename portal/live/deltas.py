"""What followers of a topic are sent: versions of a flat mapping, and what changed between two.

Pure: no clock, no socket. A follower says which version it has, and gets one step from there to
the newest, however many versions lie between; so who reads slowly gets fewer and larger steps,
and nobody has to keep anything for a single follower.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

KEPT: Final = 64
MOST_BYTES: Final = 8_000
_ENVELOPE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How to get to a version.

    Attributes:
        version: where it leads.
        base: the version that it builds on; None for the whole, which needs none.
        changes: values by key; None for a key that is gone.
    """

    version: int
    base: int | None
    changes: Mapping[str, Any]


class Ledger:
    """One topic: its newest state, and how it came from each of the versions before.

    Args:
        kept: number of versions from which a follower can go on.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._parts: Mapping[str, Any] = {}
        self._steps: deque[Step] = deque(maxlen=kept)
        self.version = 0

    def put(self, parts: Mapping[str, Any], *, version: int) -> bool:
        """Take the state as it is now.

        Args:
            parts: the whole state; nobody changes it any more.
            version: its number if it differs from the one before; larger than all before.

        Returns:
            Whether there is a new version.
        """
        changes = {key: value for key, value in parts.items() if self._differs(key, value)}
        changes |= {key: None for key in self._parts if key not in parts}
        if self.version and not changes:
            return False
        version = max(version, self.version + 1)
        self._steps.append(Step(version=version, base=self.version, changes=changes))
        self._parts, self.version = parts, version
        return True

    def knows(self, version: int | None) -> bool:
        """Whether a follower that has ``version`` can go on from there."""
        return version == self.version or any(step.base == version for step in self._steps)

    def step_from(self, version: int | None) -> Step | None:
        """One step from ``version`` to the newest; None for a follower that has it already.

        Who names no version, or one that is not known here (any more), gets the whole.
        """
        if not self.version or version == self.version:
            return None
        first = next((n for n, step in enumerate(self._steps) if step.base == version), None)
        if version is None or version == 0 or first is None:
            return Step(version=self.version, base=None, changes=self._parts)
        merged: dict[str, Any] = {}
        for number in range(first, len(self._steps)):
            merged |= self._steps[number].changes
        return Step(version=self.version, base=version, changes=merged)

    def _differs(self, key: str, value: Any) -> bool:
        return key not in self._parts or self._parts[key] != value


def frames(topic: str, step: Step, *, pace: float, most: int = MOST_BYTES) -> tuple[str, ...]:
    """A step as messages of at most ``most`` bytes each; all but the last say ``more``.

    Args:
        topic: name of the topic.
        step: what to tell.
        pace: seconds over which followers shall spread what they fetch because of it.
        most: bytes of one message; a single value that is larger has a message for itself.
    """
    pieces = list(_pieces(step.changes, most - _ENVELOPE - len(topic.encode()))) or [{}]
    return tuple(
        json.dumps(
            {
                "topic": topic,
                "version": step.version,
                "base": step.base,
                **({"more": True} if number < len(pieces) - 1 else {}),
                "pace": pace,
                "data": piece,
            },
            separators=(",", ":"),
        )
        for number, piece in enumerate(pieces)
    )


def _pieces(changes: Mapping[str, Any], room: int) -> Iterator[dict[str, Any]]:
    piece: dict[str, Any] = {}
    used = 0
    for key, value in changes.items():
        size = len(json.dumps(key)) + len(json.dumps(value, separators=(",", ":"))) + 2
        if piece and used + size > room:
            yield piece
            piece, used = {}, 0
        piece[key] = value
        used += size
    if piece:
        yield piece
