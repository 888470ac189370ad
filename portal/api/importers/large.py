"""One large parse per person at a time, so that one person cannot occupy a web process.

The limit applies to each web process, since it protects that process's interpreter.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tenants.audit import current_actor
from tenants.errors import DomainError

LARGE_YAML_BYTES: Final = 32 << 10
LARGE_JSON_BYTES: Final = 256 << 10
_RETRY_SECONDS: Final = 5

_lock: Final = threading.Lock()
_parsing: Final[set[int]] = set()


class LargeParseRunningError(DomainError):
    """The same person's other large document is being read."""

    code = "large-parse-running"
    status = 429
    title = "Another large document of yours is still being parsed"
    retry_after = _RETRY_SECONDS


@contextmanager
def one_large_parse(size: int, large: int) -> Iterator[None]:
    """Read a document inside the block.

    Args:
        size: of the document, in bytes.
        large: a document of more bytes counts; a smaller one is never refused.

    Raises:
        LargeParseRunningError: another block of the same person is running.
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
