"""Lines, errors and typed fields: encoding and validation of the node protocol's messages.

Everything read from the other side goes through ``Fields``, which refuses unknown
fields with a ``ProtocolError`` that names the field. Parsed by Python 3.8.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

MAX_LINE_BYTES = 1 << 20

# Failure classes: the party at fault
USER, RESOURCE_LIMIT, NODE = "user", "resource-limit", "node"
IMAGE, TIMEOUT, PLATFORM = "image", "timeout", "platform"
FAILURES = (USER, RESOURCE_LIMIT, NODE, IMAGE, TIMEOUT, PLATFORM)

T = TypeVar("T")
Json = Dict[str, Any]


class ProtocolError(Exception):
    """A refused or failed request, with the class of the failure and a stable code."""

    def __init__(self, code: str, message: str, failure: str = PLATFORM) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.failure = failure

    def to_json(self) -> Json:
        """Return the ``error`` object of a reply."""
        return {"class": self.failure, "code": self.code, "message": self.message}

    @classmethod
    def from_json(cls, data: object) -> ProtocolError:
        """Read the ``error`` object of a reply; any content yields an error."""
        fields = data if isinstance(data, dict) else {}
        failure = fields.get("class")
        return cls(
            str(fields.get("code", "unreadable-error"))[:100],
            str(fields.get("message", "the node sent no message"))[:4000],
            failure if failure in FAILURES else PLATFORM,
        )


def encode_line(message: Mapping[str, Any]) -> bytes:
    """Encode one message as a line of ASCII JSON, so that no byte of a value can end the line."""
    text = json.dumps(message, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii") + b"\n"


def decode_line(line: bytes) -> Json:
    """Read one line.

    Raises:
        ProtocolError: the line is too long, not JSON, or not an object.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError("line-too-long", f"a line has at most {MAX_LINE_BYTES} bytes")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("not-json", "the line is not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError("not-an-object", "a message must be a JSON object")
    return message


class Fields:
    """Takes typed fields out of a JSON object and refuses the rest."""

    def __init__(self, data: object, where: str) -> None:
        self._where = where
        if not isinstance(data, dict):
            raise ProtocolError("bad-field", f"{where}: must be an object")
        self._data = dict(data)

    def refuse(self, name: str, why: str) -> ProtocolError:
        """Build an error about one field."""
        return ProtocolError("bad-field", f"{self._where}.{name}: {why}")

    def finish(self) -> None:
        """Refuse the object if it has further fields."""
        if self._data:
            raise self.refuse(str(sorted(self._data)[0])[:100], "is not a known field")

    def raw(self, name: str) -> object:
        """Take a field unchecked; None if missing."""
        return self._data.pop(name, None)

    def _take(self, name: str, default: Optional[T], read: Callable[[object], T]) -> T:
        value = self._data.pop(name, None)
        if value is not None:
            return read(value)
        if default is None:
            raise self.refuse(name, "is missing")
        return default

    def text(self, name: str, default: Optional[str], longest: int) -> str:
        """Take text of at most ``longest`` bytes; required if ``default`` is None."""
        return self._take(name, default, lambda value: self._text(name, value, longest))

    def _text(self, name: str, value: object, longest: int) -> str:
        if not isinstance(value, str):
            raise self.refuse(name, "must be text")
        try:
            size = len(value.encode("utf-8"))
        except UnicodeEncodeError:
            raise self.refuse(name, "is not valid Unicode") from None
        if size > longest or "\0" in value:
            raise self.refuse(name, f"must have at most {longest} bytes and no NUL")
        return value

    def choice(self, name: str, default: Optional[str], known: Tuple[str, ...]) -> str:
        """Take one of the allowed values."""
        value = self.text(name, default, 100)
        if value not in known:
            raise self.refuse(name, f"must be one of {', '.join(filter(None, known))}")
        return value

    def integer(self, name: str, default: Optional[int], low: int, high: int) -> int:
        """Take an integer."""
        return self._take(name, default, lambda value: self._integer(name, value, low, high))

    def optional_integer(self, name: str, low: int, high: int) -> Optional[int]:
        """Take an integer or None."""
        value = self.raw(name)
        return None if value is None else self._integer(name, value, low, high)

    def _integer(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, f"must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: Optional[float], low: float, high: float) -> float:
        """Take a finite number."""
        return self._take(name, default, lambda value: self._number(name, value, low, high))

    def optional_number(self, name: str, low: float, high: float) -> Optional[float]:
        """Take a finite number or None."""
        value = self.raw(name)
        return None if value is None else self._number(name, value, low, high)

    def _number(self, name: str, value: object, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(name, "must be a number")
        if not low <= value <= high:  # also refuses NaN
            raise self.refuse(name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        """Take true or false."""
        value = self._data.pop(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "must be true or false")
        return value

    def items(self, name: str, most: int) -> List[object]:
        """Take a list; its items are unchecked."""
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            raise self.refuse(name, f"must be a list of at most {most}")
        return value

    def integers(self, name: str, low: int, high: int) -> List[int]:
        """Take a list of integers."""
        return [self._integer(name, value, low, high) for value in self.items(name, 4096)]

    def texts(self, name: str, most: int, longest: int) -> List[str]:
        """Take a list of texts."""
        return [self._text(name, value, longest) for value in self.items(name, most)]

    def mapping(self, name: str, names: re.Pattern[str], longest: int) -> Dict[str, str]:
        """Take an object of texts whose names match ``names``."""
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > 1000:
            raise self.refuse(name, "must be an object of at most 1000 entries")
        for key in value:
            if not isinstance(key, str) or not names.fullmatch(key):
                raise self.refuse(name, f"{str(key)[:100]!r} is not an allowed name")
        return {key: self._text(f"{name}.{key}", text, longest) for key, text in value.items()}

    def inner(self, name: str) -> Optional[Fields]:
        """Take an object; None if missing."""
        value = self.raw(name)
        return None if value is None else Fields(value, f"{self._where}.{name}")
