"""The request ports of ``scheduling`` with keys in memory; tests read the sent messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from portal.broker.connection import LocalKeys
from portal.broker.requests import (
    BrokerEstimateRequests,
    BrokerRoundRequests,
    EstimateMessage,
    RoundMessage,
)
from scheduling import ports


@dataclass
class WhatIfs:
    """Implements `scheduling.ports.WhatIfRequests`."""

    sent: list[int]

    def request(self, pk: int) -> None:
        self.sent.append(pk)


@dataclass
class Requested:
    """Sent messages in order. Keys expire by a clock that tests set (``seconds``)."""

    rounds: list[RoundMessage] = field(default_factory=list)
    estimates: list[EstimateMessage] = field(default_factory=list)
    what_ifs: list[int] = field(default_factory=list)
    seconds: float = 100.0

    def causes(self) -> list[str]:
        return [message.cause for message in self.rounds]


@contextmanager
def requested_ports() -> Iterator[Requested]:
    """Bind ports that send into lists; restore the previous ports afterwards."""
    before, requested = ports.bound(), Requested()
    keys = LocalKeys(lambda: requested.seconds)
    ports.bind(
        ports.RequestPorts(
            rounds=BrokerRoundRequests(
                keys, requested.rounds.append, clock=lambda: requested.seconds
            ),
            estimates=BrokerEstimateRequests(keys, requested.estimates.append),
            what_ifs=WhatIfs(requested.what_ifs),
        )
    )
    try:
        yield requested
    finally:
        ports.bind(before)
