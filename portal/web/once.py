"""A form that is sent twice does its work once: it carries a word that is its own."""

import re
import uuid
from typing import Final

from django.http import QueryDict

FIELD: Final = "once"
_WORD: Final = re.compile(r"[0-9a-f]{32}")


def new_once() -> str:
    """A word for one form on one page."""
    return uuid.uuid4().hex


def once_of(form: QueryDict) -> str:
    """The word that a form was sent with; empty where there is none, or no such word."""
    word = form.get(FIELD, "")
    return word if _WORD.fullmatch(word) else ""
