"""Parsers of JSON and YAML with size limits, and with line and column in errors.

YAML is parsed as version 1.2, in which ``no``, ``on``, ``1:30`` and dates are strings. A country
code or a time of day therefore stays unchanged.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml

from scheduling.compat.messages import SHARED, phrase
from scheduling.compat.result import ImportRefusedError
from scheduling.core.jobspec import MAX_SPEC_BYTES, FieldError
from scheduling.core.jobspec.errors import HIDDEN, TELLTALE, show
from tessera.messages import Message, plain

MAX_DEPTH: Final = 50
MAX_YAML_BYTES: Final = 1 << 20
MAX_YAML_VALUES: Final = 100_000
"""Values of a YAML document with its aliases written out; reading one costs about 10 µs."""
MAX_JSON_VALUES: Final = 500_000

_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR_TAG: Final = "tag:yaml.org,2002:str"
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,39})")
_FLOAT: Final = re.compile(
    r"[-+]?(?:[0-9]{1,40}\.[0-9]{0,40}|\.?[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?"
)
_PROBLEMS: Final = {
    template.one: code for code, template in SHARED.items() if code.startswith("yaml-")
}
"""Codes of messages by frequent error texts of the YAML parser."""

_JSON_TYPES: Final = frozenset({"application/json", "text/json"})


def parse_document(
    text: str | bytes, content_type: str = "", *, max_bytes: int = MAX_SPEC_BYTES
) -> Any:
    """Parse one JSON or YAML document.

    Args:
        text: the document in UTF-8.
        content_type: a JSON type selects the JSON parser, all others the YAML parser (JSON is
            valid YAML).
        max_bytes: maximum size of the document; of YAML at most ``MAX_YAML_BYTES``.

    Returns:
        Dictionaries with string keys, lists, strings, numbers, booleans and None.

    Raises:
        ImportRefusedError: the text is not a valid document; the message contains line and column.
    """
    if is_json(content_type):
        return _read_json(decode_text(text, max_bytes=max_bytes))
    return _read_yaml(decode_text(text, max_bytes=min(max_bytes, MAX_YAML_BYTES)))


def is_json(content_type: str) -> bool:
    """Return whether a content type selects the JSON parser."""
    media = content_type.partition(";")[0].strip().lower()
    return media in _JSON_TYPES or media.endswith("+json")


def decode_text(text: str | bytes, *, max_bytes: int = MAX_SPEC_BYTES) -> str:
    """Return the decoded text.

    Raises:
        ImportRefusedError: the text is larger than ``max_bytes``, or not valid UTF-8.
    """
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        _refuse(
            phrase("import-too-large", size=size, most=max_bytes),
            phrase("import-shorten"),
            "too-long",
        )
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse(phrase("import-not-utf8", byte=error.start), phrase("import-save-utf8"))


def _refuse(message: str, remedy: str, code: str = "malformed", shown: object = None) -> NoReturn:
    value = "" if shown is None else show(shown)
    raise ImportRefusedError(
        [FieldError(field="", value=value, message=message, remedy=remedy, code=code)]
    )


def _read_json(text: str) -> Any:
    try:
        found = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite
        )
        is_too_deep = _is_too_deep(found)
    except json.JSONDecodeError as error:
        _refuse(
            phrase("import-not-json", problem=error.msg, line=error.lineno, column=error.colno),
            phrase("import-correct-json"),
            shown=_line(text, error.lineno - 1),
        )
    except RecursionError:
        is_too_deep = True
    except ValueError as error:
        if isinstance(error, ImportRefusedError):
            raise
        _refuse(phrase("import-number-too-long"), phrase("import-write-smaller"))
    if is_too_deep:
        _refuse(phrase("import-too-deep"), phrase("import-nest-less", most=MAX_DEPTH))
    return found


def _is_too_deep(document: Any) -> bool:
    """Return whether objects and lists are nested more than ``MAX_DEPTH`` levels deep.

    Raises:
        ImportRefusedError: the document has more than ``MAX_JSON_VALUES`` values.
    """
    level, values = [document], 0
    for _ in range(MAX_DEPTH + 1):
        values += len(level)
        if values > MAX_JSON_VALUES:
            _refuse(
                phrase("import-too-many-values", most=f"{MAX_JSON_VALUES:,}"),
                phrase("import-send-smaller"),
            )
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            _refuse(
                phrase("import-key-twice", key=show(key)),
                phrase("import-keep-one"),
                "duplicate",
                key,
            )
        found[key] = value
    return found


def _constant(name: str) -> NoReturn:
    _refuse(phrase("import-json-constant", name=name), phrase("import-write-number"), shown=name)


def _finite(written: str) -> float:
    found = float(written)
    if not math.isfinite(found):
        _refuse(phrase("import-number-too-long"), phrase("import-write-smaller"), shown=written)
    return found


def _line(text: str, number: int) -> str:
    """Return a line for the error message, unless the document seems to contain secrets."""
    lines = text.splitlines()
    if not 0 <= number < len(lines):
        return ""
    return HIDDEN if TELLTALE.search(text) else lines[number]


def _mark_of(error: yaml.MarkedYAMLError) -> Any:
    """Return the position of an error; for an unterminated name or string, its start."""
    if (error.context or "").startswith("while scanning a") and error.context_mark:
        return error.context_mark
    return error.problem_mark or error.context_mark


def _read_yaml(text: str) -> Any:
    try:
        return _Builder(text, MAX_YAML_VALUES).build()
    except yaml.MarkedYAMLError as error:
        mark = _mark_of(error)
        problem = _problem(error.problem or error.context)
        _refuse(
            phrase("import-not-yaml-at", problem=problem, **_at(mark))
            if mark
            else phrase("import-not-yaml", problem=problem),
            phrase("import-correct-yaml"),
            shown=_line(text, mark.line) if mark else None,
        )
    except (yaml.YAMLError, RecursionError) as error:
        problem = _problem(getattr(error, "reason", None))
        _refuse(phrase("import-not-yaml", problem=problem), phrase("import-remove-control"))
    except ValueError as error:
        if isinstance(error, ImportRefusedError):
            raise
        _refuse(phrase("import-yaml-character"), phrase("import-remove-character"))


@dataclass(slots=True)
class _Frame:
    """An object or a list that is not closed yet."""

    into: dict[str, Any] | list[Any]
    anchor: str | None
    mark: Any
    first_node: int
    key: str | None = None
    merged: list[Mapping[str, Any]] = field(default_factory=list)


class _Builder:
    """Builds plain values from the events of a YAML parser, without recursion."""

    def __init__(self, text: str, max_nodes: int) -> None:
        self._text = text
        self._max_nodes = max_nodes
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._nodes = 0
        self._documents = 0
        self._root: Any = None

    def build(self) -> Any:
        """Return the document, or None if the text has none."""
        for event in self._events():
            if isinstance(event, yaml.DocumentStartEvent):
                self._documents += 1
                if self._documents > 1:
                    self._fail(
                        event,
                        phrase("import-yaml-documents", **_at(event.start_mark)),
                        phrase("import-send-one"),
                    )
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.ScalarEvent):
                self._count(event, 1)
                self._add(event, self._scalar(event))
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close()
        return self._root

    def _events(self) -> Iterator[Any]:
        loader = _PARSER(self._text)
        try:
            while loader.check_event():
                yield loader.get_event()
        finally:
            loader.dispose()

    def _open(self, event: Any) -> None:
        is_map = isinstance(event, yaml.MappingStartEvent)
        plain = "tag:yaml.org,2002:map" if is_map else "tag:yaml.org,2002:seq"
        if event.tag not in (None, "!", plain):
            self._fail(
                event,
                phrase("import-yaml-tag", tag=show(event.tag), **_at(event.start_mark)),
                phrase("import-remove-tag"),
            )
        if len(self._frames) >= MAX_DEPTH:
            self._fail(
                event,
                phrase("import-yaml-too-deep", **_at(event.start_mark)),
                phrase("import-nest-less", most=MAX_DEPTH),
            )
        parent = self._frames[-1] if self._frames else None
        if parent and isinstance(parent.into, dict) and parent.key is None:
            self._fail(
                event,
                phrase("import-yaml-key-not-text", **_at(event.start_mark)),
                phrase("import-write-text-key"),
            )
        self._count(event, 1)
        into: dict[str, Any] | list[Any] = {} if is_map else []
        self._frames.append(_Frame(into, event.anchor, event.start_mark, first_node=self._nodes))

    def _close(self) -> None:
        frame = self._frames.pop()
        if isinstance(frame.into, dict):
            for mapping in frame.merged:
                for key, value in mapping.items():
                    frame.into.setdefault(key, value)
        size = self._nodes - frame.first_node + 1
        self._place(frame.into, frame.anchor, size, frame.mark)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            self._fail(
                event,
                phrase(
                    "import-yaml-alias-undefined", anchor=event.anchor, **_at(event.start_mark)
                ),
                phrase("import-write-out"),
            )
        value, size = self._anchors[event.anchor]
        self._count(event, size)
        frame = self._frames[-1]
        if isinstance(frame.into, dict) and frame.key is None:
            self._fail(
                event,
                phrase("import-yaml-alias-as-key", **_at(event.start_mark)),
                phrase("import-write-key-out"),
            )
        self._place(value, None, size, event.start_mark)

    def _add(self, event: Any, value: Any) -> None:
        frame = self._frames[-1] if self._frames else None
        if frame and isinstance(frame.into, dict) and frame.key is None:
            if event.value in frame.into:
                self._fail(
                    event,
                    phrase(
                        "import-yaml-key-twice", key=show(event.value), **_at(event.start_mark)
                    ),
                    phrase("import-keep-one"),
                    "duplicate",
                )
            frame.key = event.value
            return
        self._place(value, event.anchor, 1, event.start_mark)

    def _place(self, value: Any, anchor: str | None, size: int, mark: Any) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)
        if not self._frames:
            self._root = value
            return
        frame = self._frames[-1]
        if isinstance(frame.into, list):
            frame.into.append(value)
        elif frame.key == "<<":
            frame.merged.extend(self._mappings(value, mark))
        else:
            frame.into[frame.key or ""] = value
        frame.key = None

    def _mappings(self, value: Any, mark: Any) -> list[Mapping[str, Any]]:
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(item, dict) for item in found):
            self._fail_at(
                mark, phrase("import-yaml-merge", **_at(mark)), phrase("import-write-keys-out")
            )
        return found

    def _scalar(self, event: Any) -> Any:
        if event.implicit[0] and event.tag is None:
            found = _resolve(event.value)
            if isinstance(found, float) and not math.isfinite(found):
                self._fail(
                    event,
                    phrase("import-yaml-number", **_at(event.start_mark)),
                    phrase("import-write-smaller"),
                )
            return found
        if event.tag not in (None, "!", _STR_TAG) and not event.implicit[1]:
            self._fail(
                event,
                phrase("import-yaml-tag", tag=show(event.tag), **_at(event.start_mark)),
                phrase("import-remove-tag"),
            )
        return event.value

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._max_nodes:
            self._fail(
                event,
                phrase(
                    "import-yaml-too-many-values",
                    most=f"{self._max_nodes:,}",
                    **_at(event.start_mark),
                ),
                phrase("import-use-fewer-values"),
            )

    def _fail(self, event: Any, message: str, remedy: str, code: str = "malformed") -> NoReturn:
        self._fail_at(event.start_mark, message, remedy, code)

    def _fail_at(self, mark: Any, message: str, remedy: str, code: str = "malformed") -> NoReturn:
        _refuse(message, remedy, code, _line(self._text, mark.line))


def _at(mark: Any) -> dict[str, int]:
    return {"line": mark.line + 1, "column": mark.column + 1}


def _problem(words: str | None) -> Message:
    """Return the message for a problem of the YAML parser; unknown problems are unchanged."""
    if words is None:
        return SHARED.message("import-unreadable")
    return SHARED.message(_PROBLEMS[words]) if words in _PROBLEMS else plain(words)


def _resolve(text: str) -> Any:
    """Return the value of a plain scalar in the core schema of YAML 1.2.

    A number with leading zeros is a string.
    """
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        return float(text)
    return text
