"""Faults of a service, shown at the fields of the posted form."""

from collections.abc import Mapping
from http import HTTPStatus

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from portal.i18n import translated
from tenants.errors import DomainError, FieldError, ForbiddenError
from tenants.services import FormSentError
from tessera.messages import follow


def put_faults(
    form: forms.BaseForm, error: DomainError, fields: Mapping[str, str] | None = None
) -> None:
    """Add every fault of ``error`` to its field, or to the whole form if it has none.

    Args:
        form: bound and validated.
        error: what the service raised.
        fields: the form's name for a field of the service where the two differ.

    Raises:
        ForbiddenError: ``error`` is one: no other value would help.
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
    """All faults of an error in one text, in the language of the page."""
    return str(translated(follow(*map(fault_text, error.errors))))


def shown_version(text: str) -> int | None:
    """Return the version of a posted form; None if missing; an invalid one matches none."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1
