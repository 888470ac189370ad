"""Stranded idle devices by gang size and by level."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import Bind, CellEngine, GangRequest, Member
from scheduling.core.cells.fragmentation import fragmentation
from scheduling.core.cells.idle import idle_mask
from tests.factories.rounds import SPEC


def engine_with(*sizes: int) -> CellEngine:
    """An engine of three nodes of 8 devices, with opportunistic gangs of one instance each."""
    engine = CellEngine(SPEC)
    for number, size in enumerate(sizes):
        request = GangRequest(
            group=f"g{number}",
            vc="vision-a",
            priority=-1,
            members=(Member(count=1, leaf_count=size),),
        )
        decision = engine.schedule(request)
        if isinstance(decision, Bind):
            engine.commit(decision)
    return engine


def test_an_empty_cluster_strands_only_what_no_gang_of_a_size_can_use() -> None:
    (chain,) = fragmentation(engine_with())

    assert chain.idle == 24
    assert chain.by_size == {1: 0, 2: 0, 4: 0, 8: 0, 16: 8}
    assert chain.by_level == (0, 0, 0, 0)


def test_leftovers_of_three_nodes_are_stranded_for_larger_gangs() -> None:
    (chain,) = fragmentation(engine_with(7, 7, 5))

    assert chain.idle == 5
    assert chain.by_size == {1: 0, 2: 3, 4: 5, 8: 5, 16: 5}
    # Devices, PCIe switches, sockets and nodes: one whole switch is idle.
    assert chain.by_level == (0, 3, 5, 5)


def test_closed_and_unhealthy_nodes_have_no_idle_devices() -> None:
    engine = engine_with()
    engine.set_device_health("node-1", 0, healthy=False)

    (chain,) = fragmentation(engine, closed={"node-2"})

    assert chain.idle == 15
    assert chain.by_size[8] == 7
    assert chain.by_level == (0, 1, 3, 7)


@given(st.lists(st.sampled_from([1, 1, 2, 3, 5]), max_size=8))
def test_stranded_devices_agree_with_an_enumeration(sizes: list[int]) -> None:
    """For sizes up to a node, the most disjoint instances are counted node by node."""
    engine = engine_with(*sizes)
    (chain,) = fragmentation(engine)
    (roster,) = engine.rosters.values()
    masks = [idle_mask(roster.ledger, node) for node in range(3)]

    assert chain.idle == sum(mask.bit_count() for mask in masks)
    for size in (2, 4, 8):
        usable = 0
        for mask in masks:
            left = [bit for bit in range(8) if mask >> bit & 1]
            while next(combinations(left, size), None) is not None:
                left, usable = left[size:], usable + size
        assert chain.by_size[size] == chain.idle - usable
    aligned = {
        2: [0b11 << start for start in (0, 2, 4, 6)],
        4: [0b1111, 0b11110000],
        8: [0b11111111],
    }
    for level, (size, cells) in enumerate(aligned.items(), start=1):
        whole = sum(cell & mask == cell for mask in masks for cell in cells)
        assert chain.by_level[level] == chain.idle - whole * size
