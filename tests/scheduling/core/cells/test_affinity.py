"""Gangs in one cell: whenever some cell has room for all of them, and only then, they start."""

import random
from collections.abc import Collection
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    Wait,
)
from tests.support.cell_invariants import check, snapshot
from tests.support.cell_oracle import packs

QUIET = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
RACKS = [("n0", "n1", "n2"), ("n3", "n4", "n5")]
SPEC = ClusterSpec(
    cell_types={
        "pair": CellType(child="gpu", count=2),
        "node": CellType(child="pair", count=2, node_level=True),
        "rack": CellType(child="node", count=3),
    },
    physical=tuple(
        PhysicalCell(type="rack", children=tuple(PhysicalCell(address=node) for node in rack))
        for rack in RACKS
    ),
    virtual_clusters={"vision": VcSpec(quotas=(Quota(chain="rack", level="node", count=6),))},
)


def ask(number: int, chance: random.Random, within: str | None, priority: int) -> GangRequest:
    return GangRequest(
        group=f"g{number}",
        vc="vision",
        priority=priority,
        members=(Member(count=chance.randint(1, 4), leaf_count=chance.choice((1, 2, 3, 4))),),
        within=within,
    )


@QUIET
@given(seed=st.integers(0, 2**32), priority=st.sampled_from([-1, 0]))
def test_a_gang_starts_in_one_rack_exactly_if_a_rack_has_room(seed: int, priority: int) -> None:
    chance = random.Random(seed)
    engine = CellEngine(SPEC)
    for number in range(30):
        if engine.gangs and chance.random() < 0.4:
            engine.release(chance.choice(sorted(engine.gangs)))
            continue
        within = chance.choice((None, "rack", "rack", "within:rack", "node"))
        request = ask(number, chance, within, priority)
        fits = any(packs(bins, sizes(request)) for bins in free_bins(engine, within))
        before = snapshot(engine)

        decision = engine.schedule(request)

        assert snapshot(engine) == before
        assert isinstance(decision, Bind if fits else Wait)
        if isinstance(decision, Bind):
            placed = engine.commit(decision)
            used = {place.node for place in placed}
            if within == "node":
                assert len(used) == 1
            elif within is not None:
                assert any(used <= set(rack) for rack in RACKS)
        check(engine)


@QUIET
@given(seed=st.integers(0, 2**32), priority=st.sampled_from([-1, 0]))
def test_inside_a_rack_only_the_nodes_that_may_be_used_count(seed: int, priority: int) -> None:
    chance = random.Random(seed)
    engine = CellEngine(SPEC)
    everywhere = [node for rack in RACKS for node in rack]
    for number in range(12):
        allowed = set(chance.sample(everywhere, chance.randint(1, 6)))
        within = chance.choice(("rack", "within:rack", "node"))
        request = replace(ask(number, chance, within, priority), ignore_suggested=False)
        bins = free_bins(engine, within, allowed)

        decision = engine.schedule(request, suggested=allowed)

        fits = any(packs(one, sizes(request)) for one in bins)
        assert isinstance(decision, Bind if fits else Wait)
        if isinstance(decision, Bind):
            used = {place.node for place in engine.commit(decision)}
            assert used <= allowed
            assert any(used <= set(rack) for rack in RACKS)
        check(engine)


def test_the_rack_with_the_least_room_that_is_enough_is_taken() -> None:
    engine = CellEngine(SPEC)
    member = Member(count=1, leaf_count=1)
    first = engine.place(GangRequest(group="first", vc="vision", members=(member,)))
    assert isinstance(first, Bind)
    (busy,) = (rack for rack in RACKS if first.placements[0].node in rack)
    pair = Member(count=2, leaf_count=4)

    second = engine.place(
        GangRequest(group="second", vc="vision", members=(pair,), within="rack", priority=-1)
    )

    assert isinstance(second, Bind)
    assert {place.node for place in second.placements} < set(busy)


def sizes(request: GangRequest) -> tuple[int, ...]:
    (member,) = request.members
    return (member.leaf_count,) * member.count


def free_bins(
    engine: CellEngine, within: str | None, allowed: Collection[str] | None = None
) -> list[tuple[int, ...]]:
    """Free devices by node that may be used, for each cell that the gang may be in."""
    free = {node: 4 for rack in RACKS for node in rack}
    for name in engine.gangs:
        view = engine.group(name)
        assert view is not None
        for place in view.placements:
            free[place.node] -= len(place.devices)
    if allowed is not None:
        free = {node: count if node in allowed else 0 for node, count in free.items()}
    if within is None:
        return [tuple(sorted(free.values()))]
    if within == "node":
        return [(count,) for count in free.values()]
    return [tuple(sorted(free[node] for node in rack)) for rack in RACKS]
