"""The request ports of the scheduling room over keys in memory; tests read what they send."""

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
    """Messages that were sent, in order. Only keys expire: their clock stands at ``seconds``."""

    rounds: list[RoundMessage] = field(default_factory=list)
    estimates: list[EstimateMessage] = field(default_factory=list)
    what_ifs: list[int] = field(default_factory=list)
    seconds: float = 100.0

    def causes(self) -> list[str]:
        return [message.cause for message in self.rounds]


@contextmanager
def requested_ports() -> Iterator[Requested]:
    """Bind ports that send into lists, and afterwards those that were bound before."""
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
