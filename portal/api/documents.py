"""Documents in requests, read and translated one large one at a time per user.

The limit protects the interpreter of a web process, so it applies to each process on its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from scheduling.compat.context import Context
from scheduling.compat.documents import is_json, parse_document
from scheduling.compat.formats import format_of_document, format_of_text, import_text
from scheduling.compat.result import Imported
from scheduling.core.jobspec import MAX_SPEC_BYTES
from tenants.audit import current_actor
from tenants.errors import DomainError

LARGE_YAML_BYTES: Final = 32 << 10
LARGE_JSON_BYTES: Final = 256 << 10
_RETRY_SECONDS: Final = 5

_lock: Final = threading.Lock()
_parsing: Final[set[int]] = set()


class LargeParseRunningError(DomainError):
    """Another large document of the same user is being parsed."""

    code = "large-parse-running"
    status = 429
    title = "Another large document of yours is still being parsed"
    retry_after = _RETRY_SECONDS


def read_document(
    text: str | bytes, content_type: str = "", *, max_bytes: int = MAX_SPEC_BYTES
) -> Any:
    """Parse a document as ``scheduling.compat.documents.parse_document`` does.

    Raises:
        ImportRefusedError: the text is not such a document.
        LargeParseRunningError: it is large, and another large one of the user is being parsed.
    """
    with one_large_parse(len(text), _large(content_type)):
        return parse_document(text, content_type, max_bytes=max_bytes)


def recognise(text: str) -> tuple[str, Any]:
    """Return the format of a text (empty for a native one), and its document.

    Raises:
        ImportRefusedError: the text is neither a batch script nor a document.
        LargeParseRunningError: as for ``read_document``.
    """
    if name := format_of_text(text):
        return name, None
    document = read_document(text)
    return format_of_document(document), document


def translate(name: str, text: str | bytes, context: Context, content_type: str = "") -> Imported:
    """Translate a text of a known format.

    Raises:
        ImportRefusedError: the document is malformed, or cannot become a job.
        LargeParseRunningError: as for ``read_document``.
    """
    with one_large_parse(len(text), _large(content_type)):
        return import_text(name, text, context, content_type)


def _large(content_type: str) -> int:
    return LARGE_JSON_BYTES if is_json(content_type) else LARGE_YAML_BYTES


@contextmanager
def one_large_parse(size: int, large: int) -> Iterator[None]:
    """Parse a document inside the block.

    Args:
        size: of the document, in bytes.
        large: a larger document counts; a smaller one is never refused.

    Raises:
        LargeParseRunningError: another block of the same user is running.
    """
    who = current_actor() if size > large else None
    if who is None or who.user_id is None:
        yield
        return
    with _lock:
        if who.user_id in _parsing:
            raise LargeParseRunningError(
                f"Documents of more than {large >> 10} KiB are parsed one at a time per user.",
                field="body",
                value=size,
                remedy=f"Retry in {_RETRY_SECONDS} s.",
            )
        _parsing.add(who.user_id)
    try:
        yield
    finally:
        with _lock:
            _parsing.discard(who.user_id)
