"""Paces of a holder and a guest that share a device: guessed, or measured and shrunk to the guess.

The guess fits plants in virtual time: the holder loses what its delay account pays in, and the
guest gets the gaps of the holder if it sees its phase.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Final

SLOWDOWN: Final = 0.05
_PAID: Final = 0.8
"""Share of the slowdown that the delay account pays in for each step."""
_IN_GAPS, _WITHOUT_GAPS = 0.8, 1.5
_PRIOR: Final = 5.0
"""Observations that the guess counts for."""
MOST_OBSERVATIONS: Final = 1_000.0
"""Weight above which older observations fade."""


@dataclass(frozen=True, slots=True)
class Paces:
    """Paces of a holder and a guest on one device, as fractions of their paces alone, 0 to 1."""

    holder: float
    guest: float


PairPaces = Callable[[int, int, str], Paces | None]
"""Measured paces of a holder and a guest, by their job IDs, on a device type; None: unknown."""


def guessed(slowdown: float, idle: float | None) -> Paces:
    """Return the paces of a pair that was never measured.

    Args:
        slowdown: share of its pace that the holder may lose.
        idle: share of the time in which the holder does not use its device; None if unknown.
    """
    guest = max(_WITHOUT_GAPS * slowdown, _IN_GAPS * idle if idle is not None else 0.0)
    return Paces(1.0 - _PAID * slowdown, min(1.0, guest))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRecord:
    """Mean of the observations of two applications on one device type.

    Attributes:
        holder, guest: mean paces as fractions of the paces alone, 0 to 1.
        observations: their number; at most ``MOST_OBSERVATIONS``, so that older ones fade.
    """

    holder: float
    guest: float
    observations: float

    def observe(self, paces: Paces) -> "PairRecord":
        """Add an observation; values that are not finite are dropped, others limited to 0 to 1."""
        if not (isfinite(paces.holder) and isfinite(paces.guest)):
            return self
        n = min(self.observations, MOST_OBSERVATIONS - 1.0)
        holder, guest = (min(1.0, max(0.0, pace)) for pace in (paces.holder, paces.guest))
        return PairRecord(
            holder=self.holder + (holder - self.holder) / (n + 1.0),
            guest=self.guest + (guest - self.guest) / (n + 1.0),
            observations=n + 1.0,
        )

    def shrunk(self, guess: Paces) -> Paces:
        """Return the paces; the guess counts for 5 observations."""
        weight = self.observations / (self.observations + _PRIOR)
        return Paces(
            guess.holder + weight * (self.holder - guess.holder),
            guess.guest + weight * (self.guest - guess.guest),
        )


NOT_OBSERVED: Final = PairRecord(holder=0.0, guest=0.0, observations=0.0)


LONGEST_APPLICATION: Final = 200


def application_of(tenant: int, label: object, name: str) -> str:
    """Return the name under which pairs of a job are measured.

    Jobs of one tenant with the same label ``application``, or without one with the same name, have
    the same pairs. Jobs of two tenants never do.

    Args:
        tenant: ID of the tenant.
        label: value of the label; not a text if the job has none.
        name: name of the job.
    """
    kind, text = ("label", label) if isinstance(label, str) and label else ("name", name)
    return f"{tenant}:{kind}:{text}"[:LONGEST_APPLICATION]
