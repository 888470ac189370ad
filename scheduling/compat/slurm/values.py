"""Parsers of ``sbatch`` option values: times, sizes, counts, arrays and dependencies."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from scheduling.compat.slurm.messages import phrase
from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import MIB, TIB

MOST_TASKS: Final = 1000
NO_LIMIT: Final = -1

_NUMBER: Final = r"[0-9]{1,9}"
_TIME: Final = re.compile(
    rf"(?:(?P<days>{_NUMBER})-)?(?P<a>{_NUMBER})(?::(?P<b>{_NUMBER}))?(?::(?P<c>{_NUMBER}))?"
)
_MEMORY: Final = re.compile(r"([0-9]{1,12})([KMGT]?)B?", re.IGNORECASE)
_POWERS: Final = {"k": 1, "": 2, "m": 2, "g": 3, "t": 4}
_NODES: Final = re.compile(rf"({_NUMBER})(k?)(?:-({_NUMBER})(k?))?", re.IGNORECASE)
_KIND: Final = r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,62}"
_TYPED: Final = re.compile(rf"(?:({_KIND}):)?({_NUMBER})")
# Types may begin with digits, such as 2080ti, 3090 and 1g.10gb; a number at the end is a count.
_GRES: Final = re.compile(
    rf"(?:gres[:/])?([A-Za-z_][\w/]{{0,40}})(?::(?!{_NUMBER}k?(?:\(|$))({_KIND}))?"
    rf"(?:[:=]({_NUMBER})(k?))?(?:\([^)]*\))?",
    re.IGNORECASE,
)
_ARRAY_PART: Final = re.compile(rf"({_NUMBER})(?:-({_NUMBER})(?::({_NUMBER}))?)?")
_SIGNAL: Final = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]{1,10})(?:@([0-9]{1,5}))?")
_NOW: Final = re.compile(rf"now(?:\+({_NUMBER})([a-z]*))?")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_UNITS: Final = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def read_time(text: str) -> int:
    """Return the seconds of ``minutes``, ``m:s``, ``h:m:s``, ``d-h``, ``d-h:m`` or ``d-h:m:s``.

    The result is ``NO_LIMIT`` if there is no limit; Slurm also writes 0 for it.

    Raises:
        RefusalError: the text has none of these forms.
    """
    if text.upper() in ("INFINITE", "UNLIMITED", "-1"):
        return NO_LIMIT
    match = _TIME.fullmatch(text)
    if match is None:
        raise RefusalError(phrase("slurm-not-a-time"), phrase("slurm-write-time"))
    a, b, c = (int(match[name] or 0) for name in "abc")
    if match["days"] is not None:
        seconds = int(match["days"]) * 86_400 + a * 3600 + b * 60 + c
    elif match["c"] is not None:
        seconds = a * 3600 + b * 60 + c
    else:
        seconds = a * 60 + b
    return seconds or NO_LIMIT


def read_size(text: str) -> int:
    """Return a size in bytes; without a unit in megabytes. 0 means all memory of the node.

    Raises:
        RefusalError: the text is not a size.
    """
    match = _MEMORY.fullmatch(text)
    size = int(match[1]) * 1024 ** _POWERS[match[2].lower()] if match else -1
    if size != 0 and not MIB <= size <= 64 * TIB:
        raise RefusalError(phrase("slurm-not-memory"), phrase("slurm-write-memory"))
    return size


def read_nodes(text: str) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes of ``2``, ``2-4`` or ``1k``.

    Raises:
        RefusalError: the text is not a count or range, or the larger number is first.
    """
    match = _NODES.fullmatch(text)
    if match is None:
        raise RefusalError(phrase("slurm-not-nodes"), phrase("slurm-write-nodes"))
    least = int(match[1]) * (1024 if match[2] else 1)
    most = int(match[3]) * (1024 if match[4] else 1) if match[3] else least
    if not 0 < least <= most <= 1000:
        raise RefusalError(phrase("slurm-nodes-out-of-range"), phrase("slurm-write-node-range"))
    return least, most


def read_count(text: str, most: int = 4096) -> int:
    """Return a positive integer of at most ``most``.

    Raises:
        RefusalError: the text is not such a number.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and 0 < int(text) <= most):
        raise RefusalError(phrase("slurm-not-a-count"), phrase("slurm-write-count", most=most))
    return int(text)


def read_gpus(text: str) -> dict[str, int]:
    """Return numbers of GPUs by type (empty for any) of ``4`` or ``a100:2,v100:1``.

    Raises:
        RefusalError: the text is not such a list.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _TYPED.fullmatch(part)
        if match is None:
            raise RefusalError(phrase("slurm-not-gpus"), phrase("slurm-write-gpus"))
        found[match[1] or ""] = found.get(match[1] or "", 0) + int(match[2])
    return found


