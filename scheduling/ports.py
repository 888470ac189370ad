"""Ports: interfaces that this package calls and the portal implements, and their binding.

A port is for calls with a request or a result. Events go by signals (`scheduling.signals`). No
method raises when the broker fails: a lost request costs time only.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class RoundRequests(Protocol):
    """Port for requests of rounds; at most one request and one delayed request are pending."""

    def request(self, cause: str) -> None:
        """Request one round unless one is requested already.

        Args:
            cause: the change. Rounds requested only by ``submit`` are delayed after costly ones.
        """

    def request_at(self, at: datetime) -> None:
        """Request one round at a given time; two requests for the same second are one."""

    def is_overtaken(self, after: int) -> bool:
        """Return whether another round began after this request and thus reads its changes.

        Args:
            after: number of rounds that had begun at the time of the request.
        """

    def begin(self) -> None:
        """Record that a round begins to read: later changes need another round."""

    def finish(self) -> None:
        """Record that the round of this process has committed."""


class EstimateRequests(Protocol):
    """Requests for start estimates of all waiting jobs, or of newly waiting jobs."""

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
        """Record the start of these estimates: ignore requests until ``finish_new_waits``."""

    def finish_new_waits(self, *, rest_seconds: float) -> None:
        """Record the end of these estimates; pause for at least ``rest_seconds``."""


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
    """Bind these implementations in this process."""
    _bound[:] = [ports]


def bound() -> RequestPorts:
    """Return the implementations in use.

    Raises:
        RuntimeError: no implementation is bound; the portal binds them at its start.
    """
    if not _bound:
        raise RuntimeError("No ports are registered. Install the Django application `portal`.")
    return _bound[0]
