"""Messages as values: a code with parameters, tables of English templates, and rendering.

Code with something to report returns a ``Message`` and does not format text. A table maps each
code to
an English template; ``render`` inserts the parameters, in a given language. For the
stored form see ADR 57.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, reduce
from typing import Any, Final, Literal, Protocol, Union

Parameter = Union[str, int, float, "Message", "Listing", "Moment"]
"""Values of parameters: names and numbers are unchanged, others rendered by language."""

StoredMessage = Mapping[str, Any] | str
"""The output of ``Message.to_json``, or the text of a plain message."""

PLAIN: Final = "text"
"""Code of a message that is only a text, written by a policy or a person."""

_PLAIN_TYPES: Final = frozenset({str, int})
"""Types of parameters with which equal parameters have equal texts; 1 and True are equal."""

_KNOWN: Final = 1024
"""Sentences with plain parameters that a table caches."""

_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)")


@dataclass(frozen=True, slots=True)
class Message:
    """A report independent of language.

    Attributes:
        code: key of a template.
        params: values by the names of the template's parameters.
    """

    code: str
    params: Mapping[str, Parameter] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form; ``message_from`` reads it."""
        return {
            "code": self.code,
            "params": {name: _to_json(value) for name, value in self.params.items()},
        }


@dataclass(frozen=True, slots=True)
class Listing:
    """Several parameters in a row.

    Attributes:
        items: the items in order; at least one.
        word: the conjunction; commas if empty.
    """

    items: tuple[Parameter, ...]
    word: Literal["", "and", "or"] = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, in seconds since the epoch."""

    at: float


def plain(text: str) -> Message:
    """Build the message of a text that has no template."""
    return Message(PLAIN, {"text": text})


class Sentence(str):
    """The English text of a message, and the message for readers of other languages."""

    _message: "Message | StoredMessage"

    def __new__(cls, text: str, message: "Message | StoredMessage") -> "Sentence":
        """Args: message: or its stored form, read on first use: English needs no message."""
        made = super().__new__(cls, text)
        made._message = message
        return made

    @property
    def message(self) -> Message:
        """The message.

        Raises:
            TypeError: the stored form is not one of a message.
        """
        if not isinstance(self._message, Message):
            self._message = message_from(self._message)
        return self._message

    def __str__(self) -> str:
        """Return the sentence itself, so that a conversion to text preserves the message."""
        return self

    @property
    def text(self) -> str:
        """The English text."""
        return str.__str__(self)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form; ``sentence_from`` reads it."""
        return {**self.message.to_json(), "text": self.text}

    def __getnewargs__(self) -> tuple[str, Message]:  # type: ignore[override]
        """Preserve the message in copies and pickles."""
        return self.text, self.message


def follow(*texts: str) -> str:
    """Join sentences, without empty ones."""
    given = [text for text in texts if text]
    if not given:
        return ""
    return reduce(
        lambda first, then: Sentence(
            f"{first} {then}",
            Message("then", {"first": message_of(first), "then": message_of(then)}),
        ),
        given,
    )


def placed(place: str, fault: str) -> str:
    """Prefix a fault with its place in a document."""
    return Sentence(
        f"{place}: {fault}", Message("placed", {"place": place, "fault": message_of(fault)})
    )


def capitalised(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    words = text[:1].upper() + text[1:]
    return Sentence(words, text.message) if isinstance(text, Sentence) else words


def english_of(words: str) -> str:
    """Return a plain text, for writers of documents that refuse a subclass of ``str``."""
    return words.text if isinstance(words, Sentence) else words


def message_of(words: str) -> Message:
    """Return the message of a sentence; of any other text, a plain message."""
    return words.message if isinstance(words, Sentence) else plain(words)


@dataclass(frozen=True, slots=True)
class Template:
    """The English text of a message.

    Attributes:
        one: text with ``%(name)s`` for each parameter; the singular if there is a plural.
        many: the plural; empty if there is one form only.
        by: the parameter whose number chooses the form.
        context: distinguishes equal English texts for translators; empty if not needed.
        names: all parameters.
    """

    one: str
    many: str = ""
    by: str = ""
    context: str = ""
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = frozenset(_PLACEHOLDER.findall(self.one + self.many))
        object.__setattr__(self, "names", names | {self.by} if self.by else names)


def fixed(one: str, context: str = "") -> Template:
    """Create a template with one form; gettext collects calls of this function."""
    return Template(one, context=context)


def counted(one: str, many: str, by: str = "n") -> Template:
    """Create a template with a singular and a plural; gettext collects calls of this function."""
    return Template(one, many, by)


BASE: Final[Mapping[str, Template]] = {
    PLAIN: Template("%(text)s"),
    "placed": fixed("%(place)s: %(fault)s"),
    "then": fixed("%(first)s %(then)s"),
    "list": fixed(", "),
    "list-and": fixed("%(one)s and %(other)s"),
    "list-or": fixed("%(one)s or %(other)s"),
}


class Renderer(Protocol):
    """Source of rendered texts."""

    def text(self, one: str, context: str = "") -> str:
        """Return the text of a template with one form."""

    def counted(self, one: str, many: str, number: int) -> str:
        """Return the form of a template for a number."""

    def plain(self, words: str) -> str:
        """Return a text without a template."""

    def moment(self, at: float) -> str:
        """Format a point in time, in seconds since the epoch."""


class English:
    """The language of the templates."""

    def text(self, one: str, context: str = "") -> str:
        return one

    def counted(self, one: str, many: str, number: int) -> str:
        return one if number == 1 else many

    def plain(self, words: str) -> str:
        return words

    def moment(self, at: float) -> str:
        """Format a time as ``23 Nov 2026 11:02:00 UTC``."""
        return datetime.fromtimestamp(at, tz=UTC).strftime("%d %b %Y %H:%M:%S UTC")


ENGLISH: Final = English()


class Table(Mapping[str, Template]):
    """The templates of a room by code, with those of the rooms below it.

    Raises:
        ValueError: a code has more than one template.
    """

    def __init__(self, *parts: Mapping[str, Template]) -> None:
        self._templates: dict[str, Template] = {}
        for part in parts:
            twice = [
                code
                for code, template in part.items()
                if self._templates.get(code, template) is not template
            ]
            if twice:
                raise ValueError(f"more than one template for {', '.join(sorted(twice))}")
            self._templates.update(part)
        self._known = lru_cache(maxsize=_KNOWN)(self._make)

    def __getitem__(self, code: str) -> Template:
        return self._templates[code]

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)

    def __len__(self) -> int:
        return len(self._templates)

    def message(self, code: str, /, **params: Parameter) -> Message:
        """Build the message of a code of this table.

        Raises:
            KeyError: the table has no such code.
            TypeError: the parameters are not those of the template.
        """
        if params.keys() != self._templates[code].names:
            wanted = ", ".join(sorted(self._templates[code].names)) or "no parameters"
            raise TypeError(f"message {code} takes {wanted}, not {', '.join(sorted(params))}")
        return Message(
            code,
            {
                name: value.message
                if isinstance(value, Sentence) and value.message.code in self
                else value
                for name, value in params.items()
            },
        )

    def english(self, message: Message) -> str:
        """Return the English text of a message.

        Raises:
            KeyError: the table has no such code, or a parameter is missing.
        """
        return render(message, self, ENGLISH)

    def sentence(self, message: Message | str, /, **params: Parameter) -> Sentence:
        """Return a message, or that of a code, as translatable English text.

        Raises:
            KeyError: the table has no such code.
            TypeError: the parameters are not those of the template.
        """
        if not isinstance(message, str):
            return Sentence(self.english(message), message)
        if all(type(value) in _PLAIN_TYPES for value in params.values()):
            # Parsers prepare the remedies of faults that most documents do not have.
            return self._known(message, *params.items())
        found = self.message(message, **params)
        return Sentence(self.english(found), found)

    def _make(self, code: str, *params: tuple[str, str | int]) -> Sentence:
        found = self.message(code, **dict(params))
        return Sentence(self.english(found), found)


