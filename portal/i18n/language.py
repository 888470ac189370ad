"""English, the language of the source, and lazy translation of constants."""

from typing import Final, cast

from django.utils import translation
from django.utils.translation import get_language, trans_real

SOURCE: Final = "en"


class SourceTranslation(trans_real.DjangoTranslation):
    """Returns English messages unchanged.

    Django would search its English catalogs, which are empty, one by one for each message.
    """

    def gettext(self, message: str) -> str:
        """Return the message."""
        return message

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        """Return the form of the message for a number."""
        return msgid1 if n == 1 else msgid2


def use_source_translation() -> None:
    """Render English without catalogs in this process."""
    trans_real._translations[SOURCE] = SourceTranslation(SOURCE)  # type: ignore[attr-defined]


def is_english() -> bool:
    """Return whether the language of the page is English, the source language."""
    return (get_language() or SOURCE).split("-")[0] == SOURCE


def gettext_lazy(text: str) -> str:
    """Return Django's lazy translation, typed as ``str`` for tables of labels.

    Do not use it with ``str.join`` or ``isinstance``; ``str()`` returns the text in the active
    language.
    """
    return cast("str", translation.gettext_lazy(text))
