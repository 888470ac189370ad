"""Buddy allocation of cells: free lists by level, splitting, merging and counters.

The free list follows from the allocated cells alone: it has the largest complete cells without an
allocated cell inside. So releasing a cell undoes its allocation exactly, independently of the
order of earlier operations.
"""

from collections.abc import Iterator
from typing import Final

from scheduling.core.cells.errors import CellError
from scheduling.core.cells.topology import ChainTopology

INSIDE: Final = 0  # the cell is inside a free or an allocated cell
FREE: Final = 1
SPLIT: Final = 2
ALLOCATED: Final = 3

BAD: Final = 1 << 30  # added to the key of a free cell that contains an unhealthy device
_WORD: Final = 10


class IndexSet:
    """A set of small integers with its minimum in constant time."""

    __slots__ = ("summary", "words")

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.summary = 0

    def add(self, index: int) -> None:
        """Add ``index``, which must not be a member."""
        word = index >> _WORD
        self.words[word] = self.words.get(word, 0) | 1 << (index & 1023)
        self.summary |= 1 << word

    def remove(self, index: int) -> None:
        """Remove ``index``, which must be a member."""
        word = index >> _WORD
        left = self.words[word] ^ 1 << (index & 1023)
        if left:
            self.words[word] = left
        else:
            del self.words[word]
            self.summary ^= 1 << word

    def first(self) -> int:
        """Return the smallest member; the set must not be empty."""
        word = (self.summary & -self.summary).bit_length() - 1
        bits = self.words[word]
        return (word << _WORD) + (bits & -bits).bit_length() - 1

    def __iter__(self) -> Iterator[int]:
        """Iterate over the members in ascending order; the set must not change meanwhile."""
        words = self.summary
        while words:
            word = (words & -words).bit_length() - 1
            words &= words - 1
            bits = self.words[word]
            while bits:
                yield (word << _WORD) + (bits & -bits).bit_length() - 1
                bits &= bits - 1

    def __len__(self) -> int:
        """Return the number of members."""
        return sum(bits.bit_count() for bits in self.words.values())

    def __contains__(self, index: int) -> bool:
        """Return whether ``index`` is a member."""
        return bool(self.words.get(index >> _WORD, 0) >> (index & 1023) & 1)

    def members(self) -> list[int]:
        """Return all members in ascending order."""
        return list(self)

    def copy(self) -> "IndexSet":
        """Return an independent set with equal members."""
        other = IndexSet()
        other.words, other.summary = dict(self.words), self.summary
        return other


