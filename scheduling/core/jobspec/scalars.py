"""Readers of single values: each returns the checked value or refuses it with a remedy."""

import math
import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

from scheduling.core.jobspec.errors import RefusalError, kind_of

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
    """The refusal of a value that is not even of the right kind."""
    return RefusalError(f"must be {wanted}, not {kind_of(value)}.", remedy, "wrong-type")


def read_bool(value: object) -> bool:
    """True or false; no words for them."""
    if not isinstance(value, bool):
        raise wrong_type(value, "true or false", "Write true or false, without quotes.")
    return value


def read_integer(value: object, lowest: int, highest: int, remedy: str = "") -> int:
    """A whole number in ``lowest..highest``."""
    remedy = remedy or f"Write a whole number from {lowest} to {highest}."
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(value, "a whole number", remedy)
    if not lowest <= value <= highest:
        raise RefusalError(f"must lie in {lowest}..{highest}.", remedy, "out-of-range")
    return value


def read_cpus(value: object) -> float:
    """Processors, in parts if wanted."""
    remedy = "Write a number above 0 and up to 4096, such as 4 or 0.5."
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, "a number", remedy)
    if not 0 < value <= 4096 or not math.isfinite(value):
        raise RefusalError("must lie above 0 and at most at 4096.", remedy, "out-of-range")
    return float(value)


def read_string(value: object, remedy: str) -> str:
    """A text that can be stored: valid Unicode without NUL."""
    if not isinstance(value, str):
        raise wrong_type(value, "a text", remedy)
    if "\0" in value:
        raise RefusalError("contains a NUL character.", "Remove the NUL character.")
    if not _is_encodable(value):
        raise RefusalError(
            "is not valid Unicode (half of a surrogate pair).", "Write the character itself."
        )
    return value


def read_matching(value: object, pattern: re.Pattern[str], remedy: str) -> str:
    """A text of a fixed form."""
    text = read_string(value, remedy)
    if not pattern.fullmatch(text):
        raise RefusalError("has not the right form.", remedy)
    return text


def read_line(value: object, most: int, *, least: int = 1) -> str:
    """One line of printable text, carried literally: any script, quotes and signs."""
    remedy = f"Write {least} to {most} printable characters on one line."
    text = read_string(value, remedy)
    if not least <= len(text) <= most:
        raise RefusalError(f"must have {least} to {most} characters.", remedy, "too-long")
    bad = next((char for char in text if is_unprintable(char)), None)
    if bad is not None:
        raise RefusalError(f"contains the unprintable character U+{ord(bad):04X}.", remedy)
    if text != text.strip():
        raise RefusalError("begins or ends with a space.", "Remove the space at the end.")
    return text


def read_note(value: object) -> str:
    """Some lines of text for people."""
    remedy = "Write at most 500 characters."
    text = read_string(value, remedy)
    if len(text) > 500:
        raise RefusalError("must have at most 500 characters.", remedy, "too-long")
    bad = next((char for char in text if char not in "\n\t" and is_unprintable(char)), None)
    if bad is not None:
        raise RefusalError(f"contains the unprintable character U+{ord(bad):04X}.", remedy)
    return text


def read_bounded(value: object, most_bytes: int, remedy: str) -> str:
    """Any text up to a number of bytes, carried literally."""
    text = read_string(value, remedy)
    size = len(text.encode())
    if size > most_bytes:
        raise RefusalError(f"has {size} bytes, more than {most_bytes}.", remedy, "too-long")
    return text


def read_command(value: object) -> str:
    """A script, carried literally."""
    remedy = "Write the shell script as one text of at most 64 KiB; it may have several lines."
    text = read_bounded(value, 64 * KIB, remedy)
    if not text.strip():
        raise RefusalError("is empty.", remedy)
    return text


def read_duration(value: object, lowest: int, highest: int) -> int:
    """Seconds, given as a number or as days, hours, minutes and seconds."""
    remedy = (
        f"Write seconds or a text such as 90s, 15m, 2h or 1d2h30m, "
        f"from {lowest} to {highest} seconds."
    )
    seconds = value
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None or not value:
            raise RefusalError("is not a duration.", remedy)
        seconds = sum(
            int(digits) * unit
            for digits, unit in zip(match.groups(), _SECONDS, strict=True)
            if digits
        )
    return read_integer(seconds, lowest, highest, remedy)


def read_memory(value: object) -> int:
    """Bytes, given as a number or with a unit: GB is 1000^3, GiB is 1024^3."""
    remedy = "Write bytes or a text such as 512MiB, 8GB or 8GiB, from 1MiB to 64TiB."
    size = value
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value)
        unit = _UNITS.get(match[3].lower()) if match else None
        if match is None or unit is None:
            raise RefusalError("is not an amount of memory.", remedy)
        fraction = match[2] or ""
        size = int(match[1] + fraction) * unit // 10 ** len(fraction)
    return read_integer(size, MIB, 64 * TIB, remedy)


def read_instant(value: object) -> datetime:
    """A moment with its offset from UTC, returned in UTC."""
    remedy = "Write ISO 8601 with an offset, such as 2030-05-01T08:00:00Z or ...T08:00:00+02:00."
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise RefusalError("is not a point in time.", remedy) from None
    if not isinstance(moment, datetime):
        raise wrong_type(value, "a point in time", remedy)
    if moment.utcoffset() is None:
        raise RefusalError("does not say its offset from UTC.", remedy)
    if moment.year not in _YEARS:
        raise RefusalError("lies outside the years 2000 to 2199.", remedy, "out-of-range")
    return moment.astimezone(UTC)


def is_unprintable(char: str) -> bool:
    """Whether a character has no place in a line of text: controls, marks of direction."""
    return char not in _JOINERS and unicodedata.category(char) in _UNPRINTABLE


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
