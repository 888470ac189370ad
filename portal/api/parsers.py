"""Request bodies: JSON and YAML, read by the same bounded reader, with the text kept for jobs."""

from typing import IO, Any

from rest_framework.parsers import BaseParser

from portal.api.importers.documents import parse_document

MAX_BODY_BYTES = 4 << 20


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


def _read(stream: IO[Any], media_type: str, parser_context: Any) -> Any:
    body = stream.read(MAX_BODY_BYTES + 1)
    request = (parser_context or {}).get("request")
    if request is not None:
        request._tessera_text = body.decode(errors="replace")
    return parse_document(body, media_type, max_bytes=MAX_BODY_BYTES)
