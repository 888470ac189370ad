"""Charged time of a job: from the start of its process to its end, both on the node.

Nodes report times of their own clocks. These are converted to the control plane's clock and
limited to its certain bounds, so that a late observation or a wrong node clock changes a tenant's
bill only by this uncertainty.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

DRIFT: Final = 0.001
"""Clock drift: loss of precision of a clock comparison, in seconds per second."""
LATE: Final = 60.0
"""Maximum delay of an unsolicited message in seconds."""


@dataclass(frozen=True, slots=True)
class NodeClock:
    """A node's clock, compared with a monotonic clock of the observer.

    Attributes:
        ahead: seconds by which the node's clock is ahead of the observer's.
        error: largest error of ``ahead`` in seconds.
        compared: instant of the comparison on the observer's clock.
    """

    ahead: float
    error: float
    compared: float

    def age(self, node_time: float, *, observer_time: float) -> float:
        """Return the seconds since an instant of the node's clock; negative if in the future."""
        return observer_time + self.ahead - node_time

    def corrected(self, newer: "NodeClock") -> "NodeClock":
        """Return the more precise of this and a newer comparison.

        If the two contradict each other, the newer one is returned, since the node's clock was set
        in between.
        """
        error = self._error_at(newer.compared)
        contradict = abs(newer.ahead - self.ahead) > newer.error + error
        return newer if contradict or newer.error <= error else self

    def after_message(self, *, arrived: float, node_time: float) -> "NodeClock":
        """Return this comparison, adjusted if a message shows that the node's clock was set.

        The delay of the message is unknown, since a suspended process or a broken network adds
        seconds. The precision of the result includes this delay.
        """
        late = self.ahead - (node_time - arrived)
        error = self._error_at(arrived)
        return self if -error <= late <= LATE + error else message_clock(arrived, node_time)

    def _error_at(self, observer_time: float) -> float:
        return self.error + DRIFT * max(0.0, observer_time - self.compared)


def message_clock(arrived: float, node_time: float) -> NodeClock:
    """Build the comparison from an unsolicited message; any later reply replaces it."""
    return NodeClock(ahead=node_time - arrived, error=LATE, compared=arrived)


def compare_clocks(*, asked: float, answered: float, node_time: float) -> NodeClock:
    """Compare a node's clock with the observer's by one request.

    Args:
        asked: observer's clock in seconds at the request.
        answered: observer's clock at the arrival of the reply; not before ``asked``.
        node_time: node's clock in seconds, read between the two.
    """
    return NodeClock(
        ahead=node_time - (asked + answered) / 2, error=(answered - asked) / 2, compared=answered
    )


def limited(at: datetime | None, *, earliest: datetime | None, latest: datetime) -> datetime:
    """Limit an instant reported by a node to the bounds of the control plane.

    Args:
        at: the reported instant, converted; None if the node reported none.
        earliest: lower bound of the true instant; None for no bound.
        latest: time of the observation.

    Returns:
        ``at`` within [``earliest``, ``latest``]; ``latest`` if ``at`` is None. If the bounds
        contradict each other, ``earliest``.
    """
    found = latest if at is None else min(at, latest)
    return found if earliest is None else max(found, earliest)


def charged_seconds(
    started: datetime | None,
    exited: datetime | None,
    *,
    until: datetime,
    since: datetime | None = None,
) -> float:
    """Return the seconds charged for one device of a process.

    Args:
        started: start of the process; None if not started, so that nothing is charged.
        exited: end of the process; None while it runs.
        until: upper end of the charge for a running process; also the end of a period.
        since: start of a period; earlier time is not counted.
    """
    if started is None:
        return 0.0
    begun = started if since is None else max(started, since)
    ended = until if exited is None else min(exited, until)
    return max(0.0, (ended - begun) / timedelta(seconds=1))


def last_evidence(started: datetime | None, seen: Iterable[datetime | None]) -> datetime | None:
    """Return the last time at which a lost process certainly ran, or None.

    Args:
        started: start of the process.
        seen: times at which its node confirmed it; None if it never did.
    """
    if started is None:
        return None
    return max([started, *(at for at in seen if at is not None)])
