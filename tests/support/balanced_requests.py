"""Requests without a pause to several hosts, as a load balancer distributes them.

Each request goes to a host whose ``/readyz`` was 200 at the last check. If it fails, it is sent
once more, to another host.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from types import TracebackType
from typing import Any, Final, Self

import httpx

CHECK_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 0.05
TIMEOUT_SECONDS: Final = 15.0

Ask = Callable[[httpx.Client], httpx.Response]


@dataclass
class Outcomes:
    """Outcomes of all requests.

    Attributes:
        sent: requests, without repetitions.
        repeated: first failures by cause, each followed by a successful repetition.
        failed: requests whose repetition failed, too.
        seconds: durations with repetitions.
    """

    sent: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the figures for the report."""
        ordered = sorted(self.seconds)
        return {
            "requests": self.sent,
            "repeated": sum(self.repeated.values()),
            "failed": len(self.failed),
            "p50_ms": round(1000 * ordered[len(ordered) // 2]),
            "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))]),
            "longest_ms": round(1000 * ordered[-1]),
        }


class BalancedRequests:
    """Sends requests in a thread until the block is left."""

    def __init__(self, urls: Sequence[str], token: str, asks: Sequence[Ask]) -> None:
        self.outcomes = Outcomes()
        self._asks = cycle(asks)
        headers = {"Authorization": f"Token {token}"}
        self._clients = {
            url: httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS)
            for url in urls
        }
        self._ready: tuple[str, ...] = tuple(urls)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=act, daemon=True) for act in (self._check, self._send)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=4 * TIMEOUT_SECONDS)
        for client in self._clients.values():
            client.close()

    @property
    def ready(self) -> tuple[str, ...]:
        """Return the hosts that were ready at the last check."""
        return self._ready

    def _check(self) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            self._ready = tuple(url for url in self._clients if self._is_ready(url))

    def _is_ready(self, url: str) -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=2.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def _send(self) -> None:
        for number in count():
            if self._ended.wait(PAUSE_SECONDS):
                return
            begun = time.monotonic()
            ask, urls = next(self._asks), self._ready or tuple(self._clients)
            first = urls[number % len(urls)]
            self.outcomes.sent += 1
            if cause := self._try(ask, first):
                others = [url for url in self._clients if url != first]
                again = self._try(ask, others[number % len(others)])
                if again:
                    self.outcomes.failed.append(f"{cause}, then {again}")
                else:
                    self.outcomes.repeated[cause] += 1
            self.outcomes.seconds.append(time.monotonic() - begun)

    def _try(self, ask: Ask, url: str) -> str:
        """Send a request; return why it failed."""
        try:
            response = ask(self._clients[url])
        except httpx.HTTPError as error:
            return type(error).__name__
        if response.is_success:
            return ""
        return f"{response.status_code} {response.request.url.path} {response.text[:200]}"
