"""Followers of a hub in this process."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any


class Listener:
    """A follower that records each message of its topics."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def take(self, topic: str, text: str) -> None:
        self.texts.append(text)

    def newest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.texts[-1])
        return found


class Counter:
    """A number of devices in use, with the number of queries."""

    def __init__(self) -> None:
        self.in_use, self.asked = 1, 0

    def __call__(self) -> int:
        self.asked += 1
        return self.in_use


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until a condition holds, at most 30 s."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
