"""When a job is told to end and when it is made to: the clockwork of a runner, without a clock."""

from __future__ import annotations

import math
import signal
from typing import Optional

from tessera import protocol

LAST_CHANCE_SECONDS = 5.0


class Course:
    """From an order to end until nothing can be waited for any more.

    A job that listens for notices (see ``tessera.train.should_yield``) has its whole grace period
    to save its work and leave; SIGTERM comes after that, and SIGKILL a little later. A job that
    does not listen gets SIGTERM at once and SIGKILL after the grace period. All times are seconds
    on one clock.

    Attributes:
        cause: why the job is to end; empty while it may run.
        notice: the reason in words or a code, as the job is told.
        kill_at: when SIGKILL is due.
    """

    def __init__(self, *, timeout_at: float = math.inf) -> None:
        self.cause = ""
        self.notice = ""
        self.kill_at = math.inf
        self._timeout_at = timeout_at
        self._term_at = math.inf

    def order(self, now: float, cause: str, notice: str, grace: float, *, listens: bool) -> bool:
        """Take an order to end; a later one can only shorten what is left.

        Returns:
            True for the first order, whose cause stands.
        """
        first = not self.cause
        if first:
            self.cause, self.notice = cause, notice
        self._term_at = min(self._term_at, now + grace if listens else now)
        last = now + grace + (min(grace, LAST_CHANCE_SECONDS) if listens else 0.0)
        self.kill_at = min(self.kill_at, last)
        return first

    def timed_out(self, now: float) -> bool:
        """Whether the running time is over and nobody has said so yet."""
        return not self.cause and now >= self._timeout_at

    def due(self, now: float) -> Optional[signal.Signals]:
        """The signal to send now, each once; SIGKILL again and again until the end."""
        if now >= self.kill_at:
            self.kill_at = now + 1.0
            self._term_at = math.inf
            return signal.SIGKILL
        if now >= self._term_at:
            self._term_at = math.inf
            return signal.SIGTERM
        return None

    def next_at(self) -> float:
        """When to look again, if nothing happens."""
        if self.cause:
            return min(self._term_at, self.kill_at)
        return self._timeout_at


def age_of_end(reported: float, started: float, now: float) -> float:
    """How long ago a job ended that runs since ``started``; a wrong report is moved in between."""
    return max(0.0, now - max(reported, started))


FAILURE_OF_CAUSE = {
    protocol.CAUSE_STOPPED: "",
    protocol.CAUSE_TIMEOUT: protocol.TIMEOUT,
    protocol.CAUSE_LEASE: protocol.PLATFORM,
    protocol.CAUSE_OOM: protocol.RESOURCE_LIMIT,
    protocol.CAUSE_DISK: protocol.RESOURCE_LIMIT,
    protocol.CAUSE_LOST: protocol.NODE,
    protocol.CAUSE_START: protocol.NODE,
}


def failure_of(cause: str, code: Optional[int]) -> str:
    """The failure class of an end; empty when nobody failed."""
    if cause == protocol.CAUSE_EXITED:
        return "" if code == 0 else protocol.USER
    return FAILURE_OF_CAUSE[cause]
