"""Patterns as automata: however hostile pattern and line are, a byte costs one step.

The set of places in which a pattern may be is worked out once for each set and byte and kept
(Thompson 1968); there is nothing to step back to, so that no pattern takes exponential time.
"""

from collections.abc import Iterable
from threading import Lock
from typing import Final

from scheduling.core.logrules.syntax import Bytes, Choice, Node, PatternError, Repeat, Run, parse

MOST_PLACES: Final = 2_000
MOST_STATES: Final = 400
__all__ = ["Pattern", "PatternError"]


class Pattern:
    """A pattern that is looked for anywhere in a line; threads may share it."""

    def __init__(self, text: str) -> None:
        """Read and prepare it.

        Raises:
            PatternError: it is no pattern, or too large.
        """
        self._lock = Lock()
        self._worked = 0
        self._parsed = parse(text)
        self._reads: list[frozenset[int]] = []
        self._goes: list[list[int]] = []
        self._accepts = self._place(frozenset())
        self._begin = self._build(self._parsed.node, self._accepts)
        self._states: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int]] = []
        self._steps: list[list[int]] = []
        self._forget()
        words = _needed(self._parsed.node)
        self._needed = (
            frozenset(word.lower() if self._parsed.folds else word for word in words)
            if words
            else None
        )

    def may_match(self, data: bytes, lowered: bytes) -> bool:
        """Whether it can match in any line of ``data``; a quick look that leaves most out.

        Args:
            data: several lines.
            lowered: the same in lower case.
        """
        if self._needed is None:
            return True
        text = lowered if self._parsed.folds else data
        return any(word in text for word in self._needed)

    def matches(self, line: bytes) -> bool:
        """Whether it is found in a line, which has no end of line in it."""
        return self.look(line)[0]

    def look(self, line: bytes) -> tuple[bool, int]:
        """Whether it is found in a line, and how many places were gone through anew for it."""
        # What one thread forgets must not be in the hands of another.
        with self._lock:
            before = self._worked
            found = self._runs_through(line)
            return found, self._worked - before

    def _runs_through(self, line: bytes) -> bool:
        state, to_end = self._start, self._parsed.to_end
        if not to_end and self._is_over(state):
            return True
        for byte in line:
            after = self._steps[state][byte]
            if after < 0:
                after = self._step(state, byte)
            state = after
            if not to_end and self._is_over(state):
                return True
        return self._is_over(state)

    def _is_over(self, state: int) -> bool:
        return self._accepts in self._sets[state]

    def _step(self, state: int, byte: int) -> int:
        places = self._sets[state]
        self._worked += len(places)
        if len(self._sets) >= MOST_STATES:
            self._forget()
            state = self._state(places)
        reached = self._closure(
            after for place in places if byte in self._reads[place] for after in self._goes[place]
        )
        if not self._parsed.from_start:
            reached |= self._closure([self._begin])
        found = self._state(reached)
        self._steps[state][byte] = found
        return found

    def _state(self, places: frozenset[int]) -> int:
        known = self._states.get(places)
        if known is None:
            known = self._states[places] = len(self._sets)
            self._sets.append(places)
            self._steps.append([-1] * 256)
        return known

    def _forget(self) -> None:
        self._states, self._sets, self._steps = {}, [], []
        self._start = self._state(self._closure([self._begin]))

    def _closure(self, places: Iterable[int]) -> frozenset[int]:
        """Places that are reached without reading; those that read nothing pass it on."""
        waiting, found = list(places), set[int]()
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                if not self._reads[place] and place != self._accepts:
                    waiting.extend(self._goes[place])
        return frozenset(found)

    def _place(self, reads: frozenset[int], *goes: int) -> int:
        if len(self._reads) >= MOST_PLACES:
            raise PatternError("it is too large; use smaller counts")
        self._reads.append(reads)
        self._goes.append(list(goes))
        return len(self._reads) - 1

    def _build(self, node: Node, then: int) -> int:
        """The place at which ``node`` begins, after which it goes on at ``then``."""
        if isinstance(node, Bytes):
            return self._place(node.allowed, then) if node.allowed else self._dead()
        if isinstance(node, Run):
            for part in reversed(node.parts):
                then = self._build(part, then)
            return then
        if isinstance(node, Choice):
            return self._place(frozenset(), *[self._build(one, then) for one in node.options])
        return self._build_repeat(node, then)

    def _build_repeat(self, node: Repeat, then: int) -> int:
        if node.most is None:
            loop = self._place(frozenset(), then)
            self._goes[loop].append(self._build(node.part, loop))
            then = loop
        else:
            for _ in range(node.most - node.least):
                then = self._place(frozenset(), then, self._build(node.part, then))
        for _ in range(node.least):
            then = self._build(node.part, then)
        return then

    def _dead(self) -> int:
        return self._place(frozenset())


def _needed(node: Node) -> frozenset[bytes] | None:
    """Words of which one is in everything that matches; None where there are none."""
    if isinstance(node, Bytes):
        return None
    if isinstance(node, Repeat):
        return _needed(node.part) if node.least else None
    if isinstance(node, Choice):
        found = [_needed(option) for option in node.options]
        if any(words is None for words in found):
            return None
        return frozenset(word for words in found if words for word in words)
    return _best(node)


def _best(run: Run) -> frozenset[bytes] | None:
    """Of a run the longest literal, or what a part of it needs if that is longer."""
    options = [words for part in run.parts if (words := _needed(part))]
    literal = b""
    for part in (*run.parts, None):
        letter = _letter(part) if isinstance(part, Bytes) else None
        if letter is not None:
            literal += letter
        elif literal:
            options.append(frozenset([literal]))
            literal = b""
    return max(options, key=lambda words: min(map(len, words)), default=None)


def _letter(part: Bytes) -> bytes | None:
    """The one byte, or the lower one of two that differ by their case."""
    letters = {bytes([byte]).lower() for byte in part.allowed}
    if len(part.allowed) == 1:
        return bytes(part.allowed)
    return letters.pop() if len(letters) == 1 else None
