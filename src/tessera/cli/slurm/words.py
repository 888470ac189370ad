"""Slurm's names of states and reasons, and its time formats."""

import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from tessera.cli.exits import UsageError
from tessera.cli.output import moment
from tessera.reasons import ReasonCode

STATES: Final[Mapping[str, tuple[str, str]]] = {
    "queued": ("PD", "PENDING"),
    "admitted": ("CF", "CONFIGURING"),
    "starting": ("CF", "CONFIGURING"),
    "running": ("R", "RUNNING"),
    "suspect": ("R", "RUNNING"),
    "preempting": ("CG", "COMPLETING"),
    "stopping": ("CG", "COMPLETING"),
    "succeeded": ("CD", "COMPLETED"),
    "failed": ("F", "FAILED"),
    "stopped": ("CA", "CANCELLED"),
}
"""Slurm's short and long word by job state."""

_OF_FAILURE: Final[Mapping[str, tuple[str, str]]] = {
    "timeout": ("TO", "TIMEOUT"),
    "node": ("NF", "NODE_FAIL"),
    "preempted": ("PR", "PREEMPTED"),
    "resource-limit": ("OOM", "OUT_OF_MEMORY"),
}
_REASONS: Final[Mapping[str, str]] = {code: code.row.slurm for code in ReasonCode}

NODE_STATES: Final[Mapping[str, str]] = {
    "ready": "idle",
    "suspect": "unk",
    "down": "down",
    "cordoned": "drain",
    "draining": "drng",
}
LONG_NODE_STATES: Final[Mapping[str, str]] = {
    "idle": "idle",
    "mix": "mixed",
    "alloc": "allocated",
    "drain": "drained",
    "drng": "draining",
    "down": "down",
    "unk": "unknown",
}
"""Long word of a node state by its short word."""

IN_USE: Final = frozenset({"alloc", "mix"})
"""Short words for nodes with devices in use."""

ARRAY: Final = "slurm-array"
"""The label of tasks of an array, with the name of its script."""

_THROTTLED: Final = frozenset({ARRAY, "sweep"})
"""Labels of an array with a limit on parallel tasks; the other tasks are held."""
_DAY: Final = 86_400
_AGO: Final = re.compile(r"now(?:-([0-9]{1,6})(second|minute|hour|day|week)s?)?")
_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": _DAY, "week": 7 * _DAY}


def state_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the short and the long word for the state of a job."""
    state = str(body.get("state") or "")
    if state == "failed":
        return _OF_FAILURE.get(str(body.get("failure_class") or ""), STATES[state])
    return STATES.get(state, ("UK", state.upper()))


def reason_of(body: Mapping[str, Any]) -> str:
    """Return the reason why a job waits; ``None`` if it does not wait or has no reason yet."""
    reason = body.get("reason")
    if body.get("state") != "queued" or not isinstance(reason, Mapping):
        return "None"
    code = str(reason.get("code") or "")
    if code == "held" and set(body.get("labels") or ()) >= _THROTTLED:
        return "JobArrayTaskLimit"
    return _REASONS.get(code, code or "None")


def node_state(body: Mapping[str, Any]) -> str:
    """Return a node's state as in ``sinfo``: idle, mix or alloc while it is ready."""
    state = NODE_STATES.get(str(body.get("state")), "unk")
    in_use, devices = int(body.get("in_use") or 0), int(body.get("devices") or 0)
    if state == "idle" and in_use:
        return "alloc" if in_use >= devices else "mix"
    return state


def read_node_states(text: str) -> frozenset[str]:
    """Parse a list of node states into short words; ``drain`` matches both forms.

    Raises:
        UsageError: one is not known.
    """
    by_word = {short: {short} for short in LONG_NODE_STATES}
    by_word |= {long: {short} for short, long in LONG_NODE_STATES.items()}
    # As in Slurm, `drain` selects both states; `drained` and `draining` select one each.
    by_word["drain"] = {"drain", "drng"}
    wanted = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in by_word:
            raise UsageError(f"unknown state {word[:40]}; use one of {', '.join(by_word)}")
    return frozenset().union(*(by_word[word] for word in wanted))


def span(seconds: float | None) -> str:
    """Format a duration as ``[days-]hours:minutes:seconds``; hours are omitted if 0."""
    if seconds is None:
        return "UNLIMITED"
    whole = max(int(seconds), 0)
    days, rest = divmod(whole, _DAY)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def elapsed(body: Mapping[str, Any], now: datetime) -> str:
    """Return the run time of a job up to now or to its end."""
    started = moment(body.get("started_at"))
    if started is None:
        return "0:00"
    return span(((moment(body.get("finished_at")) or now) - started).total_seconds())


def read_moment(text: str, now: datetime) -> datetime:
    """Parse a time: an ISO time (local without an offset), ``today`` or ``now-2days``.

    Raises:
        UsageError: the text is not a valid time.
    """
    if text.lower() == "today":
        return now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        if match := _AGO.fullmatch(text.lower()):
            return now - timedelta(seconds=int(match[1] or 0) * _UNITS[match[2] or "second"])
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.astimezone()
    except (ValueError, OverflowError):  # the span reaches back before the year 1
        raise UsageError(
            f"{text[:40]} is not a valid time: use 2026-03-01T08:00 or now-2days"
        ) from None


def clock(value: object) -> str:
    """Format a local time like Slurm, or by ``SLURM_TIME_FORMAT`` (``%z``: the zone)."""
    found = moment(value)
    if found is None:
        return "N/A"
    asked = os.environ.get("SLURM_TIME_FORMAT", "")
    return found.astimezone().strftime(asked if "%" in asked else "%Y-%m-%dT%H:%M:%S")
