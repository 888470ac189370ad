"""Live updates published by a process, recorded without a broker."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from portal.live import publishing


class News:
    """Publisher that counts the messages of each group."""

    def __init__(self) -> None:
        self.heard: dict[str, int] = {}

    def send(
        self, group: str, topic: str, data: Mapping[str, Any], *, paced: bool = False
    ) -> None:
        """Count the message, if it can be encoded."""
        json.dumps([topic, data, paced])
        self.heard[group] = self.heard.get(group, 0) + 1


@contextmanager
def heard_news() -> Iterator[News]:
    """Record the messages that are sent inside the block."""
    news = News()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "publisher", lambda: news)
        publishing.connect()
        try:
            yield news
        finally:
            publishing.disconnect()
