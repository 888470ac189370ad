"""Backtracking search for a guaranteed gang in a chain with unhealthy or excluded nodes.

The greedy search opens the smallest quota cells first. If free cells are damaged, this may split
the only healthy cell of a higher level. This search tries the other bins, levels and cells, too.
It tries equal choices once, and the number of its trials is limited.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from scheduling.core.cells.ledger import ChainLedger
from scheduling.core.cells.picking import SCAN, CellPicker, Item, Spot
from scheduling.core.cells.pool import Pool

SPARE_TRIALS = 200  # trials beyond one per instance

Trial = Callable[[], Spot | None]


class BacktrackingSearch:
    """Tries bins and free cells for one instance after the other, and reverts bad choices.

    Args:
        ledger: ledger of the chain; its log must be open.
        pool: the quota.
        picker: finds free cells for the quota.
        bins: returns one owned bin of each kind for an instance.
        take: places an instance in a bin.
        rollback: reverts the books to a length of the log.
    """

    __slots__ = ("bins", "ledger", "picker", "pool", "rollback", "take")

    def __init__(
        self,
        ledger: ChainLedger,
        pool: Pool,
        picker: CellPicker,
        *,
        bins: Callable[[Item], list[int]],
        take: Callable[[Item, int], Spot | None],
        rollback: Callable[[int], None],
    ) -> None:
        self.ledger = ledger
        self.pool = pool
        self.picker = picker
        self.bins = bins
        self.take = take
        self.rollback = rollback

    def run(self, items: list[Item]) -> list[Spot] | None:
        """Place all items; None if they do not fit, or the limit of trials is reached."""
        log = self.ledger.log
        assert log is not None  # noqa: S101 (opened by the engine)
        spots: list[Spot] = []
        levels = [(len(log), self._trials(items[0]))]
        for _ in range(SPARE_TRIALS + len(items)):
            while levels:
                mark, trials = levels[-1]
                self.rollback(mark)
                del spots[len(levels) - 1 :]
                trial = next(trials, None)
                if trial is not None:
                    break
                levels.pop()
            else:
                return None
            spot = trial()
            if spot is None:
                continue
            spots.append(spot)
            if len(spots) == len(items):
                return spots
            levels.append((len(log), self._trials(items[len(spots)])))
        return None

    def _trials(self, item: Item) -> Iterator[Trial]:
        """Yield the choices for an item: owned bins, then free cells, the largest first."""
        for key in self.bins(item):
            yield partial(self.take, item, key)
        caps = self.ledger.topology.caps
        for level in range(self.ledger.topology.levels, 0, -1):
            if self.pool.unbound[level] and caps[level] >= item.size:
                for cell in self._kinds(level, item):
                    yield partial(self._open, item, cell)

    def _kinds(self, level: int, item: Item) -> list[int]:
        """Return one free cell of each kind, complete cells first, from damaged ones first."""
        kinds: dict[tuple[object, ...], tuple[bool, int, int]] = {}
        topology = self.ledger.topology
        for cell in islice(self.picker.candidates(level, item), SCAN):
            pieces = sorted(mask.bit_count() for _, mask in self.picker.usable(cell))
            around = self._around(cell)
            is_damaged = sum(pieces) < topology.sizes[level][1]
            lost = topology.sizes[level + len(around)][1] - around[-1] if around else 0
            kinds.setdefault((tuple(pieces), around), (is_damaged, -lost, cell))
        return [cell for _, _, cell in sorted(kinds.values())]

    def _around(self, cell: int) -> tuple[int, ...]:
        """Return the usable devices of each cell between a cell and the free cell around it."""
        holder, parent = self.ledger.buddy.free_holder(cell), self.ledger.topology.parent
        found = []
        while cell != holder:
            cell = parent[cell]
            found.append(sum(mask.bit_count() for _, mask in self.picker.usable(cell)))
        return tuple(found)

    def _open(self, item: Item, cell: int) -> Spot | None:
        """Bind a free cell, and place the item in its fullest bin with room."""
        topology = self.ledger.topology
        rooms = sorted((mask.bit_count(), node) for node, mask in self.picker.usable(cell))
        small = topology.level[cell] < topology.node_level
        self.ledger.own(self.pool, cell)
        spots = (
            self.take(item, self.ledger.first_small + cell if small else node)
            for room, node in rooms
            if room >= item.size
        )
        return next((spot for spot in spots if spot is not None), None)
