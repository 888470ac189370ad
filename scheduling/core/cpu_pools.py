"""CPUs and memory of nodes that belong to no device, and the instances that lease parts of them.

Each device of a node has a share of its CPUs and memory, which only jobs with that device use. The
rest of the node is its pool, for instances of jobs without devices. Amounts are integers, so that
sums of parts are exact.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final, NamedTuple

_MILLI: Final = 1000
_ROUNDING: Final = 1e-6
LEAST_MEMORY: Final = 1 << 20
"""A pool with less memory in bytes, or without a thousandth of a CPU, does not exist.

The equal shares of devices leave a rest of a few bytes.
"""


class Amount(NamedTuple):
    """Thousandths of a CPU, and bytes of memory."""

    millicpus: int
    memory: int

    @classmethod
    def wanted(cls, cpus: float | None, memory: int | None) -> "Amount":
        """Return a requested amount, rounded up."""
        return cls(ceil((cpus or 0.0) * _MILLI - _ROUNDING), memory or 0)

    @classmethod
    def there(cls, cpus: float, memory: int) -> "Amount":
        """Return an existing amount, rounded down."""
        return cls(floor(cpus * _MILLI + _ROUNDING), memory)

    @property
    def cpus(self) -> float:
        """The CPUs."""
        return self.millicpus / _MILLI

    def plus(self, other: "Amount") -> "Amount":
        return Amount(self.millicpus + other.millicpus, self.memory + other.memory)

    def minus(self, other: "Amount") -> "Amount":
        return Amount(self.millicpus - other.millicpus, self.memory - other.memory)

    def within(self, other: "Amount") -> bool:
        """Return whether ``other`` has at least this much of both."""
        return self.millicpus <= other.millicpus and self.memory <= other.memory

    def by(self, count: int) -> "Amount":
        return Amount(self.millicpus * count, self.memory * count)

    def times(self, part: "Amount") -> int:
        """Return how many times it contains ``part``; 0 if that is nothing."""
        return min((has // each for has, each in zip(self, part, strict=True) if each), default=0)

    def least(self, other: "Amount") -> "Amount":
        """Return the smaller number of each."""
        return Amount(min(self.millicpus, other.millicpus), min(self.memory, other.memory))

    def part_of(self, whole: "Amount") -> float:
        """Return the dominant share: the larger part of the two resources of ``whole``."""
        return max(
            self.millicpus / whole.millicpus if whole.millicpus > 0 else 0.0,
            self.memory / whole.memory if whole.memory > 0 else 0.0,
        )

    def parts_of(self, whole: "Amount") -> float:
        """Return the sum of the parts of the two resources of ``whole``."""
        return self.millicpus / whole.millicpus + self.memory / whole.memory


NOTHING: Final = Amount(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPool:
    """CPUs and bytes of memory of a node that belong to none of its devices."""

    node: str
    cpus: float
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLease:
    """The part of a node's pool that an instance holds."""

    node: str
    cpus: float
    memory: int


def pool_of(
    node: str, *, cpus: float, memory: int, shares: Iterable[tuple[float, int]]
) -> CpuPool | None:
    """Return the pool of a node, or None if its devices have everything.

    Args:
        node: its name.
        cpus: CPUs of the node.
        memory: bytes of the node.
        shares: CPUs and bytes of each device.
    """
    given = list(shares)
    left = Amount.there(
        cpus - sum(share for share, _ in given), memory - sum(share for _, share in given)
    )
    if left.millicpus < 1 or left.memory < LEAST_MEMORY:
        return None
    return CpuPool(node=node, cpus=left.cpus, memory=left.memory)


def total_of(amounts: Iterable[Amount]) -> Amount:
    """Return the sum of some amounts."""
    found = NOTHING
    for amount in amounts:
        found = found.plus(amount)
    return found


def gibibytes(memory: int) -> float:
    """Return bytes in GiB for a message, rounded down to a tenth."""
    return floor(memory / 2**30 * 10) / 10


def in_use(leases: Iterable[PoolLease]) -> dict[str, Amount]:
    """Return the leased amount by node."""
    found: dict[str, Amount] = defaultdict(lambda: NOTHING)
    for lease in leases:
        found[lease.node] = found[lease.node].plus(Amount.wanted(lease.cpus, lease.memory))
    return dict(found)


def sizes_of(pools: Iterable[CpuPool]) -> dict[str, Amount]:
    """Return the size of each pool by node."""
    return {pool.node: Amount.there(pool.cpus, pool.memory) for pool in pools}


def fitted(
    instances: Sequence[Amount],
    free: Mapping[str, Amount],
    sizes: Mapping[str, Amount],
    nodes: Collection[str],
) -> tuple[str, ...] | None:
    """Place all instances of a gang by best fit, the largest first.

    Args:
        instances: amount of each.
        free: free amounts by node.
        sizes: sizes of the pools by node, for relative amounts.
        nodes: the permitted nodes.

    Returns:
        The node of each instance, or None if they were not placed. As for any greedy packing, a
        gang of unequal instances may fit although it was not placed.
    """
    left = {name: free[name] for name in nodes if name in free}
    whole = Amount(
        max((size.millicpus for size in sizes.values()), default=0),
        max((size.memory for size in sizes.values()), default=0),
    )
    alike: dict[Amount, list[int]] = defaultdict(list)
    for at, wanted in enumerate(instances):
        alike[wanted].append(at)
    placed: dict[int, str] = {}
    for wanted in sorted(alike, key=lambda one: (-one.part_of(whole), alike[one][0])):
        waiting = alike[wanted]
        # After an instance, its node is still the best fit: equal instances fill node by node.
        order = sorted(
            (amount.minus(wanted).parts_of(sizes[name]), name)
            for name, amount in left.items()
            if wanted.within(amount)
        )
        for _, name in order:
            count = min(left[name].times(wanted), len(waiting))
            placed.update(dict.fromkeys(waiting[:count], name))
            left[name] = left[name].minus(wanted.by(count))
            waiting = waiting[count:]
            if not waiting:
                break
        if waiting:
            return None
    return tuple(placed[at] for at in range(len(instances)))
