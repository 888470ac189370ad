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
"""No gang is given more: those of its instances, and the one where its ranks meet."""


def ports_of(demand: Demand) -> int:
    """The ports of all instances, and the one where the ranks meet."""
    return 1 + sum(member.count * member.ports for member in demand.members)


class Ports:
    """The free ports in a round; None: not counted."""

    def __init__(self, left: int | None) -> None:
        self._left = left

    def refusal(self, demand: Demand) -> Reason | None:
        """Why a gang would wait for ports; None: there are enough."""
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
        """A gang starts, and its ports are taken."""
        if self._left is not None:
            self._left -= ports_of(demand)
