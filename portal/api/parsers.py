"""Parsing of request bodies (JSON and YAML) with a size limit; job texts are preserved."""

from typing import IO, Any, NoReturn

from rest_framework.parsers import BaseParser

from portal.api.documents import read_document
from scheduling.compat.documents import MAX_YAML_BYTES
from scheduling.core.jobspec import MAX_SPEC_BYTES
from scheduling.jobs.services.archives import TooLargeError

MAX_BODY_BYTES = 4 << 20


class BodyTooLargeError(TooLargeError):
    """The request, or the document in it, is larger than the limit."""

    title = "The request is too large"


class StrictJSONParser(BaseParser):
    """``application/json``: no NaN, no duplicate keys, bounded depth and size."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        """Read the body; ``ImportRefusedError`` names line and column."""
        return _read(stream, self.media_type, parser_context)


class YAMLParser(BaseParser):
    """``application/yaml``: a safe subset without aliases that explode."""

    media_type = "application/yaml"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        """Read the body; ``ImportRefusedError`` names line and column."""
        return _read(stream, self.media_type, parser_context)


class YAMLTextParser(YAMLParser):
    """``text/yaml`` and ``application/x-yaml``, which older clients send."""

    media_type = "*/yaml"


def bounded_body(stream: IO[Any], parser_context: Any = None, most: int = MAX_BODY_BYTES) -> bytes:
    """Read the whole body.

    Raises:
        BodyTooLargeError: it has more than ``most`` bytes; the excess is not read.
    """
    body: bytes = stream.read(most + 1)
    if len(body) > most:
        request = (parser_context or {}).get("request")
        told = str(request.META.get("CONTENT_LENGTH") or "") if request is not None else ""
        size = int(told) if told.isdecimal() else 0
        refuse_size(max(size, len(body)), most, field="body")
    return body


def refuse_size(size: int, most: int, *, field: str) -> NoReturn:
    """Refuse a body of ``size`` bytes where ``most`` are allowed.

    Raises:
        BodyTooLargeError: always.
    """
    raise BodyTooLargeError(
        f"It has {size:,} bytes; {most:,} are taken here.",
        field=field,
        value=size,
        remedy="Send a smaller document, or JSON instead of YAML."
        if most < MAX_BODY_BYTES
        else "Send a smaller document.",
    )


def _most_bytes(media_type: str, parser_context: Any) -> int:
    """Return the size limit: lower for YAML, lowest where one job is expected."""
    if media_type == StrictJSONParser.media_type:
        return MAX_BODY_BYTES
    view = (parser_context or {}).get("view")
    operation = getattr(view, "operations", {}).get(getattr(view, "action", None))
    return MAX_SPEC_BYTES if getattr(operation, "holds_one_job", False) else MAX_YAML_BYTES


def _read(stream: IO[Any], media_type: str, parser_context: Any) -> Any:
    body = bounded_body(stream, parser_context, _most_bytes(media_type, parser_context))
    request = (parser_context or {}).get("request")
    if request is not None:
        request._tessera_text = body.decode(errors="replace")
    return read_document(body, media_type, max_bytes=MAX_BODY_BYTES)
