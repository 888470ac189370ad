"""Rendering of message values, words and phrases in the language of the page."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from django.utils import formats
from django.utils.safestring import SafeData
from django.utils.translation import gettext, ngettext, pgettext

from portal.i18n.language import is_english
from portal.i18n.phrases import PHRASES
from portal.i18n.vocabulary import VOCABULARY
from scheduling.compat.formats import TABLE as IMPORTERS
from scheduling.core.messages import TABLE as CORE
from tenants.messages import TENANTS
from tessera.messages import PLAIN, Sentence, Table, render

TEMPLATES: Final = Table(CORE, IMPORTERS, TENANTS)
"""The messages of all rooms."""


class Name(str):
    """A name given by a person, which is not translated."""

    __slots__ = ()


def translated(text: Any) -> Any:
    """Translate a message value, or a text that is in the catalogue as a whole.

    Args:
        text: the text; a ``Name``, safe HTML and other types are returned unchanged.
    """
    if not isinstance(text, str) or isinstance(text, SafeData | Name) or is_english():
        return text
    return _rendered(text) if isinstance(text, Sentence) else _exact(str(text))


class _Translated:
    """Renders the parts of a message in the language of the page."""

    def text(self, one: str, context: str = "") -> str:
        return pgettext(context, one) if context else gettext(one)

    def counted(self, one: str, many: str, number: int) -> str:
        return ngettext(one, many, number)

    def plain(self, words: str) -> str:
        """Return a text without a template, translated if the catalogue contains it."""
        return _exact(words)

    def moment(self, at: float) -> str:
        """Return the date in the format of the language, and the time in UTC."""
        moment = datetime.fromtimestamp(at, tz=UTC)
        return f"{formats.date_format(moment, 'DATE_FORMAT')} {moment:%H:%M:%S} UTC"


_TRANSLATED: Final = _Translated()


def _rendered(sentence: Sentence) -> str:
    try:
        return render(sentence.message, TEMPLATES, _TRANSLATED)
    except (KeyError, TypeError, ValueError):
        # The row was written by another version, whose template is missing or has other
        # parameters.
        return _exact(sentence.text)


def _exact(text: str) -> str:
    """Translate a text that is in the catalogue, in either case of its first letter."""
    for spelled in (text, text[:1].swapcase() + text[1:]):
        if spelled in _known():
            return gettext(spelled)
    return text


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """Return all texts that rows may contain without their code: words, phrases and templates."""
    whole = (
        template.one
        for code, template in TEMPLATES.items()
        if code != PLAIN and not template.names and not template.context
    )
    return frozenset((*VOCABULARY, *PHRASES, *whole))
