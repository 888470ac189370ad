"""Readers of single values: each returns the valid value or raises an error with a remedy."""

import math
import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

from scheduling.core.jobspec.errors import RefusalError, kind_of
from scheduling.core.messages import sentence

KIB: Final = 1024
MIB: Final = 1024**2
TIB: Final = 1024**4
DAY: Final = 86_400

_UNITS: Final = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_MEMORY: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,6}))? ?([A-Za-z]{1,3})")
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?"
)
_SECONDS: Final = (DAY, 3600, 60, 1)
_JOINERS: Final = frozenset("\u200c\u200d")
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_YEARS: Final = range(2000, 2200)


def wrong_type(value: object, wanted: str, remedy: str) -> RefusalError:
    """Build the error of a value of the wrong type."""
    return RefusalError(
        sentence("wrong-kind", wanted=wanted, found=kind_of(value)), remedy, "wrong-type"
    )


def read_bool(value: object) -> bool:
    """Read a boolean; words are not accepted."""
    if not isinstance(value, bool):
        raise wrong_type(value, sentence("kind-boolean"), sentence("write-boolean"))
    return value


def read_integer(value: object, lowest: int, highest: int, remedy: str = "") -> int:
    """Read an integer in ``lowest..highest``."""
    remedy = remedy or sentence("write-integer", lowest=lowest, highest=highest)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(value, sentence("kind-integer"), remedy)
    if not lowest <= value <= highest:
        raise RefusalError(
            sentence("out-of-range", lowest=lowest, highest=highest), remedy, "out-of-range"
        )
    return value


def read_cpus(value: object) -> float:
    """Read a number of processors; fractions are allowed."""
    remedy = sentence("write-cpus")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, sentence("kind-number"), remedy)
    if not 0 < value <= 4096 or not math.isfinite(value):
        raise RefusalError(sentence("cpus-out-of-range"), remedy, "out-of-range")
    return float(value)


def read_string(value: object, remedy: str) -> str:
    """Read a string that can be stored: valid Unicode without NUL."""
    if not isinstance(value, str):
        raise wrong_type(value, sentence("kind-text"), remedy)
    if "\0" in value:
        raise RefusalError(sentence("has-nul"), sentence("remove-nul"))
    if not _is_encodable(value):
        raise RefusalError(sentence("not-unicode"), sentence("write-character"))
    return value


def read_matching(value: object, pattern: re.Pattern[str], remedy: str) -> str:
    """Read a string that matches ``pattern``."""
    text = read_string(value, remedy)
    if not pattern.fullmatch(text):
        raise RefusalError(sentence("wrong-form"), remedy)
    return text


def read_line(value: object, most: int, *, least: int = 1) -> str:
    """Read one line of printable text unchanged, in any script."""
    remedy = sentence("write-line", least=least, most=most)
    text = read_string(value, remedy)
    if not least <= len(text) <= most:
        raise RefusalError(sentence("wrong-length", least=least, most=most), remedy, "too-long")
    bad = next((char for char in text if is_unprintable(char)), None)
    if bad is not None:
        raise RefusalError(sentence("has-unprintable", code=format(ord(bad), "04X")), remedy)
    if text != text.strip():
        raise RefusalError(sentence("space-at-end"), sentence("remove-space"))
    return text


def read_note(value: object) -> str:
    """Read a note of several lines for people."""
    remedy = sentence("write-note")
    text = read_string(value, remedy)
    if len(text) > 500:
        raise RefusalError(sentence("note-too-long"), remedy, "too-long")
    bad = next((char for char in text if char not in "\n\t" and is_unprintable(char)), None)
    if bad is not None:
        raise RefusalError(sentence("has-unprintable", code=format(ord(bad), "04X")), remedy)
    return text


def read_bounded(value: object, most_bytes: int, remedy: str) -> str:
    """Read any text up to a number of bytes, unchanged."""
    text = read_string(value, remedy)
    size = len(text.encode())
    if size > most_bytes:
        raise RefusalError(
            sentence("too-many-bytes", size=size, most=most_bytes), remedy, "too-long"
        )
    return text


def read_command(value: object) -> str:
    """Read a script, unchanged."""
    remedy = sentence("write-command")
    text = read_bounded(value, 64 * KIB, remedy)
    if not text.strip():
        raise RefusalError(sentence("empty"), remedy)
    return text


def read_duration(value: object, lowest: int, highest: int) -> int:
    """Read seconds, given as a number or as days, hours, minutes and seconds."""
    remedy = sentence("write-duration", lowest=lowest, highest=highest)
    seconds = value
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None or not value:
            raise RefusalError(sentence("not-duration"), remedy)
        seconds = sum(
            int(digits) * unit
            for digits, unit in zip(match.groups(), _SECONDS, strict=True)
            if digits
        )
    return read_integer(seconds, lowest, highest, remedy)


def read_memory(value: object) -> int:
    """Read bytes, given as a number or with a unit: GB is 1000^3, GiB is 1024^3."""
    remedy = sentence("write-memory")
    size = value
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value)
        unit = _UNITS.get(match[3].lower()) if match else None
        if match is None or unit is None:
            raise RefusalError(sentence("not-memory"), remedy)
        fraction = match[2] or ""
        size = int(match[1] + fraction) * unit // 10 ** len(fraction)
    return read_integer(size, MIB, 64 * TIB, remedy)


def read_instant(value: object) -> datetime:
    """Read a timestamp with its offset from UTC, and convert it to UTC."""
    remedy = sentence("write-instant")
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise RefusalError(sentence("not-instant"), remedy) from None
    if not isinstance(moment, datetime):
        raise wrong_type(value, sentence("kind-instant"), remedy)
    if moment.utcoffset() is None:
        raise RefusalError(sentence("no-utc-offset"), remedy)
    if moment.year not in _YEARS:
        raise RefusalError(sentence("outside-years"), remedy, "out-of-range")
    return moment.astimezone(UTC)


def is_unprintable(char: str) -> bool:
    """Return whether a line of text cannot contain a character: controls, direction marks."""
    return char not in _JOINERS and unicodedata.category(char) in _UNPRINTABLE


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
