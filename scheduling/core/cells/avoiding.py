"""Soft avoidance of devices on which unusually many jobs failed: only between equal choices.

Each search first chooses as if there were no such devices. Only if its choice contains one, an
equal choice with fewer of them replaces it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.topology import NodeShape

SCAN = 64  # maximum number of compared choices


class Choice(NamedTuple):
    """Devices of a node, found through ``key`` (a bin, or the node), with their price."""

    key: int
    node: int
    mask: int
    price: tuple[float, ...] = ()


def choose(ledger: ChainLedger, node: int, free: int, size: int, within: int) -> int:
    """Choose devices of a node like ``NodeShape.choose``, with few devices to avoid."""
    shape = ledger.topology.shapes[node]
    mask = shape.choose(free, size, within)
    avoided = ledger.avoided.get(node, 0) if ledger.avoided else 0
    if not mask & avoided:
        return mask
    found = _spared(shape, free, mask, avoided)
    if found != mask:
        ledger.has_swerved = True
    return found


def best_choice(ledger: ChainLedger, choices: Iterable[Choice]) -> Choice | None:
    """Return the first choice, or an equal one with fewer devices to avoid; None without any.

    A choice on another node is equal if it costs no more, and if its devices are as close.
    """
    several = iter(choices)
    best = first = next(several, None)
    if best is None or first is None:
        return None
    left = _avoided(ledger, best)
    if not left:
        return best
    level = ledger.topology.shapes[first.node].level_of(first.mask)
    for other in islice(several, SCAN):
        number = _avoided(ledger, other)
        if (
            number < left
            and other.price <= first.price
            and ledger.topology.shapes[other.node].level_of(other.mask) <= level
        ):
            best, left = other, number
            ledger.has_swerved = True
            if not left:
                break
    return best


def _avoided(ledger: ChainLedger, choice: Choice) -> int:
    return (choice.mask & ledger.avoided.get(choice.node, 0)).bit_count()


def _spared(shape: NodeShape, free: int, mask: int, avoided: int) -> int:
    """Return an equal choice in a cell of the same level with fewer avoided devices.

    Two choices are equal if they leave the same numbers of free devices in the cells of each
    level, so that the same instances fit afterwards.
    """
    count, best, rest = mask.bit_count(), mask, _left(shape, free & ~mask)
    for cell in shape.cells[shape.level_of(mask) - 1]:
        if (free & cell).bit_count() < count:
            continue
        for other in _picks(free & cell, count, avoided):
            fewer = (other & avoided).bit_count() < (best & avoided).bit_count()
            if fewer and _left(shape, free & ~other) == rest:
                best = other
    return best


def _picks(free: int, count: int, avoided: int) -> Iterator[int]:
    """Yield choices with as few avoided devices as possible: the lowest and the highest bits."""
    bits = [1 << i for i in range(free.bit_length()) if free >> i & 1]
    for order in (bits, bits[::-1]):
        yield sum(sorted(order, key=lambda bit: bit & avoided > 0)[:count])


def _left(shape: NodeShape, free: int) -> list[list[int]]:
    return [sorted((free & cell).bit_count() for cell in masks) for masks in shape.cells]
