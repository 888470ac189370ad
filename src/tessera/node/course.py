"""End of a job from the stop request to SIGKILL: the timing of a runner as pure functions."""

from __future__ import annotations

import math
import signal
from typing import Optional

from tessera import protocol

LAST_CHANCE_SECONDS = 5.0
LAST_CHANCE_OF_GUEST_SECONDS = 1.0
"""A guest gets SIGTERM this long before SIGKILL: others wait for its device."""


class Course:
    """The times and signals from a stop request to the end of a job.

    A job that reads notices (see ``tessera.train.should_yield``) has its whole grace period
    to save its work and exit; SIGTERM comes after that, and SIGKILL a little later. Any
    other job gets SIGTERM at once and SIGKILL after the grace period. All times are seconds
    on one clock.

    Attributes:
        cause: cause of the end; empty while the job may run.
        notice: the reason for the job, as text or code.
        kill_at: time of SIGKILL.
    """

    def __init__(self, *, timeout_at: float = math.inf) -> None:
        self.cause = ""
        self.notice = ""
        self.kill_at = math.inf
        self._timeout_at = timeout_at
        self._term_at = math.inf

    def order(
        self,
        now: float,
        cause: str,
        notice: str,
        grace: float,
        *,
        listens: bool,
        is_guest: bool = False,
    ) -> bool:
        """Request the end; a later request can only shorten the rest.

        Args:
            now: the current time.
            cause: cause of the end.
            notice: the reason for the job.
            grace: seconds in which it may save its work; those of a guest end with SIGKILL.
            listens: whether the job reads notices.
            is_guest: whether another job holds its device.

        Returns:
            True for the first request, whose cause is recorded.
        """
        first = not self.cause
        if first:
            self.cause, self.notice = cause, notice
        term_at = kill_at = now + grace
        if not listens:
            term_at = now
        elif is_guest:
            term_at -= min(grace, LAST_CHANCE_OF_GUEST_SECONDS)
        else:
            kill_at += min(grace, LAST_CHANCE_SECONDS)
        self._term_at = min(self._term_at, term_at)
        self.kill_at = min(self.kill_at, kill_at)
        return first

    def timed_out(self, now: float) -> bool:
        """Return whether the time limit is the first reason to end."""
        return not self.cause and now >= self._timeout_at

    def due(self, now: float) -> Optional[signal.Signals]:
        """Return the signal to send now: each once, and SIGKILL repeatedly until the end."""
        if now >= self.kill_at:
            self.kill_at = now + 1.0
            self._term_at = math.inf
            return signal.SIGKILL
        if now >= self._term_at:
            self._term_at = math.inf
            return signal.SIGTERM
        return None

    def next_at(self) -> float:
        """Time of the next check if nothing happens."""
        if self.cause:
            return min(self._term_at, self.kill_at)
        return self._timeout_at


def age_of_end(reported: float, started: float, now: float) -> float:
    """Return the age of the end of a job started at ``started``, limited to its lifetime."""
    return max(0.0, now - max(reported, started))


FAILURE_OF_CAUSE = {
    protocol.CAUSE_STOPPED: "",
    protocol.CAUSE_TIMEOUT: protocol.TIMEOUT,
    protocol.CAUSE_LEASE: protocol.PLATFORM,
    protocol.CAUSE_DEVICE: protocol.PLATFORM,
    protocol.CAUSE_OOM: protocol.RESOURCE_LIMIT,
    protocol.CAUSE_DISK: protocol.RESOURCE_LIMIT,
    protocol.CAUSE_LOST: protocol.NODE,
    protocol.CAUSE_START: protocol.NODE,
}


def failure_of(cause: str, code: Optional[int]) -> str:
    """Return the failure class of an end; empty without a failure."""
    if cause == protocol.CAUSE_EXITED:
        return "" if code == 0 else protocol.USER
    return FAILURE_OF_CAUSE[cause]
