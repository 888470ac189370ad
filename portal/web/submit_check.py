"""Check of the typed text: faults with fields, lines and remedies, secrets, the validated job."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.i18n import translated
from portal.web.components import words
from portal.web.job_documents import plain
from portal.web.submit_fields import apply, fields_for, roles_of, value_at
from portal.web.submit_text import Typed, line_of, with_changes
from scheduling.core.jobspec import REDACTED
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.validation import InvalidJobError, ValidatedJob, check_draft
from tenants.errors import DomainError, FieldError
from tenants.viewers import Viewer
from tessera.messages import capitalised, message_of, placed
from tessera.reasons import ReasonCode

_FIELD: Final = re.compile(r"roles\.([a-z][a-z0-9-]{0,31})\.secrets\.(.+)", re.DOTALL)
Keys = tuple[str, ...]
NEW_NAME: Final = "secret_name."
"""Prefix of the field name for an additional secret; the role follows."""


_INDEX: Final = re.compile(r"\[\d+\]")
_AT_MOST: Final = re.compile(r"at most (\d+)")
_MEANT: Final = re.compile(r"Did you mean ([\w.-]+)\?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, as the page shows it.

    Attributes:
        field: the form's field; the path itself where the form has none.
        path: the path in the document.
        use: a valid value, if known.
        line: line number in the YAML, from 1.
    """

    field: str
    path: str
    message: str
    remedy: str
    use: str
    line: int | None

    def to_json(self) -> dict[str, Any]:
        """Serialise for the page's script, in the language of the page."""
        found: dict[str, Any] = {"field": self.field, "message": translated(self.message)}
        optional = {"remedy": translated(self.remedy), "use": self.use, "line": self.line}
        return found | {key: value for key, value in optional.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitCheck:
    """The result of a check: a validated job, or its faults."""

    typed: Typed
    draft: ValidatedJob | None
    faults: tuple[Fault, ...]


def check(
    typed: Typed,
    *,
    viewer: Viewer,
    submit_context: SubmitContext,
    also: tuple[FieldError, ...] = (),
) -> SubmitCheck:
    """Check the typed text as a submit would, and store nothing.

    Args:
        typed: the text and its parsed content.
        viewer: the submitter.
        submit_context: submit context.
        also: faults found before.
    """
    early = (*typed.faults, *also)
    if typed.complete is None or early:
        return SubmitCheck(typed=typed, draft=None, faults=_faults(typed, early, submit_context))
    try:
        draft = check_draft(document=typed.complete, viewer=viewer, submit_context=submit_context)
    except InvalidJobError as error:
        return SubmitCheck(
            typed=typed, draft=None, faults=_faults(typed, error.errors, submit_context)
        )
    except DomainError as error:
        fault = FieldError(field="virtual_cluster", message=error.message, remedy=error.remedy)
        return SubmitCheck(
            typed=typed, draft=None, faults=_faults(typed, (fault,), submit_context)
        )
    return SubmitCheck(typed=typed, draft=draft, faults=())


def faults_in_words(checked: SubmitCheck) -> str:
    """Return one line: the syntax error, or the number of faults with their lines."""
    if not checked.faults:
        return _("No errors")
    first = checked.faults[0]
    if "line" in message_of(first.message).params:
        return str(translated(first.message))
    lines = sorted({fault.line for fault in checked.faults if fault.line})
    count = words.plural(len(checked.faults), "error", "errors")
    if not lines:
        return count
    shape = _("%(count)s, line %(str)s") if len(lines) == 1 else _("%(count)s, lines %(str)s")
    return shape % {"count": count, "str": ", ".join(map(str, lines))}


def _faults(
    typed: Typed, errors: Sequence[FieldError], submit_context: SubmitContext
) -> tuple[Fault, ...]:
    names = {path.name for path in fields_for(roles_of(typed.document))}
    names |= secrets_of(typed.document).keys()
    faults = (
        Fault(
            field=_nearest(error.field, names),
            path=error.field,
            message=_sentence(error, names),
            remedy=error.remedy,
            use=_use(error, submit_context),
            line=line_of(typed.text, error),
        )
        for error in errors
    )
    # In the order of the text; those without a line come last.
    return tuple(sorted(faults, key=lambda fault: (fault.line is None, fault.line or 0)))


def _nearest(path: str, names: set[str]) -> str:
    """Return the form's field for ``path``."""
    at = _INDEX.sub("", path)
    while at:
        if at in names:
            return at
        at = at.rpartition(".")[0]
    return path


def _sentence(error: FieldError, names: set[str]) -> str:
    """Return the message, with the part of the path that the field does not show."""
    near = _nearest(error.field, names)
    rest = error.field.removeprefix(near).strip(".") if near in names else ""
    return placed(rest, error.message) if rest else capitalised(error.message)


def _use(error: FieldError, submit_context: SubmitContext) -> str:
    """Return a valid value, if the cluster has one."""
    known: Mapping[str, Sequence[str]] = {
        ReasonCode.UNKNOWN_VC: sorted(submit_context.clusters),
        ReasonCode.UNKNOWN_TYPE: sorted(submit_context.types),
    }
    if error.code in known:
        choices = known[error.code]
        close = difflib.get_close_matches(str(error.value), choices, n=1, cutoff=0)
        return close[0] if close else ""
    if error.code == ReasonCode.NO_CELL_OF_LEVEL and (match := _AT_MOST.search(error.remedy)):
        return match[1]
    if error.code == "malformed" and (match := _MEANT.search(error.remedy)):
        return match[1]
    return ""


def secrets_of(document: object) -> dict[str, Keys]:
    """Return the secrets of a document's roles: the form's field and the keys that lead to it.

    A value in the form is posted with it and never returned; the text has a placeholder. A value
    that is written in the text stays there, until the form has another.
    """
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
        for _name, keys, value in _given(posted, document)
        if value_at(document, keys) not in (REDACTED, value)
    ]


def filled_in(typed: Typed, posted: Mapping[str, str]) -> Typed:
    """Return the document with the form's values in place of the placeholders."""
    if typed.document is None or typed.imported is not None:
        return typed
    document = plain(typed.document)
    for _name, keys, value in _given(posted, typed.document):
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
    return with_changes(typed, [(("roles", role, "secrets", name), None)])


def names_begun(posted: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return roles with names of secrets that were typed and not yet added."""
    for field, name in posted.items():
        if field.startswith(NEW_NAME) and name.strip():
            yield field.removeprefix(NEW_NAME), name


def _given(posted: Mapping[str, str], document: object) -> Iterator[tuple[str, Keys, str]]:
    for name, keys in secrets_of(document).items():
        if value := posted.get(name):
            yield name, keys, value
