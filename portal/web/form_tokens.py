"""A form that is sent twice does its work once: it carries a word that is its own."""

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
    """A word for one form on one page."""
    return uuid.uuid4().hex


def once_of(form: QueryDict) -> str:
    """The word that a form was sent with; empty where there is none, or no such word."""
    word = form.get(FIELD, "")
    return word if _WORD.fullmatch(word) else ""


def make_once(asked: PageRequest, act: Callable[[], T], made_key: Callable[[T], int]) -> T:
    """Make what the posted form asks for, unless this very form has made it before.

    Args:
        asked: with the form.
        act: makes it; see ``tenants.services.act_once``.
        made_key: the key of what was made.

    Raises:
        FormSentError: it has, or has made something else with other words in it.
    """
    form = asked.http.POST
    # Nobody should guess from it what was written, such as an address with a key in it.
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
    """The key of what this form has made before, where it says the same as then; else None."""
    return error.made if isinstance(error, FormSentError) and error.is_same else None