def render(message: Message, templates: Mapping[str, Template], language: Renderer) -> str:
    """Return the text of a message in a language.

    A sentence that begins with a nested phrase begins with a capital letter.

    Raises:
        KeyError: the code has no template, or a parameter of the template is missing.
    """
    params = message.params
    if message.code == PLAIN:
        return language.plain(str(params["text"]))
    template = templates[message.code]
    if template.many:
        number = params[template.by]
        if not isinstance(number, int):
            raise KeyError(f"{template.by} of message {message.code} is not a whole number")
        pattern = language.counted(template.one, template.many, number)
    else:
        pattern = language.text(template.one, template.context)
    if not template.names:
        return pattern
    words = pattern % {
        name: value if isinstance(value, int | float) else _words(value, templates, language)
        for name, value in params.items()
    }
    first = _PLACEHOLDER.match(pattern) if pattern.endswith(".") else None
    if first is None or not isinstance(params[first[1]], Message | Listing):
        return words
    return words[:1].upper() + words[1:]


def _words(value: Parameter, templates: Mapping[str, Template], language: Renderer) -> str:
    if isinstance(value, Sentence):
        # The message may be of another room, whose table only the edge has.
        return value.text if language is ENGLISH else render(value.message, templates, language)
    if isinstance(value, Message):
        return render(value, templates, language)
    if isinstance(value, Moment):
        return language.moment(value.at)
    if not isinstance(value, Listing):
        return str(value)
    words = [_words(item, templates, language) for item in value.items]
    if not value.word:
        return language.text(BASE["list"].one).join(words)
    pattern = language.text(BASE[f"list-{value.word}"].one)
    return reduce(lambda one, other: pattern % {"one": one, "other": other}, words)


def message_from(document: Any) -> Message:
    """Read the output of ``Message.to_json`` or an orjson dump of a message, or a plain text.

    Raises:
        TypeError: the document is neither.
    """
    if isinstance(document, str):
        return plain(document)
    found = _from_json(document)
    if not isinstance(found, Message):
        raise TypeError(f"not a message: {document!r}")
    return found


def stored_words(words: str) -> Any:
    """Return the stored form of a sentence, or of a plain text; ``sentence_from`` reads it."""
    return words.to_json() if isinstance(words, Sentence) else words


def sentence_from(document: Any) -> str:
    """Read a stored message with its English text; older rows have only a text."""
    if isinstance(document, str):
        return document
    return Sentence(str(document["text"]), document)


def _to_json(value: Parameter) -> Any:
    if isinstance(value, Sentence):
        return value.message.to_json()
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, Listing):
        return {"items": [_to_json(item) for item in value.items], "word": value.word}
    if isinstance(value, Moment):
        return {"at": value.at}
    return value


def _from_json(document: Any) -> Parameter:
    if isinstance(document, str | int | float):
        return document
    if isinstance(document, Mapping):
        if "code" in document:
            params = document.get("params", {})
            return Message(
                str(document["code"]), {name: _from_json(value) for name, value in params.items()}
            )
        if "items" in document:
            items = tuple(_from_json(item) for item in document["items"])
            return Listing(items, document.get("word", ""))
        if "at" in document:
            return Moment(document["at"])
    raise TypeError(f"not a parameter of a message: {document!r}")
