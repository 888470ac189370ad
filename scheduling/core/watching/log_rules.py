"""Patterns of log rules, matched by RE2 in time linear in the length of the log."""

import re
from typing import Final

import re2

LONGEST_PATTERN: Final = 500
MOST_MEMORY: Final = 1 << 20
"""Bytes for a compiled pattern and its cached states together."""

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
    "trailing \\": "nothing follows the \\ at its end",
    "pattern too large - compile failed": "it is too large; use smaller counts",
}


class PatternError(ValueError):
    """The text is not a valid pattern; the message gives the reason and usually the remedy."""


class Pattern:
    """A pattern in RE2 syntax that may match anywhere in a line; safe to share between threads."""

    def __init__(self, text: str) -> None:
        """Compile it.

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
            raise PatternError("it holds half of a surrogate pair") from None
        except re2.error as error:
            raise PatternError(_explained(error)) from None

    def find(self, lines: bytes) -> int | None:
        r"""The byte offset of the first match; None without one. No match spans lines.

        Args:
            lines: valid UTF-8, lines separated by ``\n``. RE2 releases the GIL meanwhile.
        """
        found = self._compiled.search(lines)
        return None if found is None else int(found.start())


def _check(piece: str) -> None:
    if piece in _REFUSED:
        raise PatternError(_REFUSED[piece])
    if piece.startswith("{"):
        # Python reads {,3} as a count, RE2 as text: refused, so that nobody is misled.
        raise PatternError(f"write {{0{piece[1:]} instead of {piece}")
    if piece.startswith("(") and not set(piece) <= set("(?-i:)"):
        raise PatternError(f"{piece} is not supported; the only flag is i, as in (?i)")


def _explained(error: Exception) -> str:
    code, _, detail = error.args[0].decode("utf-8", "replace").partition(": ")
    return _EXPLAINED.get(code, f"RE2 reports: {code} {{detail}}").replace("{detail}", detail)
