"""Totals of the fleet by interval: samples, their sums, and quantiles of waits."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple, Self, TypeVar

K = TypeVar("K")

BINS_PER_DOUBLING: Final = 4
MOST_BIN: Final = 100
"""Last bin of waits; its upper bound is about a year."""

STATES: Final = ("ready", "draining", "cordoned", "suspect", "down")
"""States of a node, from best to worst."""


class NodeTotals(NamedTuple):
    """Sums over the samples of one node.

    ``busy`` is the sum of the utilisations (0 to 1) in ``reports`` reports of devices. ``held``
    and ``devices`` are sums of device counts. ``worst`` is an index of ``STATES``.
    """

    busy: float = 0.0
    reports: int = 0
    held: int = 0
    devices: int = 0
    worst: int = 0

    def plus(self, other: "NodeTotals") -> "NodeTotals":
        """Return the sums of both, and the worse state."""
        return NodeTotals(
            round(self.busy + other.busy, 4),
            self.reports + other.reports,
            self.held + other.held,
            self.devices + other.devices,
            max(self.worst, other.worst),
        )


class VcTotals(NamedTuple):
    """Sums of device counts of one virtual cluster, and of its waiting jobs (``queued``)."""

    guarantee: int = 0
    used: int = 0
    borrowed: int = 0
    lent: int = 0
    queued: int = 0
    queued_devices: int = 0

    def plus(self, other: "VcTotals") -> "VcTotals":
        """Return the sums of both."""
        return VcTotals(*(a + b for a, b in zip(self, other, strict=True)))


class FreeTotals(NamedTuple):
    """Idle devices, and those of them that no gang of a size can use, by gang size.

    ``samples`` counts the samples with a known fragmentation.
    """

    samples: int = 0
    idle: float = 0.0
    stranded: Mapping[int, float] = {}

    def plus(self, other: "FreeTotals") -> "FreeTotals":
        """Return the sums of both."""
        sizes = sorted({*self.stranded, *other.stranded})
        return FreeTotals(
            self.samples + other.samples,
            self.idle + other.idle,
            {size: self.stranded.get(size, 0.0) + other.stranded.get(size, 0.0) for size in sizes},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """Sums over the samples of one interval; one sample is the totals of one instant.

    Attributes:
        nodes: by name.
        virtual_clusters: by ID.
        waits: jobs first started, by virtual cluster and bin of their wait.
        preemptions: by preempted virtual cluster, and beneficiary (its ID, or 0 if the cause is
            no job) or the cause.
        free: idle and stranded devices.
    """

    nodes: Mapping[str, NodeTotals] = field(default_factory=dict)
    virtual_clusters: Mapping[int, VcTotals] = field(default_factory=dict)
    waits: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    preemptions: Mapping[tuple[int, int, str], int] = field(default_factory=dict)
    free: FreeTotals = field(default_factory=FreeTotals)

    def plus(self, other: "FleetTotals") -> "FleetTotals":
        """Return the sums of both."""
        none, empty = NodeTotals(), VcTotals()
        return FleetTotals(
            nodes={
                name: self.nodes.get(name, none).plus(other.nodes.get(name, none))
                for name in sorted({*self.nodes, *other.nodes})
            },
            virtual_clusters={
                pk: self.virtual_clusters.get(pk, empty).plus(
                    other.virtual_clusters.get(pk, empty)
                )
                for pk in sorted({*self.virtual_clusters, *other.virtual_clusters})
            },
            waits={
                pk: added(self.waits.get(pk, {}), other.waits.get(pk, {}))
                for pk in sorted({*self.waits, *other.waits})
            },
            preemptions=added(self.preemptions, other.preemptions),
            free=self.free.plus(other.free),
        )

    def to_columns(self) -> dict[str, Any]:
        """Return the totals as JSON documents, by column."""
        return {
            # Few long lists instead of one for each node: parsing them takes a third of the time.
            "nodes": [list(self.nodes), *map(list, zip(*self.nodes.values(), strict=True))],
            "virtual_clusters": {str(pk): one for pk, one in self.virtual_clusters.items()},
            "waits": {
                str(pk): {str(place): n for place, n in bins.items()}
                for pk, bins in self.waits.items()
            },
            "preemptions": [[*key, n] for key, n in self.preemptions.items()],
            "free": [
                self.free.samples,
                self.free.idle,
                {str(size): value for size, value in self.free.stranded.items()},
            ],
        }

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Self:
        """Return the totals of ``to_columns``; missing columns are empty."""
        samples, idle, stranded = columns.get("free") or (0, 0.0, {})
        return cls(
            nodes=_nodes_from(columns.get("nodes") or [[]]),
            virtual_clusters={
                int(pk): VcTotals(*one) for pk, one in columns.get("virtual_clusters", {}).items()
            },
            waits={
                int(pk): {int(place): n for place, n in bins.items()}
                for pk, bins in columns.get("waits", {}).items()
            },
            preemptions={
                (victim, winner, cause): n
                for victim, winner, cause, n in columns.get("preemptions", ())
            },
            free=FreeTotals(samples, idle, {int(size): one for size, one in stranded.items()}),
        )


def _nodes_from(columns: Sequence[Sequence[Any]]) -> Mapping[str, NodeTotals]:
    names, *sums = columns
    return dict(zip(names, map(NodeTotals._make, zip(*sums, strict=True)), strict=True))


def added(left: Mapping[K, int], right: Mapping[K, int]) -> dict[K, int]:
    """Return the sums of two mappings of counts, in the order of their first keys."""
    return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}


def wait_bin(seconds: float) -> int:
    """Return the bin of a wait; bins grow by a factor of 2 ** (1 / ``BINS_PER_DOUBLING``)."""
    if seconds <= 1.0:
        return 0
    return min(math.ceil(BINS_PER_DOUBLING * math.log2(seconds)), MOST_BIN)


def wait_bins(waits: Iterable[float]) -> dict[int, int]:
    """Return the number of waits in each bin."""
    found: dict[int, int] = {}
    for seconds in waits:
        place = wait_bin(seconds)
        found[place] = found.get(place, 0) + 1
    return found


def wait_quantile(bins: Mapping[int, int], level: float) -> float | None:
    """Return a quantile in seconds, at most 9 % from the exact one above 1 s; None without waits.

    The result is the geometric mean of the bin's bounds, so both directions have the same error.
    """
    places = sorted(bins)
    total = sum(bins.values())
    if not total:
        return None
    rank = max(1, math.ceil(level * total))
    counts = accumulate(bins[place] for place in places)
    place = next(place for place, count in zip(places, counts, strict=True) if count >= rank)
    return 0.0 if not place else round(2.0 ** ((place - 0.5) / BINS_PER_DOUBLING), 3)
