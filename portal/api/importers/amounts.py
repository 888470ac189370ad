"""Amounts as dstack and SkyPilot write them: ranges, sizes, durations."""

import re
from collections.abc import Mapping
from typing import Any, Final

from scheduling.core.jobspec.errors import RefusalError, kind_of
from scheduling.core.jobspec.scalars import MIB, TIB

GIB: Final = 1024**3
OFF: Final = -1

_RANGE: Final = re.compile(r"([0-9]{1,6})?(\.\.)?([0-9]{1,6})?")
_SIZE: Final = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)\s*(B|[KMGT]I?B?)?", re.IGNORECASE)
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*([smhdw]?)")
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_POWERS: Final = {"": 3, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def read_range(value: object) -> tuple[int | None, int | None]:
    """The least and the most of ``2``, ``2..8``, ``2..``, ``..8`` or an object of min and max.

    Raises:
        RefusalError: it is no such range.
    """
    if isinstance(value, Mapping) and set(value) <= {"min", "max"}:
        bounds = (value.get("min"), value.get("max"))
        if all(bound is None or _is_count(bound) for bound in bounds):
            return _upwards(*bounds)
    elif _is_count(value):
        return _upwards(value, value)
    elif isinstance(value, str) and (match := _RANGE.fullmatch(value.strip())):
        first, dots, last = match.groups()
        if first or last:
            least = int(first) if first else None
            return _upwards(least, (int(last) if last else None) if dots else least)
    raise RefusalError("is not a number or a range.", "Write 2 or 2..8.", shown=kind_of(value))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6


def _upwards(least: Any, most: Any) -> tuple[int | None, int | None]:
    if least is not None and most is not None and least > most:
        raise RefusalError("goes downwards.", "Write the smaller number first.", "out-of-range")
    return least, most


def read_bytes(value: object) -> int:
    """Bytes of a size; gigabytes without a unit.

    Raises:
        RefusalError: it is no size.
    """
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(text)
    if match is None:
        raise RefusalError("is not a size.", "Write 16GB or 512MB.")
    unit = (match[2] or "")[:1].upper()
    size = int(float(match[1]) * 1024 ** _POWERS[unit])
    if not MIB <= size <= 64 * TIB:
        raise RefusalError("must lie in 1MB..64TB.", "Write 16GB or 512MB.", "out-of-range")
    return size


def read_seconds(value: object) -> int:
    """Seconds of ``90``, ``15m``, ``2h``, ``1d`` or ``1w``; ``OFF`` for no limit.

    Raises:
        RefusalError: it is no duration.
    """
    if value is False or value in ("off", "-1", -1):
        return OFF
    text = "" if isinstance(value, bool) else str(value).strip()
    match = _DURATION.fullmatch(text) if isinstance(value, str | int) else None
    if match is None or int(match[1]) == 0:
        raise RefusalError("is not a duration.", "Write seconds, 15m, 2h or 1d.")
    return int(match[1]) * _UNITS[match[2]]
