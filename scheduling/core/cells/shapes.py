"""The shape of a node: which of its devices to take, so that they are close to each other."""

from collections.abc import Iterator


class NodeShape:
    """Which leaves to take inside a node: the tightest sub-cell that has enough of them.

    Masks have bit ``i`` for the ``i``-th leaf of the node. Answers are remembered, so the worst
    case (a fragmented node) costs one walk over the sub-cells and one dictionary look-up after.
    """

    __slots__ = ("_memo", "cells", "full", "size")

    def __init__(self, cells: tuple[tuple[int, ...], ...]) -> None:
        self.cells = cells  # cells[level - 1] = masks of the sub-cells at that level
        self.full = cells[-1][0]
        self.size = self.full.bit_count()
        self._memo: dict[tuple[int, int], tuple[int, int]] = {}

    def choose(self, free: int, count: int, highest: int) -> int:
        """``count`` of the ``free`` leaves with the lowest common ancestor; 0 if there are none.

        Among equally tight sub-cells the one with the fewest free leaves wins, then its parents',
        then the first in the order of the configuration.

        Args:
            free: mask of the leaves that may be taken.
            count: how many leaves, at least 1.
            highest: the highest level the common ancestor may have.
        """
        found = self._memo.get((free, count))
        if found is None:
            found = self._memo[free, count] = self._search(free, count)
        level, mask = found
        return mask if level <= highest else 0

    def level_of(self, mask: int) -> int:
        """Level of the lowest common ancestor of the leaves in ``mask``."""
        for level, masks in enumerate(self.cells, start=1):
            if any(mask & cell == mask for cell in masks):
                return level
        return len(self.cells)

    def _search(self, free: int, count: int) -> tuple[int, int]:
        for level, masks in enumerate(self.cells, start=1):
            best: tuple[int, ...] | None = None
            chosen = 0
            for cell in masks:
                have = (free & cell).bit_count()
                if have < count or (best is not None and have > best[0]):
                    continue
                key = (have, *self._crowding(cell, free, level))
                if best is None or key < best:
                    best, chosen = key, free & cell
            if best is not None:
                return level, _lowest_bits(chosen, count)
        return len(self.cells) + 1, 0

    def _crowding(self, cell: int, free: int, level: int) -> Iterator[int]:
        for masks in self.cells[level:]:
            for parent in masks:
                if parent & cell == cell:
                    yield (free & parent).bit_count()


def _lowest_bits(mask: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken
