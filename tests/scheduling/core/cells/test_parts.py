"""The parts of the engine against oracles: packing, leaf choice, buddy allocation."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cells.buddy import BuddyAllocator, IndexSet
from scheduling.core.cells.packing import pack
from scheduling.core.cells.topology import ClusterTopology, NodeShape
from tests.strategies.cells import IRREGULAR, SPECS

EIGHT = NodeShape(
    (
        tuple(1 << i for i in range(8)),
        tuple(3 << 2 * i for i in range(4)),
        (15, 240),
        (255,),
    )
)


def _fits(bins: tuple[int, ...], items: tuple[int, ...]) -> bool:
    if not items:
        return True
    return any(
        room >= items[0] and _fits((*bins[:i], room - items[0], *bins[i + 1 :]), items[1:])
        for i, room in enumerate(bins)
    )


@given(
    bins=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    items=st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
def test_packing_finds_a_place_exactly_when_there_is_one(
    bins: list[int], items: list[int]
) -> None:
    plan = pack(
        {size: bins.count(size) for size in bins}, {size: items.count(size) for size in items}
    )

    assert (plan is not None) == _fits(tuple(bins), tuple(sorted(items, reverse=True)))
    if plan is not None:
        assert sorted(s for _, sizes in plan for s in sizes) == sorted(items)
        assert all(sum(sizes) <= capacity for capacity, sizes in plan)
        assert all(
            sum(c == capacity for c, _ in plan) <= bins.count(capacity) for capacity, _ in plan
        )


def test_small_bins_are_filled_before_large_ones_are_opened() -> None:
    assert pack({8: 1, 4: 1}, {3: 1, 1: 1}) == [(4, (3, 1))]
    assert pack({8: 2, 2: 1}, {2: 1, 7: 1}) == [(2, (2,)), (8, (7,))]


def test_a_bin_is_filled_as_full_as_it_gets_the_largest_first() -> None:
    assert pack({4: 2}, {3: 1, 2: 1, 1: 1}) == [(4, (3, 1)), (4, (2,))]
    assert pack({6: 2}, {3: 2, 2: 3}) == [(6, (3, 3)), (6, (2, 2, 2))]


@given(free=st.integers(1, 255), count=st.integers(1, 8))
def test_leaves_of_an_instance_are_as_close_as_any_could_be(free: int, count: int) -> None:
    devices = [i for i in range(8) if free >> i & 1]

    mask = EIGHT.choose(free, count, 4)

    assert (mask != 0) == (count <= len(devices))
    if mask:
        assert mask & ~free == 0
        assert mask.bit_count() == count
        best = min(
            EIGHT.level_of(sum(1 << d for d in chosen))
            for chosen in itertools.combinations(devices, count)
        )
        assert EIGHT.level_of(mask) == best


@given(free=st.integers(1, 255), count=st.integers(1, 8), highest=st.integers(1, 4))
def test_an_affinity_level_is_kept_or_refused(free: int, count: int, highest: int) -> None:
    mask = EIGHT.choose(free, count, highest)

    possible = any((free & cell).bit_count() >= count for cell in EIGHT.cells[highest - 1])
    assert (mask != 0) == possible
    assert not mask or EIGHT.level_of(mask) <= highest


def test_a_single_device_is_taken_from_the_most_used_pair() -> None:
    assert EIGHT.choose(0b11101111, 1, 4) == 0b00100000
    assert EIGHT.choose(0b11111111, 2, 4) == 0b00000011


@given(st.lists(st.integers(0, 5000), max_size=60))
def test_an_index_set_knows_its_least_member(numbers: list[int]) -> None:
    members = IndexSet()
    model: set[int] = set()
    for number in numbers:
        if number in model:
            members.remove(number)
            model.discard(number)
        else:
            members.add(number)
            model.add(number)
        assert members.members() == sorted(model)
        assert not model or members.first() == min(model)


@given(name=st.sampled_from(sorted(SPECS)), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_releasing_is_the_inverse_of_allocating_whatever_the_order(name: str, seed: int) -> None:
    chance = random.Random(seed)
    for chain in ClusterTopology(SPECS[name]).chains.values():
        buddy = BuddyAllocator(chain)
        before = _state(buddy)
        taken: list[int] = []
        for _ in range(30):
            cell = chance.randrange(len(chain))
            if buddy.free_holder(cell) >= 0 and chance.random() < 0.7:
                buddy.allocate(cell)
                taken.append(cell)
            elif taken:
                buddy.release(taken.pop(chance.randrange(len(taken))))
        chance.shuffle(taken)
        for cell in taken:
            buddy.release(cell)

        assert _state(buddy) == before


def _state(buddy: BuddyAllocator) -> tuple[object, ...]:
    return (
        list(buddy.state),
        list(buddy.free_count),
        list(buddy.total_left),
        list(buddy.healthy_left),
        [buddy.free_cells(level) for level in range(1, buddy.topology.levels + 1)],
    )


def test_incomplete_cells_are_never_whole_and_their_complete_parts_are() -> None:
    chain = ClusterTopology(IRREGULAR).chains["A-pod"]
    roots = {chain.address[cell]: chain.types[chain.level[cell]] for cell in chain.roots}

    assert roots == {
        "0/0": "A-rack",
        "0/1/a2": "A-node",
        "1/2": "A-rack",
        "2/4/a5/0": "A-pair",
        "2/4/a5/1/7": "A",
        "2/4/a6": "A-node",
    }
