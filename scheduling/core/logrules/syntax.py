"""Reads patterns: the part of Python's regular expressions that needs no stepping back."""

import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LONGEST_PATTERN: Final = 500
MOST_REPEATS: Final = 100
DEEPEST: Final = 20
_ALL: Final = frozenset(range(256))
_DIGIT: Final = frozenset(b"0123456789")
_WORD: Final = frozenset(string.ascii_letters.encode() + b"0123456789_")
_SPACE: Final = frozenset(b" \t\n\r\f\v")
_CLASSES: Final = {
    "d": _DIGIT, "D": _ALL - _DIGIT, "w": _WORD, "W": _ALL - _WORD,
    "s": _SPACE, "S": _ALL - _SPACE,
}  # fmt: skip
_CONTROLS: Final = {"t": b"\t", "n": b"\n", "r": b"\r", "f": b"\f", "v": b"\v"}


class PatternError(ValueError):
    """The text is no pattern that is known here; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """One byte out of a set."""

    allowed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Run:
    """Parts one after another."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part at least and at most so often; None: without end."""

    part: "Node"
    least: int
    most: int | None


Node = Bytes | Run | Choice | Repeat


@dataclass(frozen=True, slots=True)
class Parsed:
    """A pattern that was read.

    Attributes:
        from_start, to_end: it holds for whole lines only, at this side.
        folds: upper and lower case are one.
    """

    node: Node
    from_start: bool
    to_end: bool
    folds: bool


def parse(text: str) -> Parsed:
    r"""Read a pattern.

    Known are literals, ``.``, ``[...]``, ``\d \w \s`` and their opposites, groups, ``|``,
    ``* + ? {m,n}``, ``^`` at the very beginning, ``$`` at the very end and ``(?i)`` before all.

    Raises:
        PatternError: it is something else.
    """
    if not text or len(text) > LONGEST_PATTERN:
        raise PatternError(f"a pattern has 1 to {LONGEST_PATTERN} characters")
    folds = text.startswith("(?i)")
    rest = text.removeprefix("(?i)")
    from_start = rest.startswith("^")
    rest = rest.removeprefix("^")
    to_end = rest.endswith("$") and not _is_escaped(rest)
    reader = _Reader(rest[:-1] if to_end else rest, folds=folds)
    node = reader.choice(0)
    if reader.at < len(reader.text):
        raise PatternError("a closing bracket has no opening one")
    if (from_start or to_end) and isinstance(node, Choice):
        raise PatternError("put the choice in brackets, as in ^(a|b)")
    return Parsed(node, from_start, to_end, folds)


def _is_escaped(text: str) -> bool:
    before = text[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, text: str, *, folds: bool) -> None:
        self.text = text
        self.folds = folds
        self.at = 0

    def choice(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise PatternError("it is nested too deeply")
        options = [self.sequence(depth)]
        while self.peek() == "|":
            self.at += 1
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated(self.atom(depth)))
        return Run(tuple(parts))

    def atom(self, depth: int) -> Node:
        char = self.take()
        if char == "(":
            if self.text.startswith("?:", self.at):
                self.at += 2
            elif self.peek() == "?":
                raise PatternError("of the groups with (? only (?: is known")
            node = self.choice(depth + 1)
            if self.take() != ")":
                raise PatternError("a group is not closed")
            return node
        if char == "[":
            return self.char_class()
        if char == ".":
            return Bytes(_ALL - {10})
        if char == "\\":
            return self.escaped()
        if char in "*+?{":
            raise PatternError(f"{char} stands behind nothing")
        if char in "^$":
            raise PatternError(f"{char} is known at the ends of the whole pattern only")
        return self.literal(char)

    def repeated(self, node: Node) -> Node:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self.peek())
        if bounds is not None:
            self.at += 1
        elif self.peek() == "{":
            bounds = self.counts()
        else:
            return node
        if self.peek() == "?":
            self.at += 1  # whether it is lazy makes no difference to whether it matches
        if self.peek() in ("*", "+", "?", "{"):
            raise PatternError("a repetition is repeated")
        return Repeat(node, *bounds)

    def counts(self) -> tuple[int, int | None]:
        end = self.text.find("}", self.at)
        least, comma, most = self.text[self.at + 1 : end].partition(",")
        digits = all(part.isascii() and part.isdecimal() for part in (least, most or "0"))
        if end < 0 or not digits or max(len(least), len(most)) > 3:
            raise PatternError("write counts as {2}, {2,} or {2,5}")
        self.at = end + 1
        low = int(least)
        high = low if not comma else (int(most) if most else None)
        if low > MOST_REPEATS or (high is not None and not low <= high <= MOST_REPEATS):
            raise PatternError(f"counts go up to {MOST_REPEATS}, the smaller one first")
        return low, high

    def escaped(self) -> Node:
        char = self.take()
        if char in _CLASSES:
            return Bytes(_CLASSES[char])
        if char in _CONTROLS:
            return Bytes(frozenset(_CONTROLS[char]))
        if not char or char.isalnum():
            raise PatternError(f"\\{char} is not known")
        return self.literal(char)

    def char_class(self) -> Node:
        negated = self.peek() == "^"
        self.at += negated
        found: set[int] = set()
        first = True
        while first or self.peek() != "]":
            first = False
            low = self.class_item()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.class_item()
                if len(low) != 1 or len(high) != 1 or min(low) > min(high):
                    raise PatternError("a range in [ ] goes from a smaller to a larger character")
                low = frozenset(range(min(low), min(high) + 1))
            found |= low
        self.at += 1
        folded = self.fold(found)
        return Bytes(_ALL - folded if negated else folded)

    def class_item(self) -> frozenset[int]:
        char = self.take()
        if not char:
            raise PatternError("a [ is not closed")
        if char == "\\":
            node = self.escaped()
            if isinstance(node, Bytes):
                return node.allowed
        if not char.isascii():
            raise PatternError("[ ] takes plain ASCII characters")
        return frozenset(char.encode())

    def literal(self, char: str) -> Node:
        parts = tuple(Bytes(self.fold({byte})) for byte in char.encode("utf-8", "replace"))
        return parts[0] if len(parts) == 1 else Run(parts)

    def fold(self, allowed: Iterable[int]) -> frozenset[int]:
        found = frozenset(allowed)
        if not self.folds:
            return found
        letters = bytes(sorted(found))
        return found | frozenset(letters.lower()) | frozenset(letters.upper())

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        char = self.peek()
        self.at += 1
        return char
