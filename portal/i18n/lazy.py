"""Lazy translation of module constants."""

from typing import cast

from django.utils import translation


def gettext_lazy(text: str) -> str:
    """Django's ``gettext_lazy``, typed as ``str`` for tables of labels.

    Not for ``str.join`` and ``isinstance``; ``str()`` gives the text in the active language.
    """
    return cast("str", translation.gettext_lazy(text))
