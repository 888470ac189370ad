"""Finds the lines of a log, which arrives in pieces, that match rules."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scheduling.core.watching.log_rule_values import LogRuleSpec
from scheduling.core.watching.log_rules import Pattern

LONGEST_LINE: Final = 4096
"""Bytes of a line that are searched."""
SHOWN: Final = 200
SPARE_SECONDS: Final = 0.5
SECONDS_A_BYTE: Final = 1e-7
"""CPU time that a rule may use in a log: ``SPARE_SECONDS``, and this much for each byte read.

RE2 usually reads some 500 MB/s. With a pattern that has thousands of states at once it reads less
than 1 MB/s, always linear in the length.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHit:
    """A line that matched.

    Attributes:
        offset: where the line begins in the log, in bytes.
        line: its beginning, as text.
        given_up: there is no match: the rule is ignored from ``offset`` on, because its pattern
            takes too long in this log.
    """

    rule: LogRuleSpec
    offset: int
    line: str
    given_up: bool = False


class LineScanner:
    """Searches one log; a rule that has matched is not searched for again."""

    def __init__(
        self, rules: Sequence[tuple[LogRuleSpec, Pattern]], *, clock: Callable[[], float]
    ) -> None:
        """Start at the beginning of a log.

        Args:
            rules: with their patterns, which may be shared.
            clock: the CPU time of the calling thread in seconds.
        """
        self._rules = list(rules)
        self._clock = clock
        self._spent: defaultdict[LogRuleSpec, float] = defaultdict(float)
        self._read = 0
        self._rest = b""
        self._next = 0

    def feed(self, data: bytes, offset: int) -> tuple[RuleHit, ...]:
        """The lines that match and end in this piece.

        Args:
            data: the piece.
            offset: where it begins; after a gap what was left of a line is dropped.
        """
        if not self._rules:
            return ()
        if offset != self._next:
            self._rest = b""
        begins = offset - len(self._rest)
        whole = self._rest + data
        self._next = offset + len(data)
        end = whole.rfind(b"\n") + 1
        self._rest = whole[end:]
        if len(self._rest) > LONGEST_LINE:
            end, self._rest = len(whole), b""
        return tuple(self._look(whole[:end], begins))

    def finish(self) -> tuple[RuleHit, ...]:
        """The last line, which has no end."""
        rest, self._rest = self._rest, b""
        return tuple(self._look(rest, self._next - len(rest)))

    def _look(self, text: bytes, begins: int) -> list[RuleHit]:
        if not text or not self._rules:
            return []
        self._read += len(text)
        lines = text.removesuffix(b"\n").split(b"\n")
        readable = b"\n".join(line[:LONGEST_LINE].rstrip(b"\r") for line in lines)
        # A byte that is not UTF-8 matches as U+FFFD: RE2 would let not even a dot match it.
        readable = readable.decode("utf-8", "replace").encode()
        hits = [
            hit
            for rule, pattern in self._rules
            if (hit := self._first(rule, pattern, lines, readable, begins)) is not None
        ]
        over = {hit.rule for hit in hits}
        self._rules = [one for one in self._rules if one[0] not in over]
        return hits

    def _first(
        self, rule: LogRuleSpec, pattern: Pattern, lines: list[bytes], readable: bytes, begins: int
    ) -> RuleHit | None:
        """The first line that matches; a hit without a match if the rule is given up."""
        started = self._clock()
        at = pattern.find(readable)
        self._spent[rule] += self._clock() - started
        if at is not None:
            line = readable.count(b"\n", 0, at)
            offset = begins + sum(len(before) + 1 for before in lines[:line])
            return RuleHit(rule=rule, offset=offset, line=_shown(lines[line]))
        if self._spent[rule] > SPARE_SECONDS + SECONDS_A_BYTE * self._read:
            return RuleHit(rule=rule, offset=self._next - len(self._rest), line="", given_up=True)
        return None


def _shown(line: bytes) -> str:
    text = line[: SHOWN * 4].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()[:SHOWN]
