"""Ports: interfaces that this package calls and the portal implements, and their binding.

A port is for calls with a request or a result. Events go by signals (`scheduling.signals`). No
method raises when the broker fails: a lost request costs time only.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class RoundRequests(Protocol):
    """Port for requests of rounds; at most one waits, and one delayed one besides."""

    def request(self, cause: str) -> None:
        """Request one round unless one is requested already.

        Args:
            cause: the change. Rounds requested only by ``submit`` are delayed after costly ones.
        """

    def request_at(self, at: datetime) -> None:
        """Request one round for an instant; the same second twice is one request."""

    def is_overtaken(self, after: int) -> bool:
        """Whether another round began since this one was requested, and so read all it would.

        Args:
            after: number of rounds that had begun when it was requested.
        """

    def begin(self) -> None:
        """A round begins to read: from now on a change needs another round."""

    def finish(self) -> None:
        """The round that began in this process has committed."""


class EstimateRequests(Protocol):
    """Requests for start estimates: of all waiting jobs, and of those that began to wait."""

    def request(self, *, changed: bool) -> None:
        """Request estimates of all waiting jobs after a round.

        Args:
            changed: the round moved a job. Otherwise requests are accepted less often.
        """

    def rest(self, seconds: float) -> None:
        """Ignore requests for estimates of all jobs for this time."""

    def request_new_waits(self) -> None:
        """Request estimates of jobs that began to wait; ignored if requested or in progress."""

    def begin_new_waits(self) -> None:
        """Their estimates have begun: requests are ignored until ``finish_new_waits``."""

    def finish_new_waits(self, *, rest_seconds: float) -> None:
        """Their estimates have ended; the next begin after ``rest_seconds`` at the earliest."""


class WhatIfRequests(Protocol):
    """Port for requests to compute what-ifs."""

    def request(self, pk: int) -> None:
        """Request a computation by a worker; it is requested again when its page is polled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPorts:
    """All ports of this package."""

    rounds: RoundRequests
    estimates: EstimateRequests
    what_ifs: WhatIfRequests


_bound: list[RequestPorts] = []


def bind(ports: RequestPorts) -> None:
    """Use these implementations from now on in this process."""
    _bound[:] = [ports]


def bound() -> RequestPorts:
    """The implementations in use.

    Raises:
        RuntimeError: none is bound; the portal binds them when its application is ready.
    """
    if not _bound:
        raise RuntimeError("No ports are bound. Install the application `portal`.")
    return _bound[0]
