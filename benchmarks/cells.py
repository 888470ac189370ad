"""Cost of the cell engine: decisions, rounds, restart, failures, memory (B1 to B7).

Run by hand: ``python -m benchmarks.cells``; prints JSON entries. Process time, median of several
runs; a cluster has racks of ten nodes of eight devices (pairs, sockets), and three virtual
clusters with a half and two quarters of it in nodes.
"""

import gc
import json
import math
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from scheduling.core.cells import (
    Bind,
    CellEngine,
    CellType,
    ClusterSpec,
    GangRequest,
    Member,
    PhysicalCell,
    Quota,
    VcSpec,
)
from scheduling.core.cells.buddy import BuddyAllocator
from scheduling.core.cells.topology import ClusterTopology, NodeShape

RUNS = 5
SHARES = {"vision": 0.5, "language": 0.25, "speech": 0.25}
TYPES = {
    "pair": CellType(child="gpu", count=2),
    "socket": CellType(child="pair", count=2),
    "node": CellType(child="socket", count=2, node_level=True),
    "rack": CellType(child="node", count=10),
}

Entry = dict[str, Any]


def cluster(devices: int) -> ClusterSpec:
    """Return racks of ten nodes of eight devices, all guaranteed to three virtual clusters."""
    nodes = devices // 8
    racks = tuple(
        PhysicalCell(
            type="rack",
            children=tuple(PhysicalCell(address=f"n{10 * r + i}") for i in range(10)),
        )
        for r in range(nodes // 10)
    )
    return ClusterSpec(
        cell_types=TYPES,
        physical=racks,
        virtual_clusters={
            vc: VcSpec(
                quotas=(Quota(chain="rack", level="node", count=int(nodes // 10 * 10 * s)),)
            )
            for vc, s in SHARES.items()
        },
    )


def request(number: int, chance: random.Random) -> GangRequest:
    """70 % one device, 20 % a node, 10 % four nodes; in proportion to the shares."""
    draw = chance.random()
    if draw < 0.7:
        member = Member(count=1, leaf_count=1)
    elif draw < 0.9:
        member = Member(count=1, leaf_count=8)
    else:
        member = Member(count=4, leaf_count=8)
    vc = chance.choices(list(SHARES), list(SHARES.values()))[0]
    return GangRequest(group=f"g{number}", vc=vc, members=(member,), leaf_types=("gpu",))


def all_entries() -> list[Entry]:
    """Yield all measurements."""
    small = CellEngine(cluster(10_000))
    return [
        allocation_mix(small),
        *decisions(small),
        *rounds(small),
        *scaling(),
        restart(small),
        failures(small),
        fragmented_node(),
        status(small),
        memory(),
    ]


def allocation_mix(pristine: CellEngine) -> Entry:
    """B1: cells of 1, 2, 4 and 8 devices, 80 % full, counters on."""
    chain = ClusterTopology(pristine.spec).chains["rack"]
    operations = 40_000

    def run() -> float:
        chance = random.Random(1)
        buddy = BuddyAllocator(chain)
        held: list[int] = []
        used, limit = 0, chain.leaf_count * 8 // 10
        start = time.process_time()
        for _ in range(operations):
            level = chance.choice((1, 2, 3, 4))
            if used + chain.sizes[level][1] <= limit and chance.random() < 0.6:
                cell = _lowest_free(buddy, level)
                buddy.allocate(cell)
                held.append(cell)
                used += chain.sizes[level][1]
            elif held:
                index = chance.randrange(len(held))
                held[index], held[-1] = held[-1], held[index]
                cell = held.pop()
                buddy.release(cell)
                used -= chain.sizes[chain.level[cell]][1]
        return operations / (time.process_time() - start)

    value = _median(run)
    return _entry("cells_allocate_release", value, "1/s", "higher", devices=chain.leaf_count)


def _lowest_free(buddy: BuddyAllocator, level: int) -> int:
    holder = level
    while (cell := buddy.first(holder, 0)) < 0:
        holder += 1
    while buddy.topology.level[cell] > level:
        cell = buddy.topology.child_lo[cell]
    return cell


def decisions(pristine: CellEngine) -> list[Entry]:
    """New guaranteed requests on a cluster in use: decide and commit, one by one, no memory."""
    middle, high = [], []
    for run in range(RUNS):
        times = sorted(_decision_times(pristine, run, 1500))
        middle.append(times[len(times) // 2])
        high.append(times[int(len(times) * 0.99)])
    devices = _devices(pristine)
    return [
        _entry("cells_decide_commit_p50", _us(middle), "us", "lower", devices=devices),
        _entry("cells_decide_commit_p99", _us(high), "us", "lower", devices=devices),
    ]


def _decision_times(pristine: CellEngine, seed: int, count: int) -> list[float]:
    engine, chance = pristine.fresh_copy(), random.Random(seed)
    live: list[str] = []
    keep = _devices(pristine) // 16
    times = []
    for number in range(count):
        asked = request(number, chance)
        start = time.process_time()
        decision = engine.place(asked)
        times.append(time.process_time() - start)
        if isinstance(decision, Bind):
            live.append(asked.group)
        if len(live) > keep:
            engine.release(live.pop(chance.randrange(len(live))))
    return times


def rounds(pristine: CellEngine) -> list[Entry]:
    """B2: 1,000 pending gangs on a cluster 80 % full, cold, and then again without changes."""
    cold, warm = [], []
    for seed in range(20):
        chance = random.Random(seed)
        engine = _filled(pristine, chance, 0.8)
        pending = [request(100_000 + i, chance) for i in range(1000)]
        start = time.process_time()
        left = [asked for asked in pending if not isinstance(engine.place(asked), Bind)]
        cold.append(time.process_time() - start)
        start = time.process_time()
        for asked in left:
            engine.place(asked)
        warm.append(time.process_time() - start)
    devices = _devices(pristine)
    cold.sort()
    return [
        _entry("cells_round_p50", _ms(cold), "ms", "lower", devices=devices, pending=1000),
        _entry("cells_round_p99", cold[-1] * 1e3, "ms", "lower", devices=devices, pending=1000),
        _entry("cells_round_unchanged", _ms(warm), "ms", "lower", devices=devices, pending=1000),
    ]


def _filled(pristine: CellEngine, chance: random.Random, share: float) -> CellEngine:
    engine, used, number = pristine.fresh_copy(), 0, 0
    while used < share * _devices(pristine):
        number += 1
        asked = request(number, chance)
        if isinstance(engine.place(asked), Bind):
            used += asked.leaf_count
    return engine


def scaling() -> list[Entry]:
    """B3: growth of the cost of a decision from 1,000 to 100,000 devices."""
    sizes = (1_000, 10_000, 100_000)
    points = []
    for devices in sizes:
        engine = CellEngine(cluster(devices))
        times = [statistics.median(_decision_times(engine, run, 600)) for run in range(3)]
        points.append(statistics.median(times))
    slope = math.log(points[-1] / points[0]) / math.log(sizes[-1] / sizes[0])
    context = {str(size): round(t * 1e6, 1) for size, t in zip(sizes, points, strict=True)}
    return [_entry("cells_scaling_exponent", slope, "1", "lower", p50_us=context)]


def restart(pristine: CellEngine) -> Entry:
    """B4: a new engine adopts every lease of a full cluster."""
    engine = _filled(pristine, random.Random(7), 0.97)
    views = [view for name in engine.gangs if (view := engine.group(name)) is not None]

    def run() -> float:
        start = time.process_time()
        after = pristine.fresh_copy()
        for view in views:
            after.restore(view.request, view.placements)
        return time.process_time() - start

    leased = sum(view.request.leaf_count for view in views)
    return _entry(
        "cells_restart", _median(run) * 1e3, "ms", "lower", leased=leased, gangs=len(views)
    )


def failures(pristine: CellEngine) -> Entry:
    """B5: 100 nodes fail and heal while jobs run."""
    nodes = list(pristine.topology.nodes)

    def run() -> float:
        chance = random.Random(3)
        engine = _filled(pristine, chance, 0.8)
        chosen = chance.sample(nodes, 100)
        start = time.process_time()
        for healthy in (False, True):
            for node in chosen:
                engine.set_node_health(node, healthy=healthy)
        return time.process_time() - start

    return _entry("cells_failure_storm", _median(run) * 1e3, "ms", "lower", nodes=100)


def fragmented_node() -> Entry:
    """B6: eight devices of a new node of sixteen with every other one taken."""
    cells = tuple(
        tuple(((1 << width) - 1) << at for at in range(0, 16, width)) for width in (1, 2, 4, 8, 16)
    )

    def run() -> float:
        masks = [0x5555, 0xAAAA, 0x6699, 0x9966, 0x7E7E, 0xE7E7]
        shape = NodeShape(cells)
        start = time.process_time()
        for mask in masks:
            shape.choose(mask, 8, 5)
        return (time.process_time() - start) / len(masks)

    return _entry("cells_fragmented_node", _median(run, 25) * 1e6, "us", "lower", devices=16)


def status(pristine: CellEngine) -> Entry:
    """B7: the view of all chains and virtual clusters, as JSON."""
    engine = _filled(pristine, random.Random(5), 0.8)

    def run() -> float:
        start = time.process_time()
        json.dumps(engine.free_view())
        return time.process_time() - start

    return _entry("cells_status", _median(run) * 1e3, "ms", "lower", devices=_devices(pristine))


def memory() -> Entry:
    """Memory of an engine for 100,000 devices, with its topology."""
    spec = cluster(100_000)
    gc.collect()
    tracemalloc.start()
    engine = CellEngine(spec)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return _entry("cells_memory", used / (1 << 20), "MiB", "lower", devices=_devices(engine))


def _devices(engine: CellEngine) -> int:
    return sum(chain.leaf_count for chain in engine.topology.chains.values())


def _median(run: Callable[[], float], times: int = RUNS) -> float:
    return statistics.median(run() for _ in range(times))


def _us(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


def _ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def _entry(name: str, value: float, unit: str, better: str, **context: Any) -> Entry:
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "better": better,
        "context": context,
    }


if __name__ == "__main__":
    for measured in all_entries():
        sys.stdout.write(json.dumps(measured) + "\n")
