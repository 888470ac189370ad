"""Idempotent forms: each rendered form carries a one-time token."""

import re
import uuid
from collections.abc import Callable
from typing import Final, TypeVar

from django.http import QueryDict
from django.utils.crypto import salted_hmac

from portal.web.viewing import PageRequest
from tenants.errors import DomainError
from tenants.services import FormSentError, act_once

T = TypeVar("T")
FIELD: Final = "once"
_WORD: Final = re.compile(r"[0-9a-f]{32}")
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
        FormSentError: it has created it, or something else with other input.
    """
    form = asked.http.POST
    # Values such as an address with a key in it must not be guessable from it.
    said = repr(sorted((name, form.getlist(name)) for name in form.keys() - _NOT_SAID))
    return act_once(
        act,
        viewer=asked.viewer,
        word=once_of(form),
        digest=salted_hmac("portal.web.form_tokens", said, algorithm="sha256").hexdigest(),
        made_key=made_key,
        now=asked.now,
    )


def made_before(error: DomainError) -> int | None:
    """Return the key of the object that this form has created with the same input; else None."""
    return error.made if isinstance(error, FormSentError) and error.is_same else None
