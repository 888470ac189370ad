"""The cell engine in the state of the next round, with cached results for pages."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from threading import Lock
from typing import Any, Final, TypeVar

from scheduling.core.cells import (
    CellEngine,
    ClusterSpec,
    Feasibility,
    SpecError,
    feasible,
    fitting_sizes,
)
from scheduling.core.cells.feasibility import AssignedCell, assign
from scheduling.core.cells.largest_gangs import LargestGang, largest_gangs
from scheduling.core.cells.reconfiguration import ClusterHealth, RunningGang, take_over
from scheduling.core.cells.views import VirtualCell, cells_of
from scheduling.core.round.engine_setup import SameSpec, empty_engine
from scheduling.runs.queries.running import placeable_now, running_now
from scheduling.topology.current import ChainView, TopologyNow

GANG_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class Fit(StrEnum):
    """The time at which a gang of some size can start."""

    NOW = "now"
    LATER = "later"
    BORROW = "borrow"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """The gangs of one device type that fit.

    Attributes:
        sizes: numbers of devices; a size above one node means whole nodes.
        fits: the result for each size.
    """

    device_type: str
    sizes: tuple[int, ...]
    fits: tuple[Fit, ...]


def what_fits(topology: TopologyNow, engine: CellEngine, vc: str) -> tuple[FitRow, ...]:
    """Return which gangs fit a virtual cluster, by device type."""
    account = engine.free_view()["virtual_clusters"][vc]  # type: ignore[index]
    promised = fitting_sizes(engine.spec, vc, engine.topology)
    by_type: dict[str, list[ChainView]] = defaultdict(list)
    for chain in topology.chains.values():
        by_type[chain.device_type].append(chain)
    rows = []
    for device_type, chains in by_type.items():
        now: dict[int, int] = defaultdict(int)
        for chain in chains:
            for size, count in account.get(chain.name, {}).get("largest_gang", {}).items():
                now[size] = max(now[size], count)
        largest = max(chain.devices for chain in chains)
        sizes = tuple(size for size in GANG_SIZES if size <= 2 * largest)
        rows.append(
            FitRow(
                device_type=device_type,
                sizes=sizes,
                fits=tuple(
                    _fit(size, now=now, later=promised.get(device_type, {}), chains=chains)
                    for size in sizes
                ),
            )
        )
    return tuple(rows)


def _fit(
    devices: int, *, now: Mapping[int, int], later: Mapping[int, int], chains: Sequence[ChainView]
) -> Fit:
    if _holds(devices, now, chains):
        return Fit.NOW
    if _holds(devices, later, chains):
        return Fit.LATER
    there = {
        level.devices: level.cells
        for chain in chains
        for level in chain.levels[: chain.node_level]
    }
    return Fit.BORROW if _holds(devices, there, chains) else Fit.NEVER


def _holds(devices: int, instances: Mapping[int, int], chains: Sequence[ChainView]) -> bool:
    """Return whether a gang of ``devices`` devices is among the instances by size.

    A gang that is larger than a node takes whole nodes.
    """
    for chain in chains:
        node = chain.levels[chain.node_level - 1].devices
        size = min(devices, node)
        count = -(-devices // size)
        if any(cell >= size and fit >= count for cell, fit in instances.items() if cell <= node):
            return True
    return False


Made = TypeVar("Made")


class EngineInForce:
    """An engine with current health and running gangs, for one reader at a time."""

    def __init__(
        self, spec: ClusterSpec, running: tuple[RunningGang, ...], health: ClusterHealth
    ) -> None:
        self.spec = spec
        self._running = running
        self._health = health
        self._engine: CellEngine | None = None
        self._answers: dict[Hashable, Any] = {}
        self._lock = Lock()

    def is_of(
        self, spec: ClusterSpec, running: tuple[RunningGang, ...], health: ClusterHealth
    ) -> bool:
        """Return whether the engine has the same specification, gangs and health."""
        return spec is self.spec and running is self._running and health == self._health

    def fits(self, topology: TopologyNow, vc: str) -> tuple[FitRow, ...]:
        """Return which gangs fit a virtual cluster, by device type."""
        return self._once(("fits", vc), lambda engine: what_fits(topology, engine, vc))

    def largest(self, vc: str) -> tuple[LargestGang, ...]:
        """Return the largest gangs of a virtual cluster by device type and instance size."""
        return self._once(("largest", vc), lambda engine: largest_gangs(engine, vc))

    def cells(self, vc: str) -> tuple[VirtualCell, ...]:
        """Return all cells of a virtual cluster by number, bound or not."""
        return self._once(("cells", vc), lambda engine: cells_of(engine, vc))

    def _once(self, question: Hashable, ask: Callable[[CellEngine], Made]) -> Made:
        with self._lock:
            if self._engine is None:
                self._engine = _restored(self.spec, self._running, self._health)
            if question not in self._answers:
                self._answers[question] = ask(self._engine)
            answer: Made = self._answers[question]
            return answer


class _Newest:
    def __init__(self) -> None:
        self._engine: EngineInForce | None = None

    def of(
        self, spec: ClusterSpec, running: tuple[RunningGang, ...], health: ClusterHealth
    ) -> EngineInForce:
        known = self._engine
        if known is None or not known.is_of(spec, running, health):
            self._engine = known = EngineInForce(spec, running, health)
        return known


_NEWEST: Final = _Newest()


def engine_in_force(spec: ClusterSpec) -> EngineInForce:
    """Return the cell engine with current health and running gangs, in four queries.

    Nodes that accept no new work count as unhealthy, as in the next round.
    """
    return _NEWEST.of(spec, running_now(), placeable_now())


def spare_cells(spec: ClusterSpec) -> Mapping[tuple[str, str], int]:
    """Return cells outside all quotas by chain and cell type; empty if the quotas do not fit."""
    return _feasible(SameSpec(spec)).spare or {}


def proof_of(spec: ClusterSpec) -> tuple[AssignedCell, ...]:
    """Return one assignment of cells to all guarantees, or empty if none exists."""
    return _proof(SameSpec(spec))


@lru_cache(maxsize=4)
def _feasible(same: SameSpec) -> Feasibility:
    return feasible(same.spec)


@lru_cache(maxsize=4)
def _proof(same: SameSpec) -> tuple[AssignedCell, ...]:
    try:
        return assign(same.spec)
    except SpecError:
        return ()


def _restored(
    spec: ClusterSpec, running: tuple[RunningGang, ...], health: ClusterHealth
) -> CellEngine:
    engine = empty_engine(spec)
    for node in sorted(health.nodes):
        engine.set_node_health(node, healthy=False)
    for node, index in sorted(health.devices):
        engine.set_device_health(node, index, healthy=False)
    take_over(engine, running)
    return engine
