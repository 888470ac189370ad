"""A test double of a device: serves kernels of a holder and a guest in virtual time."""

from __future__ import annotations

import math
from enum import Enum

_DONE = 1e-12


class Serving(Enum):
    """Service of two concurrent kernels by a device."""

    EQUAL_PARTS = "processor sharing"
    FIRST_COME = "first come"


class SimulatedDevice:
    """Serves at most one kernel of the holder and one of the guest.

    Attributes:
        holder: seconds of work left in the holder's kernel; None without one.
        guest: the same for the guest.
        guest_work: seconds of work served to the guest so far.
    """

    def __init__(self, serving: Serving, contention: float = 1.0) -> None:
        """Create an idle device.

        Args:
            serving: service of two concurrent kernels.
            contention: slowdown factor of the holder's kernel while it shares the device in equal
                parts, at least 1: contention for memory bandwidth, which the law cannot measure.
        """
        self.holder: float | None = None
        self.guest: float | None = None
        self.guest_work = 0.0
        self._serving = serving
        self._contention = contention
        self._holder_first = True

    def submit_holder(self, seconds: float) -> None:
        """Submit a kernel of the holder, which must not have another one."""
        self.holder = seconds
        self._holder_first = self.guest is None

    def submit_guest(self, seconds: float) -> None:
        """Submit a kernel of the guest, which must not have another one."""
        self.guest = seconds
        self._holder_first = self.holder is not None

    def next_end(self) -> float:
        """Return the seconds until a kernel ends if nothing is submitted before."""
        holder_rate, guest_rate = self._rates()
        end = math.inf
        if self.holder is not None and holder_rate:
            end = self.holder / holder_rate
        if self.guest is not None and guest_rate:
            end = min(end, self.guest / guest_rate)
        return end

    def advance(self, seconds: float) -> None:
        """Serve for at most ``next_end()`` seconds; a finished kernel has at most 0 s left."""
        holder_rate, guest_rate = self._rates()
        if self.holder is not None:
            self.holder -= seconds * holder_rate
        if self.guest is not None:
            self.guest -= seconds * guest_rate
            self.guest_work += seconds * guest_rate

    def take_holder(self) -> bool:
        """Remove the holder's kernel if it has ended, and return whether it has."""
        if self.holder is None or self.holder > _DONE:
            return False
        self.holder = None
        return True

    def take_guest(self) -> bool:
        """Remove the guest's kernel if it has ended, and return whether it has."""
        if self.guest is None or self.guest > _DONE:
            return False
        self.guest = None
        return True

    def _rates(self) -> tuple[float, float]:
        if self.holder is None:
            return 0.0, 1.0
        if self.guest is None:
            return 1.0, 0.0
        if self._serving is Serving.EQUAL_PARTS:
            return 0.5 / self._contention, 0.5
        return (1.0, 0.0) if self._holder_first else (0.0, 1.0)
