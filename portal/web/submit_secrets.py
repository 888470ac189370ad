"""Secrets in the form: names are in the text, values are posted separately and never returned.

A value in the form is posted with it; the text has a placeholder. A value that is written in the
text stays there, until the form has another.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from portal.web.job_text import plain
from portal.web.submit_fields import apply, roles_of, value_at
from portal.web.submit_text import Typed, with_changes
from scheduling.core.jobspec import REDACTED

_FIELD: Final = re.compile(r"roles\.([a-z][a-z0-9-]{0,31})\.secrets\.(.+)", re.DOTALL)
Keys = tuple[str, ...]


def secrets_of(document: object) -> dict[str, Keys]:
    """The secrets of a document's roles: the form's field with the keys that lead there."""
    found = ((role, value_at(document, ("roles", role, "secrets"))) for role in roles_of(document))
    keys = (
        ("roles", role, "secrets", str(name))
        for role, named in found
        if isinstance(named, Mapping)
        for name in named
    )
    return {".".join(each): each for each in keys}


def secrets_in(posted: Mapping[str, Any]) -> dict[str, Keys]:
    """Return the secrets whose fields were posted, in the order of the form."""
    found = ((name, _FIELD.fullmatch(name)) for name in posted)
    return {
        name: ("roles", match[1], "secrets", match[2])
        for name, match in found
        if match is not None
    }


def written_out(document: object) -> dict[str, str]:
    """Return an empty text for the field of each secret with a value in the text itself."""
    fields = secrets_of(document).items()
    return {name: "" for name, keys in fields if value_at(document, keys) != REDACTED}


def taken_out(posted: Mapping[str, str], document: object) -> list[tuple[Keys, object]]:
    """Return changes that replace values by placeholders where the form has values."""
    return [
        (keys, REDACTED)
        for _, keys, value in _given(posted, document)
        if value_at(document, keys) not in (REDACTED, value)
    ]


def filled_in(typed: Typed, posted: Mapping[str, str]) -> Typed:
    """Return the document with the form's values in place of the placeholders."""
    if typed.document is None or typed.imported is not None:
        return typed
    document = plain(typed.document)
    for _, keys, value in _given(posted, typed.document):
        if value_at(document, keys) == REDACTED:
            apply(document, keys, value)
    return replace(typed, filled=document)


def with_secret(typed: Typed, role: str, name: str) -> Typed:
    """Add one secret, without a value yet."""
    keys = ("roles", role, "secrets", name.strip())
    if not name.strip() or value_at(typed.document, keys) is not None:
        return typed
    return with_changes(typed, [(keys, REDACTED)])


def without_secret(typed: Typed, role: str, name: str) -> Typed:
    """Remove one secret."""
    return with_changes(typed, [(("roles", role, "secrets", name), None)])


def names_begun(posted: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return roles with names of secrets that were typed and not yet added."""
    for field, name in posted.items():
        if field.startswith(NEW) and name.strip():
            yield field.removeprefix(NEW), name


NEW: Final = "secret_name."
"""Begins the name of the field for a secret more; the role follows."""


def _given(posted: Mapping[str, str], document: object) -> Iterator[tuple[str, Keys, str]]:
    for name, keys in secrets_of(document).items():
        if value := posted.get(name):
            yield name, keys, value