class BuddyAllocator:
    """Allocates the cells of one chain and counts free, healthy and claimed cells by level.

    Attributes:
        state: INSIDE, FREE, SPLIT or ALLOCATED by cell.
        free_count: free cells by level.
        total_left: cells of a level that are free or inside free cells.
        healthy_left: cells of ``total_left`` without an unhealthy device.
        opportunistic: devices inside a cell that opportunistic jobs use, by cell.
        bad: bad devices inside a cell, by cell.
        claimed: cells by level that quotas may still claim (the sum over virtual clusters).
    """

    __slots__ = (
        "_free_children",
        "_lists",
        "bad",
        "claimed",
        "free_count",
        "healthy_left",
        "opportunistic",
        "state",
        "topology",
        "total_left",
    )

    def __init__(self, topology: ChainTopology) -> None:
        self.topology = topology
        count, levels = len(topology), topology.levels
        self.state = [INSIDE] * count
        self.opportunistic = [0] * count
        self.bad = [0] * count
        self._free_children = [0] * count
        self._lists: list[dict[int, IndexSet]] = [{} for _ in range(levels + 1)]
        self.free_count = [0] * (levels + 1)
        self.total_left = [0] * (levels + 1)
        self.claimed = [0] * (levels + 1)
        for cell in range(count):
            if not topology.complete[cell]:
                self.state[cell] = SPLIT
        for root in topology.roots:
            self._push(root)
            for level in range(1, topology.level[root] + 1):
                self.total_left[level] += topology.sizes[topology.level[root]][level]
        self.healthy_left = list(self.total_left)

    def copy(self) -> "BuddyAllocator":
        """Return an independent allocator with an equal state."""
        other = object.__new__(BuddyAllocator)
        other.topology = self.topology
        other.state = list(self.state)
        other.opportunistic = list(self.opportunistic)
        other.bad = list(self.bad)
        other._free_children = list(self._free_children)
        other._lists = [
            {key: members.copy() for key, members in lists.items()} for lists in self._lists
        ]
        other.free_count = list(self.free_count)
        other.total_left = list(self.total_left)
        other.healthy_left = list(self.healthy_left)
        other.claimed = list(self.claimed)
        return other

    def allocate(self, cell: int) -> None:
        """Allocate ``cell``, which is free or inside a free cell; split the cells above it.

        Raises:
            CellError: the cell is neither free nor inside a free cell.
        """
        topology, state = self.topology, self.state
        holder = self.free_holder(cell)
        if holder < 0:
            raise CellError(
                f"cell {topology.address[cell]!r} is not free",
                field="cell",
                value=topology.address[cell],
                remedy="release it first",
            )
        self._pop(holder)
        here = cell
        while here != holder:
            parent = topology.parent[here]
            state[parent] = SPLIT
            for sibling in range(topology.child_lo[parent], topology.child_hi[parent]):
                if sibling != here:
                    self._push(sibling)
            here = parent
        state[cell] = ALLOCATED
        self._count(cell, holder, -1)

    def release(self, cell: int) -> None:
        """Release ``cell`` and merge free siblings upward; the exact inverse of ``allocate``."""
        topology, state = self.topology, self.state
        if state[cell] != ALLOCATED:
            raise CellError(
                f"cell {topology.address[cell]!r} is not allocated",
                field="cell",
                value=topology.address[cell],
                remedy="release only allocated cells",
            )
        state[cell] = INSIDE
        here = cell
        while True:
            parent = topology.parent[here]
            if (
                parent < 0
                or not topology.complete[parent]
                or self._free_children[parent] != topology.fan[topology.level[parent]] - 1
            ):
                break
            for sibling in range(topology.child_lo[parent], topology.child_hi[parent]):
                if sibling != here:
                    self._pop(sibling)
            here = parent
            state[here] = INSIDE
        self._push(here)
        self._count(cell, here, 1)

    def free_holder(self, cell: int) -> int:
        """Return the free cell that is or contains ``cell``, else -1."""
        state, parent = self.state, self.topology.parent
        while cell >= 0 and state[cell] == INSIDE:
            cell = parent[cell]
        return cell if cell >= 0 and state[cell] == FREE else -1

    def allocated_holder(self, cell: int) -> int:
        """Return the allocated cell that is or contains ``cell``, else -1."""
        state, parent = self.state, self.topology.parent
        while cell >= 0 and state[cell] == INSIDE:
            cell = parent[cell]
        return cell if cell >= 0 and state[cell] == ALLOCATED else -1

    def splittable(self) -> list[int]:
        """Return the cells by level that remain after every unclaimed quota has claimed its cells.

        Safety: no number is negative, so quotas can be claimed in any order (OSDI '20, theorem).
        """
        levels = self.topology.levels
        left = [0] * (levels + 2)
        for level in range(levels, 0, -1):
            above = left[level + 1] * self.topology.fan[level + 1] if level < levels else 0
            left[level] = above + self.free_count[level] - self.claimed[level]
        return left

    def reach(self, level: int) -> int:
        """Return the highest level whose free cells may be split for a quota of ``level``.

        Splitting a cell of level ``m`` is safe while every level in between has a spare cell.
        """
        left = self.splittable()
        high = level
        while high < self.topology.levels and left[high + 1] >= 1:
            high += 1
        return high

    def keys(self, level: int) -> list[int]:
        """Return ascending keys of a level's free cells: opportunistic devices, plus ``BAD``."""
        return sorted(self._lists[level])

    def first(self, level: int, key: int) -> int:
        """Return the first free cell of a level with a key, else -1."""
        members = self._lists[level].get(key)
        return self.topology.base[level] + members.first() if members is not None else -1

    def free_cells(self, level: int, key: int | None = None) -> list[int]:
        """Return the free cells of a level in order, optionally only those with a key."""
        base, lists = self.topology.base[level], self._lists[level]
        if key is not None:
            return [base + i for i in lists[key].members()] if key in lists else []
        return sorted(base + i for members in lists.values() for i in members.members())

    def count_opportunistic(self, leaf: int, change: int) -> None:
        """Count a device that an opportunistic job takes (+1) or frees (-1)."""
        self._walk(self.opportunistic, leaf, change)

    def count_bad(self, leaf: int, change: int) -> None:
        """Count a device that becomes unhealthy (+1) or healthy (-1)."""
        bad, level = self.bad, self.topology.level
        holder = self.free_holder(leaf)
        if holder >= 0:
            turning = 1 if change < 0 else 0
            here = leaf
            while True:
                if bad[here] == turning:
                    self.healthy_left[level[here]] -= change
                if here == holder:
                    break
                here = self.topology.parent[here]
        self._walk(bad, leaf, change)

    def _walk(self, counter: list[int], leaf: int, change: int) -> None:
        state, parent = self.state, self.topology.parent
        here = leaf
        while here >= 0:
            if state[here] == FREE:
                self._pop(here)
                counter[here] += change
                self._push(here)
            else:
                counter[here] += change
            here = parent[here]

    def _push(self, cell: int) -> None:
        topology = self.topology
        level = topology.level[cell]
        key = self.opportunistic[cell]
        if self.bad[cell]:
            key += BAD
        members = self._lists[level].get(key)
        if members is None:
            members = self._lists[level][key] = IndexSet()
        members.add(cell - topology.base[level])
        self.state[cell] = FREE
        self.free_count[level] += 1
        parent = topology.parent[cell]
        if parent >= 0:
            self._free_children[parent] += 1

    def _pop(self, cell: int) -> None:
        topology = self.topology
        level = topology.level[cell]
        key = self.opportunistic[cell]
        if self.bad[cell]:
            key += BAD
        members = self._lists[level][key]
        members.remove(cell - topology.base[level])
        if not members.summary:
            del self._lists[level][key]
        self.state[cell] = INSIDE
        self.free_count[level] -= 1
        parent = topology.parent[cell]
        if parent >= 0:
            self._free_children[parent] -= 1

    def _count(self, cell: int, holder: int, sign: int) -> None:
        topology, bad = self.topology, self.bad
        level = topology.level[cell]
        sizes = topology.sizes[level]
        for low in range(1, level + 1):
            self.total_left[low] += sign * sizes[low]
        if bad[cell]:
            self._count_healthy(cell, sign)
        else:
            for low in range(1, level + 1):
                self.healthy_left[low] += sign * sizes[low]
        here = cell
        while here != holder:
            here = topology.parent[here]
            high = topology.level[here]
            self.total_left[high] += sign
            if not bad[here]:
                self.healthy_left[high] += sign

    def _count_healthy(self, cell: int, sign: int) -> None:
        topology = self.topology
        if not self.bad[cell]:
            sizes = topology.sizes[topology.level[cell]]
            for low in range(1, topology.level[cell] + 1):
                self.healthy_left[low] += sign * sizes[low]
            return
        for child in range(topology.child_lo[cell], topology.child_hi[cell]):
            self._count_healthy(child, sign)
