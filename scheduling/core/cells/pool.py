"""The share of a virtual cluster in one chain, as numbered bins that instances are packed into.

A bin is a node of an owned cell, or an owned cell below node level. The choice of a bin must
depend only on the history of the virtual cluster, otherwise sharing could be worse than a private
cluster. So bins in use have virtual numbers (the lowest free number first), and the search
compares them by free devices (without opportunistic users) and number. Empty bins of one size are
equal, so there the search may consider the cost of evictions.
"""

from scheduling.core.cells.buddy import IndexSet


class Pool:
    """The share of one virtual cluster in one chain, or one pinned cell of it.

    Attributes:
        number: index in the ledger's list of pools.
        vc: virtual cluster.
        pinned: id of the pinned cell, or None for the ordinary quota.
        slots: numbers of the preassigned virtual cells by level.
        unbound: number of preassigned cells without a physical cell, by level.
        masks: bin -> mask of its devices inside their node.
        used: used[n] = bitmap of the numbers of bins in use with n usable devices.
        empty: unused bins by number of usable devices.
        bins: virtual number -> bin, for bins in use.
        used_sizes, empty_sizes: bitmaps of the n with such bins.
        reserved: the physical cells that may be bound; None for all safe ones.
    """

    __slots__ = (
        "_free_slots",
        "_held",
        "_taken",
        "bins",
        "empty",
        "empty_sizes",
        "masks",
        "number",
        "pinned",
        "reserved",
        "slots",
        "unbound",
        "used",
        "used_sizes",
        "vc",
    )

    def __init__(
        self, number: int, vc: str, pinned: str | None, *, levels: int, node_size: int
    ) -> None:
        self.number = number
        self.vc = vc
        self.pinned = pinned
        self.slots: list[list[int]] = [[] for _ in range(levels + 1)]
        self.unbound = [0] * (levels + 1)
        self._free_slots = [0] * (levels + 1)
        self.masks: dict[int, int] = {}
        self.used = [0] * (node_size + 1)
        self.empty = [IndexSet() for _ in range(node_size + 1)]
        self.used_sizes = self.empty_sizes = 0
        self.bins: dict[int, int] = {}
        self._held: dict[int, tuple[int, int]] = {}  # bin -> (number or -1, usable devices)
        self._taken = 0
        self.reserved: frozenset[int] | None = None

    def copy(self) -> "Pool":
        """Return an independent pool with an equal state."""
        other = object.__new__(Pool)
        other.number, other.vc, other.pinned = self.number, self.vc, self.pinned
        other.slots = self.slots
        other.unbound = list(self.unbound)
        other._free_slots = list(self._free_slots)
        other.masks = dict(self.masks)
        other.used = list(self.used)
        other.empty = [bins.copy() for bins in self.empty]
        other.used_sizes, other.empty_sizes = self.used_sizes, self.empty_sizes
        other.bins = dict(self.bins)
        other._held = dict(self._held)
        other._taken = self._taken
        other.reserved = self.reserved
        return other

    def add_slot(self, level: int, slot: int) -> None:
        """Add a preassigned cell of the virtual cluster."""
        self._free_slots[level] |= 1 << len(self.slots[level])
        self.slots[level].append(slot)
        self.unbound[level] += 1

    def take_slot(self, level: int, position: int | None = None) -> int:
        """Bind a preassigned cell, by default the first unbound one of a level; its position."""
        free = self._free_slots[level]
        if position is None:
            position = (free & -free).bit_length() - 1
        self._free_slots[level] = free & ~(1 << position)
        self.unbound[level] -= 1
        return position

    def is_free(self, level: int, position: int) -> bool:
        """Return whether a preassigned cell is unbound."""
        return bool(self._free_slots[level] >> position & 1)

    def take_first_slots(self, level: int, count: int) -> None:
        """Bind exactly the first ``count`` preassigned cells of a level."""
        self._free_slots[level] = (1 << len(self.slots[level])) - (1 << count)

    def return_slot(self, level: int, position: int) -> None:
        """Undo ``take_slot``."""
        self._free_slots[level] |= 1 << position
        self.unbound[level] += 1

    def count(self, key: int, avail: int, *, in_use: bool) -> None:
        """Update a bin: its number of usable devices, and whether any device is in use."""
        held = self._held.get(key)
        number = held[0] if held is not None else -1
        if held is not None:
            if (number >= 0) == in_use:
                if held[1] == avail:
                    return
                if in_use:
                    self._refill(key, held, avail)
                    return
            self._drop(key, number, held[1])
        if in_use:
            if number < 0:
                number = (~self._taken & (self._taken + 1)).bit_length() - 1
            self._insert(key, number, avail)
        else:
            self.empty[avail].add(key)
            self.empty_sizes |= 1 << avail
            self._held[key] = (-1, avail)

    def number_of(self, key: int) -> int:
        """Return the virtual number of a bin in use, -1 for an empty bin."""
        return self._held[key][0]

    def renumber(self, numbers: list[tuple[int, int]]) -> None:
        """Set the numbers of bins in use from (bin, number) pairs."""
        wrong = [(key, number) for key, number in numbers if self._held[key][0] != number]
        for key, _ in wrong:
            self._drop(key, *self._held[key])
        for key, number in wrong:
            self._insert(key, number, self._held[key][1])

    def forget(self, key: int) -> None:
        """Remove a bin that the pool does not own any more."""
        self._drop(key, *self._held.pop(key))

    def _insert(self, key: int, number: int, avail: int) -> None:
        self._taken |= 1 << number
        self.bins[number] = key
        self.used[avail] |= 1 << number
        self.used_sizes |= 1 << avail
        self._held[key] = (number, avail)

    def _drop(self, key: int, number: int, avail: int) -> None:
        if number < 0:
            bins = self.empty[avail]
            bins.remove(key)
            if not bins.summary:
                self.empty_sizes ^= 1 << avail
            return
        bit = 1 << number
        self._taken ^= bit
        self._withdraw(bit, avail)
        del self.bins[number]

    def _refill(self, key: int, held: tuple[int, int], avail: int) -> None:
        """Update the usable devices of a bin that remains in use."""
        number, before = held
        bit = 1 << number
        self._withdraw(bit, before)
        self.used[avail] |= bit
        self.used_sizes |= 1 << avail
        self._held[key] = (number, avail)

    def _withdraw(self, bit: int, avail: int) -> None:
        left = self.used[avail] = self.used[avail] ^ bit
        if not left:
            self.used_sizes ^= 1 << avail
