"""Measures in the background how long a portal takes to be ready after each of many faults."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.3


class Readiness:
    """Looks again and again whether a portal is ready.

    Attributes:
        seconds: from the end of each fault until the portal was ready; faults that began in
            between are part of it, so each is an upper bound.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self.seconds: list[float] = []
        self._is_ready = is_ready
        self._open: list[float] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def fault_ended(self) -> None:
        """Count from now on."""
        with self._lock:
            self._open.append(time.monotonic())

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            with self._lock:
                ended = list(self._open)
            if not ended or not self._is_ready():
                continue
            now = time.monotonic()
            with self._lock:
                self._open = self._open[len(ended) :]
                self.seconds += [now - at for at in ended]