def read_gres(text: str) -> tuple[dict[str, int], list[str]]:
    """Return GPUs by type among generic resources, and the other resources.

    Raises:
        RefusalError: the text is not a list of resources.
    """
    gpus: dict[str, int] = {}
    others: list[str] = []
    for part in text.split(","):
        match = _GRES.fullmatch(part)
        if match is None:
            raise RefusalError(phrase("slurm-not-gres"), phrase("slurm-write-gres"))
        name, kind = match[1].lower(), match[2] or ""
        number = int(match[3] or 1) * (1024 if match[4] else 1)
        if name == "gpu":
            gpus[kind] = gpus.get(kind, 0) + number
        elif part.lower() != "none":
            others.append(part)
    return gpus, others


def read_array(text: str) -> tuple[list[int], int, int]:
    """Return the IDs of an array's tasks, their step, and the concurrency limit (0 for none).

    Raises:
        RefusalError: the text is not an array, or has more than ``MOST_TASKS`` tasks.
    """
    ids: dict[int, None] = {}
    listed, _, throttle = text.partition("%")
    step = 1
    for part in listed.removeprefix("[").removesuffix("]").split(","):
        match = _ARRAY_PART.fullmatch(part)
        if match is None or (match[3] and int(match[3]) == 0):
            raise RefusalError(phrase("slurm-not-an-array"), phrase("slurm-write-array"))
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if last < first or (last - first) // step >= MOST_TASKS:
            raise RefusalError(
                phrase("slurm-array-range", most=MOST_TASKS), phrase("slurm-write-smaller-range")
            )
        ids.update(dict.fromkeys(range(first, last + 1, step)))
    if len(ids) > MOST_TASKS:
        raise RefusalError(
            phrase("slurm-array-too-long", most=MOST_TASKS), phrase("slurm-submit-in-parts")
        )
    return sorted(ids), step, read_count(throttle, 10**7 - 1) if throttle else 0


def read_dependency(text: str) -> tuple[list[int], list[str]]:
    """Return the jobs that must have succeeded, and the texts of other conditions.

    Raises:
        RefusalError: a condition contains no job IDs.
    """
    after: dict[int, None] = {}
    others: list[str] = []
    # With ?, one condition is sufficient, which has no counterpart.
    parts = [text] if "?" in text else text.split(",")
    for part in parts:
        kind, _, ids = part.partition(":")
        numbers = ids.split(":")
        if kind != "afterok" or "?" in text:
            others.append(part)
        elif all(n.isascii() and n.isdecimal() and len(n) < 19 and int(n) for n in numbers):
            after.update(dict.fromkeys(int(number) for number in numbers))
        else:
            raise RefusalError(phrase("slurm-not-a-job"), phrase("slurm-write-dependency"))
    return list(after), others


def read_signal(text: str) -> tuple[str, str, int]:
    """Return the recipient (``B``, ``R`` or empty), the signal, and the seconds before the end.

    Raises:
        RefusalError: the text is not a signal option.
    """
    match = _SIGNAL.fullmatch(text.upper())
    if match is None:
        raise RefusalError(phrase("slurm-not-a-signal"), phrase("slurm-write-signal"))
    return match[1] or "", match[2], int(match[3] or 60)


def read_moment(text: str, now: datetime | None) -> datetime | None:
    """Return a time, with times of day in UTC; None if it cannot be computed.

    Args:
        text: an ISO time, ``HH:MM[:SS]``, ``now`` or ``now+1hour``.
        now: the current time; None if unavailable.
    """
    lowered = text.lower()
    if match := _NOW.fullmatch(lowered):
        unit = (match[2] or "").removesuffix("s")
        if now is None or unit not in _UNITS:
            return None
        return now + timedelta(seconds=min(int(match[1] or 0), 10**8) * _UNITS[unit])
    if match := _CLOCK.fullmatch(lowered):
        return _next(now, int(match[1]), int(match[2]), int(match[3] or 0))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _next(now: datetime | None, hour: int, minute: int, second: int) -> datetime | None:
    if now is None or hour > 23 or minute > 59 or second > 59:
        return None
    today = now.astimezone(UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
    return today if today > now else today + timedelta(days=1)
