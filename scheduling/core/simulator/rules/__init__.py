"""The rule sets by name: each builds the world that a trace is simulated in."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scheduling.core.simulator.rules.events import EventWorld
from scheduling.core.simulator.rules.pollux import PolluxWorld
from scheduling.core.simulator.rules.sia import SiaWorld
from scheduling.core.simulator.worlds import Rules

RULES: Final[Mapping[str, Rules]] = MappingProxyType(
    {"sia": SiaWorld, "pollux": PolluxWorld, "events": EventWorld}
)
