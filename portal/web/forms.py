"""Forms of pages: one-time tokens against repeated posts, and faults at their fields."""

import re
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeVar

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import QueryDict
from django.utils.crypto import salted_hmac

from portal.i18n import translated
from portal.web.viewing import PageRequest
from tenants.errors import DomainError, FieldError, ForbiddenError
from tenants.keyring import digest_key
from tenants.services import FormSentError, act_once
from tessera.messages import follow

T = TypeVar("T")
FIELD: Final = "once"
_WORD: Final = re.compile(r"[0-9a-f]{32}")
_SALT: Final = "portal.web.form_tokens"  # part of stored digests; do not change it
_NOT_SAID: Final = frozenset({FIELD, "csrfmiddlewaretoken"})


def new_once() -> str:
    """Return a new token for one form on one page."""
    return uuid.uuid4().hex


def once_of(form: QueryDict) -> str:
    """Return the token of a posted form; empty if missing or invalid."""
    word = form.get(FIELD, "")
    return word if _WORD.fullmatch(word) else ""


def make_once(asked: PageRequest, act: Callable[[], T], made_key: Callable[[T], int]) -> T:
    """Create the object of the posted form, unless this form has created it before.

    Args:
        asked: the request with the form.
        act: creates it; see ``tenants.services.act_once``.
        made_key: the primary key of the object.

    Raises:
        FormSentError: the form was sent before, with the same or other input.
    """
    form = asked.http.POST
    # Values such as an address with a key in it must not be guessable from it.
    said = repr(sorted((name, form.getlist(name)) for name in form.keys() - _NOT_SAID))
    return act_once(
        act,
        viewer=asked.viewer,
        word=once_of(form),
        digest=salted_hmac(_SALT, said, secret=digest_key(), algorithm="sha256").hexdigest(),
        made_key=made_key,
        now=asked.now,
    )


def made_before(error: DomainError) -> int | None:
    """Return the key of the object that this form has created with the same input; else None."""
    return error.made if isinstance(error, FormSentError) and error.is_same else None


def put_faults(
    form: forms.BaseForm, error: DomainError, fields: Mapping[str, str] | None = None
) -> None:
    """Add every fault of ``error`` to its field, or to the whole form if it has none.

    Args:
        form: bound and validated.
        error: the error of the service.
        fields: the form's name for a field of the service where the two differ.

    Raises:
        ForbiddenError: ``error`` is a ForbiddenError, which other input cannot avoid.
    """
    if isinstance(error, ForbiddenError):
        raise error
    for fault in error.errors:
        name = (fields or {}).get(fault.field, fault.field.partition(".")[0].partition("[")[0])
        fault_of_field = ValidationError(fault_text(fault), code=fault.code or error.code)
        form.add_error(name if name in form.fields else None, fault_of_field)


def status_of(form: forms.BaseForm) -> HTTPStatus:
    """Return the status of a page with a form: 422 for invalid input.

    409 for a form that was sent before with other input.
    """
    if form.has_error(NON_FIELD_ERRORS, FormSentError.code):
        return HTTPStatus.CONFLICT
    return HTTPStatus.UNPROCESSABLE_ENTITY if form.errors else HTTPStatus.OK


def fault_text(fault: FieldError) -> str:
    """Return fault and remedy as one text."""
    return follow(fault.message, fault.remedy)


def error_text(error: DomainError) -> str:
    """Return all faults of an error in one text, in the language of the page."""
    return str(translated(follow(*map(fault_text, error.errors))))


def shown_version(text: str) -> int | None:
    """Return the version of a posted form; None if missing. An invalid version matches no row."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1
