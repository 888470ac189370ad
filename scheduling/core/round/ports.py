"""Network ports of gangs: the number for each, and jobs that wait for free ports."""

from typing import Final

from scheduling.core.jobspec import Demand
from scheduling.core.jobspec.parsing import MAX_PORTS
from scheduling.core.messages import message
from scheduling.core.reasons import Reason
from tessera.reasons import ReasonCode

FIRST_PORT: Final = 15000
LAST_PORT: Final = 31999
ALL_PORTS: Final = LAST_PORT - FIRST_PORT + 1
MOST: Final = MAX_PORTS + 1
"""Maximum number of ports of a gang: those of its instances, and one for its rendezvous."""


def ports_of(demand: Demand) -> int:
    """Count the ports of all instances, including the rendezvous port."""
    return 1 + sum(member.count * member.ports for member in demand.roles)


class Ports:
    """Free ports in a round; None if ports are not counted."""

    def __init__(self, left: int | None) -> None:
        self._left = left

    def refusal(self, demand: Demand) -> Reason | None:
        """Return the reason for which a gang waits for ports, or None if there are enough."""
        if self._left is None or self._left >= MOST:
            return None
        wanted = ports_of(demand)
        if wanted <= self._left:
            return None
        return Reason(
            code=ReasonCode.BEHIND_HIGHER_PRIORITY,
            message=message("ports-in-use", wanted=wanted, free=self._left),
            unblock=(message("ask-fewer-ports"),),
        )

    def take(self, demand: Demand) -> None:
        """Take the ports of a starting gang."""
        if self._left is not None:
            self._left -= ports_of(demand)
