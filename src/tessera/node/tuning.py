"""Validation of training settings for a running job: see ``tessera.train.control``."""

from __future__ import annotations

from typing import Any, Dict, List

from tessera.wire import Fields

MOST_MEMBERS = 10_000
MOST_PROCESSES = 4_096
MOST_WORKERS = 1 << 20


def checked(take: Fields) -> Dict[str, Any]:
    """Validate the settings of a request.

    Raises:
        tessera.wire.ProtocolError: one is of a wrong type, out of range, or unknown.
    """
    inner = take.inner("settings")
    if inner is None:
        raise take.refuse("settings", "must be an object")
    found: Dict[str, Any] = {
        "batch": inner.optional_integer("batch", 1, 1 << 40),
        "accumulation": inner.optional_integer("accumulation", 1, 1 << 40),
        "throttle": inner.optional_number("throttle", 0.0, 1.0),
        "layout": _layout(inner),
    }
    inner.finish()
    return {name: value for name, value in found.items() if value is not None}


def _layout(take: Fields) -> Any:
    """Return the logical workers of each process, one list for each member, or None."""
    found = take.raw("layout")
    if found is None:
        return None
    if not isinstance(found, list) or not 0 < len(found) <= MOST_MEMBERS:
        raise take.refuse("layout", "must be a list of lists")
    for member in found:
        _check_member(take, member)
    return found


def _check_member(take: Fields, member: Any) -> None:
    counts: List[Any] = member if isinstance(member, list) else []
    right = all(type(count) is int and 0 <= count <= MOST_WORKERS for count in counts)
    if not 0 < len(counts) <= MOST_PROCESSES or not right:
        raise take.refuse("layout", "must contain numbers of logical workers")
