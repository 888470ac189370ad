"""Checks of values that several kinds of edits have in common."""

import re
from collections.abc import Mapping
from typing import Final

from scheduling.core.messages import sentence
from tenants.errors import FieldError
from tessera.messages import plain

REASON_LENGTH: Final = 500
MOST_LABELS: Final = 32
_LABEL_KEY: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


def reason_errors(reason: object, *, field: str = "reason") -> list[FieldError]:
    """Check a reason entered by a person, and return its errors."""
    if isinstance(reason, str) and 0 < len(reason.strip()) <= REASON_LENGTH and _is_text(reason):
        return []
    return [
        FieldError(
            field=field,
            value=reason,
            message=sentence("not-reason"),
            remedy=sentence("give-reason", most=REASON_LENGTH),
        )
    ]


def text_errors(
    value: object, *, field: str, longest: int, empty: bool = True
) -> list[FieldError]:
    """Check a text of one or more lines, and return its errors."""
    is_given = isinstance(value, str) and (empty or bool(value.strip()))
    if is_given and len(str(value)) <= longest and _is_text(str(value)):
        return []
    name = field.replace("_", " ")
    return [
        FieldError(
            field=field,
            value=value,
            message=sentence("not-text", name=plain(name)),
            remedy=sentence("use-up-to-characters" if empty else "use-characters", most=longest),
        )
    ]


def label_errors(labels: object) -> list[FieldError]:
    """Check labels, a mapping of short names to short texts, and return the errors."""
    if not isinstance(labels, Mapping) or len(labels) > MOST_LABELS:
        return [
            FieldError(
                field="labels",
                value=labels,
                message=sentence("not-labels", most=MOST_LABELS),
                remedy=sentence("use-label-object"),
            )
        ]
    return [
        FieldError(
            field=f"labels.{key}",
            value=value,
            message=sentence("not-label"),
            remedy=sentence("use-labels"),
        )
        for key, value in labels.items()
        if not (
            isinstance(key, str)
            and _LABEL_KEY.fullmatch(key)
            and isinstance(value, str)
            and len(value) <= 255
            and value.isprintable()
        )
    ]


def count_errors(value: object, *, field: str, most: int = 1_000_000) -> list[FieldError]:
    """Check a count, or None for no bound, and return its errors."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    if value is None or is_count:
        return []
    return [
        FieldError(
            field=field,
            value=value,
            message=sentence("not-device-count"),
            remedy=sentence("give-number-or-null", most=format(most, ",")),
        )
    ]


def _is_text(value: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in value)
