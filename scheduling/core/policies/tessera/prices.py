"""Prices of devices, and the value of work at these prices.

The multipliers of the capacities in past rounds are prices: seconds of completion time per device
and second. At usual prices a step of a job costs at least the minimum over its sizes of
``(1 + price of the devices) / rate``, so each size is worth this cost times its speed. The value
has no unit and hardly depends on the remaining work, so short jobs do not displace long ones each
time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduling.core.policies.tessera.columns import SizeColumns

Floats = NDArray[np.float64]

#: Price of a type without past rounds, and the maximum: a job's own seconds.
_FIRST: Final = 0.05
_MOST: Final = 1.0
#: Seconds over which usual and current prices are averaged.
_USUAL: Final = 3600.0
_NOW: Final = 300.0
#: Remaining seconds at which a job's weight does not change, and the minimum.
_TYPICAL: Final = 1800.0
_SHORTEST: Final = 60.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by type, averaged over a long and a short time.

    Attributes:
        types: device types.
        usual: average over about an hour.
        now: average over some minutes.
    """

    types: tuple[str, ...]
    usual: Floats
    now: Floats

    @classmethod
    def stored(cls, state: Mapping[str, Any], types: Sequence[str]) -> "Prices":
        """Read the prices from a policy's state; a new type gets the first price."""
        known = state.get("prices", {})
        pairs = np.array([known.get(name, (_FIRST, _FIRST)) for name in types])
        usual, now = pairs.reshape(-1, 2).T
        return cls(tuple(types), usual, now)

    def after(self, multipliers: Floats, seconds: float) -> "Prices":
        """Return the prices after a round.

        Args:
            multipliers: of the capacities, for jobs of weight 1.
            seconds: length of the round.
        """
        paid = np.minimum(multipliers, _MOST)
        usual = self.usual + min(1.0, seconds / _USUAL) * (paid - self.usual)
        now = self.now + min(1.0, seconds / _NOW) * (paid - self.now)
        return Prices(self.types, usual, now)

    def to_state(self) -> dict[str, list[float]]:
        """Return plain JSON, for ``stored``."""
        pairs = zip(self.types, self.usual.tolist(), self.now.tolist(), strict=True)
        return {name: [usual, now] for name, usual, now in pairs}


@dataclass(frozen=True, slots=True)
class Valued:
    """Value of work by job.

    Attributes:
        step: value of a step.
        seconds: expected remaining time at the best size for the prices.
    """

    step: Floats
    seconds: Floats

    def tilts(self, exponents: Floats) -> Floats:
        """Weight jobs with little remaining time higher, by the given powers."""
        tilts: Floats = (_TYPICAL / np.maximum(self.seconds, _SHORTEST)) ** exponents
        return tilts


def value_work(
    rates: Floats, left: Floats, columns: SizeColumns, prices: Prices, spell: float
) -> Valued:
    """Compute the cost of a step of each job at the prices during its remaining time.

    Args:
        rates: steps per second, shape ``(jobs, columns)``; 0 where a job cannot run.
        left: steps until completion, by job.
        columns: the sizes.
        prices: current and usual prices.
        spell: seconds for which the current prices last; later the usual ones apply.
    """
    usual, extra = prices.usual[columns.kinds], (prices.now - prices.usual)[columns.kinds]
    possible = rates > 0.0
    slowness = np.divide(1.0, rates, out=np.zeros(rates.shape), where=possible)

    def costs(part: Floats) -> Floats:
        fees = (usual + extra * part[:, None]) * columns.sizes
        return np.where(possible, (1.0 + fees) * slowness, np.inf)

    every, part, seconds = np.arange(len(rates)), np.zeros(len(rates)), np.zeros(len(rates))
    # The remaining time depends on the size that pays at the prices during this time.
    for _pass in range(2):
        seconds = left * slowness[every, costs(part).argmin(axis=1)]
        spells = np.maximum(seconds / spell, 1e-9)
        part = -np.expm1(-spells) / spells
    step = costs(part).min(axis=1)
    return Valued(np.where(np.isfinite(step), step, 0.0), seconds)
