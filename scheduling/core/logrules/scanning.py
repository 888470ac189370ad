"""Lines out of the pieces in which a log comes, each looked at once by rules that may match."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduling.core.logrules.patterns import Pattern
from scheduling.core.logrules.rules import LogRuleSpec

LONGEST_LINE: Final = 4096
"""Bytes of a line that are looked at."""
SHOWN: Final = 200
MOST_WORK: Final = 1_000_000
"""Places of a pattern that are gone through anew in one log; a fraction of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line that matched.

    Attributes:
        offset: where the line begins in the log, in bytes.
        line: its beginning, as text.
        given_up: it did not match: the rule is not looked for in the rest of this log, because
            its pattern takes too long there.
    """

    rule: LogRuleSpec
    offset: int
    line: str
    given_up: bool = False


class LineScanner:
    """Looks at one log; a rule that has matched is not looked for again."""

    def __init__(self, rules: Sequence[tuple[LogRuleSpec, Pattern]]) -> None:
        """Args: rules: with their patterns, which may be shared."""
        self._rules = list(rules)
        self._worked: dict[LogRuleSpec, int] = {}
        self._rest = b""
        self._next = 0

    def feed(self, data: bytes, offset: int) -> tuple[Hit, ...]:
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

    def finish(self) -> tuple[Hit, ...]:
        """The last line, which has no end."""
        rest, self._rest = self._rest, b""
        return tuple(self._look(rest, self._next - len(rest)))

    def _look(self, text: bytes, begins: int) -> list[Hit]:
        lowered = text.lower()
        likely = [one for one in self._rules if text and one[1].may_match(text, lowered)]
        found = [self._first(rule, pattern, text, begins) for rule, pattern in likely]
        hits = [hit for hit in found if hit is not None]
        over = {hit.rule for hit in hits}
        self._rules = [one for one in self._rules if one[0] not in over]
        return hits

    def _first(self, rule: LogRuleSpec, pattern: Pattern, text: bytes, begins: int) -> Hit | None:
        """The first line that matches, or the one at which the rule is given up."""
        worked, position = self._worked.get(rule, 0), 0
        for line in text.split(b"\n"):
            matched, work = pattern.look(line[:LONGEST_LINE].rstrip(b"\r"))
            worked += work
            if matched or worked > MOST_WORK:
                return Hit(
                    rule=rule,
                    offset=begins + position,
                    line=_shown(line),
                    given_up=not matched,
                )
            position += len(line) + 1
        self._worked[rule] = worked
        return None


def _shown(line: bytes) -> str:
    text = line[: SHOWN * 4].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()[:SHOWN]
