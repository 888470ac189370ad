"""Changes of a stored document by field path."""

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from scheduling.core.messages import sentence

AMENDABLE: Final = re.compile(
    r"virtual_cluster|class|priority|max_duration|note|held|not_before|after"
    r"|roles\.[^.]{1,64}\.(?:instances|devices|device_types|within|pinned_cell|cpus|memory)"
)
"""Paths of fields that can be amended while a job waits; other changes need a new job."""


class AmendError(ValueError):
    """A change that is not possible.

    Attributes:
        path: path of the field.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


def version_of(document: Mapping[str, Any]) -> str:
    """Return the version tag of a stored specification; every amendment changes it."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def amended(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``document`` with new values; None removes a field.

    Raises:
        AmendError: a path cannot be amended, or does not exist.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for path, value in changes.items():
        if not isinstance(path, str) or not AMENDABLE.fullmatch(path):
            raise AmendError(str(path)[:100], sentence("not-changeable"))
        *parents, name = path.split(".")
        place: Any = changed
        for parent in parents:
            place = place.get(parent) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise AmendError(path, sentence("no-such-field"))
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    if changes.get("class") == "opportunistic":
        changed.pop("priority", None)
    return changed
