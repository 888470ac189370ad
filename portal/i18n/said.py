"""Translation of finished English sentences to the language of the page.

Reasons, states and units come from code without a language: the core, stored rows, modules of the
pages. A catalogue has their shapes, with a name for each fact; a sentence of such a shape is
translated with the same facts. A fact of several words is translated as well, and one whose name
begins with ``word``; all others are names and numbers and remain unchanged.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from django.utils import formats
from django.utils.safestring import SafeData
from django.utils.translation import get_language, gettext, ngettext, pgettext

from portal.i18n.catalogue import SENTENCES
from portal.i18n.language import is_english
from scheduling.compat.formats import TABLE as IMPORTERS
from scheduling.core.messages import TABLE as CORE
from tenants.messages import TENANTS
from tessera.messages import Sentence, Table, render

TEMPLATES: Final = Table(CORE, IMPORTERS, TENANTS)
"""The messages of all rooms."""

_FACT: Final = re.compile(r"%\((\w+)\)s")
_LETTERS: Final = re.compile(r"[A-Za-z]{2}")
_ENDS: Final = (".", "?")
_SENTENCE_END: Final = re.compile(r"(?<=[.;?]) (?=[A-Z])")
_LONGEST: Final = 2000
_LONGEST_SHAPED: Final = 600
"""Shapes of several facts take the third power of a sentence's length, where they nearly fit."""
_DEEPEST: Final = 4
_WORD: Final = "word"
_WHOLE: Final = "whole"
"""A fact of this name is a whole number and nothing else."""
_KEY: Final = "key"
"""A fact of this name is one word, such as a key of a document."""
_ENGLISH: Final = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")


class Name(str):
    """A name given by people, which is not translated."""

    __slots__ = ()


def said(text: Any) -> Any:
    """Translate ``text``; without a translation it is returned unchanged.

    Args:
        text: an English sentence or word; any other type is returned unchanged,
            and so is a ``Name``.
    """
    if not isinstance(text, str) or isinstance(text, SafeData | Name) or is_english():
        return text
    if isinstance(text, Sentence):
        return _rendered(text)
    if len(text) > _LONGEST or not _LETTERS.search(text):
        return text
    return _said(get_language() or "en", str(text), _DEEPEST)


class _Translated:
    """Return the text of a message in the language of the page."""

    def text(self, one: str, context: str = "") -> str:
        """Translate by gettext."""
        return pgettext(context, one) if context else gettext(one)

    def counted(self, one: str, many: str, number: int) -> str:
        """Translate by gettext's plurals."""
        return ngettext(one, many, number)

    def plain(self, words: str) -> str:
        """Return a text without a template; unknown sentences are matched by shape."""
        return str(said(words))

    def moment(self, at: float) -> str:
        """The date as the language writes it, and the time in UTC."""
        moment = datetime.fromtimestamp(at, tz=UTC)
        return f"{formats.date_format(moment, 'DATE_FORMAT')} {moment:%H:%M:%S} UTC"


_TRANSLATED: Final = _Translated()


def _rendered(sentence: Sentence) -> str:
    try:
        return render(sentence.message, TEMPLATES, _TRANSLATED)
    except (KeyError, TypeError, ValueError):
        # A row of another version, with a template that is gone or has other parameters.
        return str(said(sentence.text))


@lru_cache(maxsize=8192)
def _said(language: str, text: str, depth: int) -> str:
    return (
        _by_parts(language, text, depth)
        or _whole(language, text, depth)
        or _by_sentences(language, text, depth)
        or text
    )


def _whole(language: str, text: str, depth: int) -> str | None:
    for spelled in (text, text[:1].swapcase() + text[1:]):
        stripped = spelled.strip()
        known = _known(stripped) or _shaped(language, stripped, depth)
        if known is not None:
            return spelled.replace(stripped, known, 1)
    return None


def _known(text: str) -> str | None:
    if text not in _plain():
        return None
    return gettext(text)


def _shaped(language: str, text: str, depth: int) -> str | None:
    if len(text) > _LONGEST_SHAPED:
        return None
    for pattern, msgid in _shapes(text.split(" ", 1)[0]):
        if found := pattern.fullmatch(text):
            facts = {
                key: _fact(language, key, fact, depth) for key, fact in found.groupdict().items()
            }
            if msgid.endswith(_ENDS) or not any(map(_ENGLISH.search, facts.values())):
                return gettext(msgid) % facts
    return None


def _fact(language: str, key: str, fact: str, depth: int) -> str:
    """Translate a fact that is a phrase or a word; a name has no spaces."""
    if depth <= 1 or (" " not in fact and not key.startswith(_WORD)):
        return fact
    return _said(language, fact, depth - 1)


def _by_parts(language: str, text: str, depth: int) -> str | None:
    """Translate a list, ``7 idle, 3 lent``, of known parts."""
    parts = text.split(", ")
    if len(parts) < 2 or depth <= 1 or text in _plain():
        return None
    if parts[-1].endswith(_ENDS) and not _LETTERS.search(parts[-1]):
        return None  # a number or a digest at the end of a sentence is not part of a list
    told = [
        part if not _LETTERS.search(part) else _whole(language, part, depth - 1) for part in parts
    ]
    if not all(told):
        return None
    return gettext(", ").join(part or "" for part in told)


def _by_sentences(language: str, text: str, depth: int) -> str | None:
    parts = _SENTENCE_END.split(text)
    if len(parts) < 2 or depth <= 1:
        return None
    told = [_whole(language, part, depth - 1) for part in parts]
    if not any(told):
        return None
    return "".join(new or f"{part} " for part, new in zip(parts, told, strict=True))


@lru_cache(maxsize=1)
def _plain() -> frozenset[str]:
    return frozenset(msgid for msgid in SENTENCES if not _FACT.search(msgid))


def _shapes(word: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    by_word = _by_first_word()
    return (*by_word.get(word, ()), *by_word.get("", ()))


@lru_cache(maxsize=1)
def _by_first_word() -> dict[str, tuple[tuple[re.Pattern[str], str], ...]]:
    """Index shapes by their first word, the most literal first; by "" where a fact comes first."""
    shapes: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    shaped = [msgid for msgid in SENTENCES if _FACT.search(msgid)]
    for msgid in sorted(shaped, key=_strictest):
        first = msgid.split(" ", 1)[0]
        key = "" if "%" in first else first
        shapes.setdefault(key, []).append((_pattern(msgid), msgid))
    return {word: tuple(found) for word, found in shapes.items()}


def _strictest(msgid: str) -> tuple[int, bool, str]:
    """Sort key: the most literal first, then numbers; independent of the order of a set."""
    return -len(_FACT.sub("", msgid)), f"%({_WHOLE})s" not in msgid, msgid


def _pattern(msgid: str) -> re.Pattern[str]:
    pieces = _FACT.split(msgid)
    written = [
        f"(?P<{piece}>{_signs(piece, pieces[place - 1])})"
        if place % 2
        else re.escape(piece.replace("%%", "%"))
        for place, piece in enumerate(pieces)
    ]
    return re.compile("".join(written), re.DOTALL)


def _signs(fact: str, before: str) -> str:
    """Return the pattern of a fact; one directly behind a letter is an optional ending."""
    if fact == _WHOLE:
        return "[0-9,]+"
    if fact == _KEY:
        return r"\S+"
    return ".*?" if before[-1:].isalnum() else ".+?"
