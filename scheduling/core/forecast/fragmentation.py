"""Forecast of stranded idle devices, by gang size and by level, in simulated futures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from scheduling.core.cells.fragmentation import ChainFragmentation, fragmentation, gang_sizes
from scheduling.core.cells.topology import ChainTopology
from scheduling.core.forecast.arrivals import RecentSubmissions, drawn_futures
from scheduling.core.forecast.durations import RunTimes
from scheduling.core.forecast.futures import LEVELS, Past
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.round.engine_setup import empty_engine
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.simulation import SimulatedCluster, SimulationSettings
from scheduling.core.values import ClusterSnapshot

Band: TypeAlias = tuple[float, float, float]
"""Devices at the quantiles ``LEVELS`` of the futures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainForecast:
    """Stranded devices of one chain over time.

    Attributes:
        levels: cell types from the device up, and devices of a complete cell.
        idle: idle devices at each time.
        by_size: stranded devices at each time by gang size.
        by_level: stranded devices at each time by level.
    """

    chain: str
    leaf_type: str
    devices: int
    levels: tuple[tuple[str, int], ...]
    idle: tuple[Band, ...]
    by_size: Mapping[int, tuple[Band, ...]]
    by_level: tuple[tuple[Band, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentationForecast:
    """Forecast of the present and the next hours.

    Attributes:
        now: seconds since the epoch.
        offsets: times in seconds from ``now``; the first is 0, after the decision of a round.
        futures: completed futures.
    """

    now: float
    offsets: tuple[float, ...]
    futures: int
    chains: tuple[ChainForecast, ...]


def forecast_fragmentation(
    snapshot: ClusterSnapshot,
    times: RunTimes,
    pasts: Mapping[int, Past],
    recent: RecentSubmissions,
    *,
    offsets: Sequence[float],
    futures: int,
    seed: int,
    settings: SimulationSettings,
    go_on: Callable[[], bool] = lambda: True,
    limit: TimeLimit = nullcontext,
    make: MakePolicy = make_policy,
) -> FragmentationForecast:
    """Simulate live and later jobs forward, and measure the idle devices at each time.

    Args:
        snapshot: initial state of all futures.
        times: run times of jobs.
        pasts: observed facts of the live jobs.
        recent: jobs like those that are submitted later.
        offsets: times in seconds from the snapshot, ascending, the first one 0.
        futures: maximum number of futures.
        seed: seed of the random draws; equal seeds draw equal futures.
        settings: settings of each future.
        go_on: called between steps; if it returns False, only completed futures count. The first
            future is always completed.
        limit: limits the time of each policy.
        make: builds a policy from its name and parameters.

    Raises:
        ValueError: the offsets are not ascending from 0.
    """
    if not offsets or offsets[0] != 0 or list(offsets) != sorted(set(offsets)):
        raise ValueError("offsets must ascend from 0")
    future_of = drawn_futures(snapshot, times, pasts, recent, futures=futures, seed=seed)
    closed = frozenset(node.name for node in snapshot.nodes if not node.placeable)
    found: list[list[tuple[ChainFragmentation, ...]]] = []
    for future in map(future_of, range(futures)):
        world = SimulatedCluster(
            snapshot,
            future.remaining,
            settings=settings,
            arrivals=future.arrivals,
            limit=limit,
            make=make,
        )
        measured = _measured(world, snapshot.now, offsets, closed)
        seen = list(_until_stopped(measured, go_on) if found else measured)
        if len(seen) < len(offsets):
            break
        found.append(seen)
    return FragmentationForecast(
        now=snapshot.now,
        offsets=tuple(offsets),
        futures=len(found),
        chains=_chains(snapshot, found),
    )


def _until_stopped(
    measured: Iterable[tuple[ChainFragmentation, ...]], go_on: Callable[[], bool]
) -> Iterator[tuple[ChainFragmentation, ...]]:
    """Yield the measurements up to the one after which ``go_on`` returns False."""
    for one in measured:
        yield one
        if not go_on():
            return


def _measured(
    world: SimulatedCluster, now: float, offsets: Sequence[float], closed: frozenset[str]
) -> Iterator[tuple[ChainFragmentation, ...]]:
    """Yield the fragmentation at each offset; it is constant between two decisions."""
    world.decide()
    due = world.next_time()
    for offset in offsets:
        while due is not None and due <= now + offset:
            world.advance(due)
            world.decide()
            due = world.next_time()
        yield fragmentation(world.engine, closed)


def _chains(
    snapshot: ClusterSnapshot, found: Sequence[Sequence[Sequence[ChainFragmentation]]]
) -> tuple[ChainForecast, ...]:
    chains = empty_engine(snapshot.spec).topology.chains
    return tuple(
        _chain_forecast(chain, [[measured[place] for measured in future] for future in found])
        for place, chain in enumerate(chains.values())
    )


def _chain_forecast(
    chain: ChainTopology, futures: Sequence[Sequence[ChainFragmentation]]
) -> ChainForecast:
    """Return the bands of one chain.

    Args:
        chain: its cells.
        futures: its fragmentation at each offset, by future.
    """

    def bands(value: Callable[[ChainFragmentation], int]) -> tuple[Band, ...]:
        return tuple(
            _band([value(one) for one in same_time]) for same_time in zip(*futures, strict=True)
        )

    return ChainForecast(
        chain=chain.name,
        leaf_type=chain.leaf_type,
        devices=chain.leaf_count,
        levels=tuple(
            (chain.types[level], chain.sizes[level][1]) for level in range(1, chain.levels + 1)
        ),
        idle=bands(attrgetter("idle")),
        by_size={
            size: bands(lambda one, size=size: one.by_size[size])  # type: ignore[misc]
            for size in gang_sizes(chain)
        },
        by_level=tuple(
            bands(lambda one, place=place: one.by_level[place])  # type: ignore[misc]
            for place in range(chain.levels)
        ),
    )


def _band(values: Sequence[int]) -> Band:
    low, middle, high = np.quantile(values, LEVELS)
    return float(low), float(middle), float(high)
