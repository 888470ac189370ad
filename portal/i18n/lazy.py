"""Lazy translation of module constants."""

from typing import cast

from django.utils import translation


def gettext_lazy(text: str) -> str:
    """Return Django's lazy translation, typed as ``str`` for tables of labels.

    Do not use it with ``str.join`` or ``isinstance``; ``str()`` returns the text in the active
    language.
    """
    return cast("str", translation.gettext_lazy(text))
