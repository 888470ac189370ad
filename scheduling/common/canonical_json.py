"""Canonical JSON: equal values give equal bytes, so that they can be compared by a hash."""

from collections.abc import Mapping
from typing import Any

import orjson


def canonical_json(value: object) -> bytes:
    """Return ``value`` as JSON with sorted keys, without spaces, in UTF-8; sets are sorted."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=_plain, option=options)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as canonical JSON")
