"""News of the live pages as they leave a process, without a broker."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from portal.live import publishing


class News:
    """How often there was news of each group, in the place of a process's publisher."""

    def __init__(self) -> None:
        self.heard: dict[str, int] = {}

    def send(
        self, group: str, topic: str, data: Mapping[str, Any], *, paced: bool = False
    ) -> None:
        """Count the message, if it can be written at all."""
        json.dumps([topic, data, paced])
        self.heard[group] = self.heard.get(group, 0) + 1


@contextmanager
def heard_news() -> Iterator[News]:
    """What is sent inside the block."""
    news = News()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "publisher", lambda: news)
        publishing.connect()
        try:
            yield news
        finally:
            publishing.disconnect()
