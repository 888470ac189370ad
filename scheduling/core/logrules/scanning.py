"""Lines out of the pieces in which a log comes, each looked at once by rules that may match."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduling.core.logrules.patterns import Pattern
from scheduling.core.logrules.rules import LogRuleSpec

LONGEST_LINE: Final = 4096
"""Bytes of a line that are looked at."""
SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line that matched.

    Attributes:
        offset: where the line begins in the log, in bytes.
        line: its beginning, as text.
    """

    rule: LogRuleSpec
    offset: int
    line: str


class LineScanner:
    """Looks at one log; a rule that has matched is not looked for again."""

    def __init__(self, rules: Sequence[tuple[LogRuleSpec, Pattern]]) -> None:
        """Args: rules: with their patterns, which may be shared."""
        self._rules = list(rules)
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
        hits: list[Hit] = []
        for rule, pattern in likely:
            position = 0
            for line in text.split(b"\n"):
                if pattern.matches(line[:LONGEST_LINE].rstrip(b"\r")):
                    hits.append(Hit(rule=rule, offset=begins + position, line=_shown(line)))
                    break
                position += len(line) + 1
        found = {hit.rule for hit in hits}
        self._rules = [one for one in self._rules if one[0] not in found]
        return hits


def _shown(line: bytes) -> str:
    text = line[: SHOWN * 4].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()[:SHOWN]
