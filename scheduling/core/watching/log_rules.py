"""Log rules: their values, their RE2 patterns, and the scan of a log in linear time."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import re2

LONGEST_NAME: Final = 60


class LogAction(StrEnum):
    """Action after a match."""

    EXCLUDE_NODE = "exclude-node"
    STOP_RETRIES = "stop-retries"
    LABEL = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRuleSpec:
    """A pattern and the action when a line of a job's log matches it.

    Attributes:
        name: name in events and labels.
        pattern: pattern in the syntax of ``patterns.Pattern``.
        action: effect of a match: the next attempt avoids the node, no next attempt, or a label on
            the job.
    """

    name: str
    pattern: str
    action: LogAction


# A pattern also matches inside words. The patterns below use word boundaries and require the exact
# texts of drivers and libraries, so that prose, counts of 0 and settings do not match.
DEFAULT_RULES: Final = (
    LogRuleSpec(
        name="uncorrectable ECC error",
        pattern=r"(?i)^(.*\W)?(uncorrectable ECC error encountered"
        r"|cuda_?error_?ecc_?uncorrectable)(\W.*)?$",
        action=LogAction.EXCLUDE_NODE,
    ),
    LogRuleSpec(
        name="GPU lost",
        pattern=r"(?i)^((.*\W)?GPU has fallen off the bus(\W.*)?"
        r"|(.*[^\w ] *)?GPU is lost([^\w ].*)?"
        r"|.*NVRM: Xid \([^)]*\): (48|63|64|74|79|94|95),.*)$",
        action=LogAction.EXCLUDE_NODE,
    ),
    LogRuleSpec(
        name="CUDA out of memory",
        pattern=r"^(.*\W)?(CUDA out of memory|CUDA error: out of memory"
        r"|Cuda failure (\d+ )?'out of memory'|CUDA_ERROR_OUT_OF_MEMORY"
        r"|torch\.(cuda\.)?OutOfMemoryError: .+|RESOURCE_EXHAUSTED: Out of memory"
        r"|OOM when allocating tensor)(\W.*)?$",
        action=LogAction.STOP_RETRIES,
    ),
)


LONGEST_PATTERN: Final = 500
MOST_MEMORY: Final = 1 << 20
"""Maximum bytes of a compiled pattern including its cached states."""

# Multi-line mode and ``never_nl`` let one search cover many lines; syntax that undoes them is
# refused.
_PIECES: Final = re.compile(r"\\.|\(\?[a-zA-Z-]+[:)]|\{,[0-9]*\}", re.DOTALL)
_REFUSED: Final = {
    "\\A": "use ^ for the start of a line",
    "\\Z": "use $ for the end of a line",
    "\\z": "use $ for the end of a line",
    "\\C": "\\C is not supported",
    "\\Q": "\\Q is not supported; put \\ before each special character",
}
_EXPLAINED: Final = {
    "missing )": "a group is not closed",
    "unexpected )": "a closing bracket has no opening one",
    "missing ]": "a [ is not closed",
    "invalid character class range": "{detail} is not a valid range or class of characters",
    "invalid escape sequence": "{detail} is not supported",
    "invalid perl operator": "{detail} is not supported; use (?:...) for groups, (?i) for case",
    "no argument for repetition operator": "{detail} has nothing before it to repeat",
    "bad repetition operator": "{detail} repeats a repetition; put the first one in brackets",
    "invalid repetition size": "{detail} is not a valid count: the smaller number comes first, "
    "and nested counts multiply to at most 1,000",
    "trailing \\": "nothing follows the \\ at the end of the pattern",
    "pattern too large - compile failed": "the pattern is too large; use smaller counts",
}


class PatternError(ValueError):
    """The text is not a valid pattern; the message gives the reason and usually the remedy."""


class Pattern:
    """A pattern in RE2 syntax that may match anywhere in a line; thread-safe."""

    def __init__(self, text: str) -> None:
        """Compile the pattern.

        Raises:
            PatternError: RE2 does not accept it, or it needs more than ``MOST_MEMORY``.
        """
        if not text or len(text) > LONGEST_PATTERN:
            raise PatternError(f"a pattern has 1 to {LONGEST_PATTERN} characters")
        for piece in _PIECES.findall(text):
            _check(piece)
        options = re2.Options()
        options.max_mem = MOST_MEMORY
        options.never_nl = True
        options.never_capture = True
        options.log_errors = False
        try:
            self._compiled = re2.compile(f"(?m){text}".encode(), options)
        except UnicodeEncodeError:
            raise PatternError("the pattern contains half of a surrogate pair") from None
        except re2.error as error:
            raise PatternError(_explained(error)) from None

    def find(self, lines: bytes) -> int | None:
        r"""Return the byte offset of the first match, or None. No match spans lines.

        Args:
            lines: valid UTF-8, lines separated by ``\n``. RE2 releases the GIL meanwhile.
        """
        found = self._compiled.search(lines)
        return None if found is None else int(found.start())


def _check(piece: str) -> None:
    if piece in _REFUSED:
        raise PatternError(_REFUSED[piece])
    if piece.startswith("{"):
        # Python reads {,3} as a count, RE2 as text: rejected as ambiguous.
        raise PatternError(f"write {{0{piece[1:]} instead of {piece}")
    if piece.startswith("(") and not set(piece) <= set("(?-i:)"):
        raise PatternError(f"{piece} is not supported; the only flag is i, as in (?i)")


def _explained(error: Exception) -> str:
    code, _, detail = error.args[0].decode("utf-8", "replace").partition(": ")
    return _EXPLAINED.get(code, f"RE2 reports: {code} {{detail}}").replace("{detail}", detail)


LONGEST_LINE: Final = 4096
"""Maximum number of searched bytes of a line."""
SHOWN: Final = 200
SPARE_SECONDS: Final = 0.5
SECONDS_A_BYTE: Final = 1e-7
"""CPU time that a rule may use in a log: ``SPARE_SECONDS``, and this much for each byte read.

RE2 usually reads about 500 MB/s. With thousands of simultaneous states it reads less than 1 MB/s,
always in linear time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHit:
    """A line that matched.

    Attributes:
        offset: start of the line in the log, in bytes.
        line: beginning of the line, as text.
        given_up: no match: the rule is ignored from ``offset`` on, because its pattern takes too
            long in this log.
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
        """Return the matching lines that end in this piece.

        Args:
            data: the piece.
            offset: its start; after a gap the rest of a line is dropped.
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
        """Match the last line, which has no line end."""
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
        """Find the first line that matches; the hit has no match if the rule is given up."""
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
