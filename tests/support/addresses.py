"""Addresses of all pages."""

import re
from collections.abc import Iterator, Sequence

from django.urls import URLPattern, URLResolver


def addresses(
    entries: Sequence[URLPattern | URLResolver], words: dict[str, str], before: str = "/"
) -> Iterator[str]:
    """Addresses of all patterns, their arguments filled with ``words`` by converter."""
    for entry in entries:
        pattern = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from addresses(entry.url_patterns, words, pattern)
        else:
            yield re.sub(r"<(\w+):\w+>", lambda found: words[found[1]], pattern)
