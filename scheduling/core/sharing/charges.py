"""Leaf cells that virtual clusters are charged for parts of devices; guests are free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePart:
    """A guaranteed job on a fraction of a device, or a guest.

    Attributes:
        vc: name of the virtual cluster.
        memory: bytes of device memory; None for the whole device.
        compute: fraction of the device's compute in (0, 1]; None for the part of its memory,
            rounded up to 5 %.
        guest: whether it is a guest, which holds no leaf.
    """

    vc: str
    memory: int | None
    compute: Fraction | None = None
    guest: bool = False

    def __post_init__(self) -> None:
        """Reject invalid sizes.

        Raises:
            ValueError: memory or compute is not positive.
        """
        if self.memory is not None and self.memory <= 0:
            raise ValueError(f"memory {self.memory} is not positive")
        if self.compute is not None and self.compute <= 0:
            raise ValueError(f"compute {self.compute} is not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """Result of placing parts.

    Attributes:
        leaves: charged leaves of each virtual cluster that has a part or a guest.
        fits: whether each part and guest fits on an empty leaf; others are not charged.
    """

    leaves: dict[str, int]
    fits: bool


@dataclass(slots=True)
class _Shelf:
    """A leaf that one virtual cluster has divided into parts."""

    memory: int
    compute: Fraction


def charge(parts: Iterable[DevicePart], leaf_memory: int) -> Charges:
    """Place parts in the order of their arrival, and count the leaves of each virtual cluster.

    A part goes to a fitting shelf of its virtual cluster: the one with the smallest memory,
    then the smallest compute, then the lowest number. Without a fitting shelf, it opens a new
    one. Parts never move. Two virtual clusters never share a leaf by guarantee.

    Args:
        parts: the parts and guests, by arrival.
        leaf_memory: bytes that a leaf offers to parts.

    Raises:
        ValueError: a leaf offers no memory.
    """
    if leaf_memory <= 0:
        raise ValueError("the memory of a leaf must be positive")
    shelves: dict[str, list[_Shelf]] = {}
    fits = True
    for part in parts:
        own = shelves.setdefault(part.vc, [])
        memory = leaf_memory if part.memory is None else part.memory
        compute = _compute_of(part, memory, leaf_memory)
        if memory > leaf_memory or compute > 1:
            fits = False
        elif not part.guest:
            shelf = _best(own, memory, compute)
            if shelf is None:
                shelf = _Shelf(leaf_memory, Fraction(1))
                own.append(shelf)
            shelf.memory -= memory
            shelf.compute -= compute
    return Charges(leaves={vc: len(own) for vc, own in shelves.items()}, fits=fits)


def _compute_of(part: DevicePart, memory: int, leaf_memory: int) -> Fraction:
    if part.compute is not None:
        return part.compute
    return Fraction(-(-20 * memory // leaf_memory), 20)


def _best(shelves: list[_Shelf], memory: int, compute: Fraction) -> _Shelf | None:
    fitting = [s for s in shelves if s.memory >= memory and s.compute >= compute]
    return min(fitting, key=lambda shelf: (shelf.memory, shelf.compute), default=None)
