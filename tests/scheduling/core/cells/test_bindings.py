"""What pages show of the cells: bindings, the largest gang that starts now, recommended shapes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cells import (
    Bind,
    CellEngine,
    CellType,
    ClusterSpec,
    GangRequest,
    Member,
    PhysicalCell,
    Preempt,
    Quota,
    RequestError,
    VcSpec,
)
from scheduling.core.cells.largest_gangs import largest_gangs
from scheduling.core.cells.recommendation import PastGang, recommend
from scheduling.core.cells.topology import ClusterTopology
from scheduling.core.cells.views import LeafUse, cells_of
from tests.strategies.cells import SPECS, wishes

TYPES = {
    "B-pair": CellType(child="B", count=2),
    "B-node": CellType(child="B-pair", count=2, node_level=True),
}
SPEC = ClusterSpec(
    cell_types=TYPES,
    physical=tuple(PhysicalCell(type="B-node", address=f"b{i}") for i in range(3)),
    virtual_clusters={
        "v1": VcSpec(
            quotas=(
                Quota(chain="B-node", level="B-node", count=1),
                Quota(chain="B-node", level="B-pair", count=1),
            ),
        ),
        "v2": VcSpec(pinned={"mine": "b2"}),
    },
)


def gang(name: str, devices: int, *, vc: str = "v1", priority: int = 5) -> GangRequest:
    member = Member(count=1, leaf_count=devices)
    return GangRequest(group=name, vc=vc, priority=priority, members=(member,))


def test_cells_are_shown_bound_or_not_with_what_is_on_their_devices() -> None:
    engine = CellEngine(SPEC)
    engine.place(gang("1", 3))

    node, pair = cells_of(engine, "v1")
    (pinned,) = cells_of(engine, "v2")

    assert (node.address, node.level, node.devices) == ("v1/0", "B-node", 4)
    assert [leaf.use for leaf in node.leaves] == [LeafUse.USED] * 3 + [LeafUse.IDLE]
    assert {leaf.node for leaf in node.leaves} == {node.physical}
    assert [leaf.group for leaf in node.leaves] == ["1", "1", "1", ""]
    assert (pair.physical, pair.leaves) == ("", ())
    assert (pinned.physical, pinned.pinned) == ("b2", "mine")


def test_a_borrower_in_an_owned_cell_is_lent_and_a_broken_device_is_bad() -> None:
    engine = CellEngine(SPEC)
    engine.place(gang("1", 1))
    engine.set_device_health("b2", 0, healthy=False)
    for number in range(2, 12):
        engine.place(gang(f"{number}", 1, vc="v2", priority=-1))

    leaves = [leaf for cell in cells_of(engine, "v1") for leaf in cell.leaves]
    (pinned,) = cells_of(engine, "v2")

    assert [leaf.use for leaf in leaves] == [LeafUse.USED, LeafUse.LENT]
    assert [leaf.use for leaf in pinned.leaves] == [LeafUse.BAD, *[LeafUse.LENT] * 3]


def test_the_largest_gang_counts_what_starts_at_once_after_borrowers_and_borrowing() -> None:
    engine = CellEngine(SPEC)
    before = {gang.devices: gang for gang in largest_gangs(engine, "v1")}
    for number in range(3):
        engine.place(gang(f"{number}", 4, vc="v2", priority=-1))

    after = {gang.devices: gang for gang in largest_gangs(engine, "v1")}

    assert (before[4].now, before[4].reclaimed, before[4].borrowed) == (1, 1, 3)
    assert (before[2].now, before[1].now) == (3, 6)
    assert (after[4].now, after[4].reclaimed, after[4].borrowed) == (0, 1, 0)


def test_nodes_of_one_type_may_be_of_two_sizes() -> None:
    large = CellType(child="B", count=8, node_level=True)
    quotas = (
        Quota(chain="B-node", level="B-node", count=1),
        Quota(chain="B-8", level="B-8", count=1),
    )
    spec = replace(
        SPEC,
        cell_types={**TYPES, "B-8": large},
        physical=(*SPEC.physical, PhysicalCell(type="B-8", address="b8")),
        virtual_clusters={"v1": VcSpec(quotas=quotas)},
    )

    found = {gang.devices: gang.now for gang in largest_gangs(CellEngine(spec), "v1")}

    assert found == {1: 8, 2: 4, 4: 2, 8: 1}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(SPECS)))
def test_the_largest_gang_starts_and_one_more_instance_does_not(
    data: st.DataObject, name: str
) -> None:
    engine = CellEngine(SPECS[name])
    for number, wish in enumerate(data.draw(st.lists(wishes(), max_size=6))):
        vc = data.draw(st.sampled_from(sorted(engine.spec.virtual_clusters)))
        request = replace(wish.request(f"{number}", engine.spec, vc), pinned=None)
        if request.guaranteed and all(
            engine.pool(vc, chain) is None for chain in engine.topology.chains
        ):
            continue
        try_place(engine, request)
    vc = data.draw(st.sampled_from(sorted(engine.spec.virtual_clusters)))
    version = engine.version

    for found in largest_gangs(engine, vc):
        assert found.now <= found.reclaimed
        for count, kinds in ((found.now, (Bind,)), (found.reclaimed, (Bind, Preempt))):
            probe = replace(PROBE, vc=vc, leaf_types=(found.leaf_type,))
            assert not count or starts(engine, probe, (count, found.devices), kinds)
            assert not starts(engine, probe, (count + 1, found.devices), kinds)
    assert engine.version == version


PROBE = gang("probe", 1, priority=0)


def try_place(engine: CellEngine, request: GangRequest) -> None:
    try:
        engine.place(request)
    except RequestError:
        return


def starts(
    engine: CellEngine, probe: GangRequest, wanted: tuple[int, int], kinds: tuple[type, ...]
) -> bool:
    count, devices = wanted
    request = replace(probe, members=(Member(count=count, leaf_count=devices),))
    try:
        return isinstance(engine.schedule(request), kinds)
    except RequestError:
        return False


CHAINS = ClusterTopology(SPEC).chains


def past(devices: int, start: float, end: float, *, instances: int = 1) -> PastGang:
    return PastGang(leaf_types=("B",), devices=devices, instances=instances, start=start, end=end)


def test_a_recommendation_takes_the_smallest_cells_that_hold_the_instances() -> None:
    found = recommend([past(4, 0, 10), past(3, 0, 10), past(2, 0, 10), past(1, 5, 10)], CHAINS)

    assert [(row.level, row.count) for row in found] == [("B-node", 2), ("B-pair", 1), ("B", 1)]
    assert found[0].device_seconds == 70


def test_a_rare_peak_is_left_to_borrowing() -> None:
    steady = [past(4, 0, 100)]
    peak = [past(4, 50, 52, instances=5)]

    (row,) = recommend([*steady, *peak], CHAINS)

    assert (row.count, row.peak, row.gangs) == (1, 6, 2)
    assert recommend([*steady, *peak], CHAINS, coverage=1)[0].count == 6


def test_what_no_machine_holds_and_what_never_ran_report_nothing() -> None:
    assert recommend([past(9, 0, 10), past(1, 5, 5)], CHAINS) == ()
    assert recommend([replace(past(1, 0, 1), leaf_types=("C",))], CHAINS) == ()
    with pytest.raises(ValueError, match="coverage"):
        recommend([], CHAINS, coverage=0)


@given(
    gangs=st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 20), st.integers(1, 20), st.integers(1, 3)),
        min_size=1,
        max_size=12,
    ),
    coverage=st.sampled_from([0.5, 0.9, 1.0]),
)
def test_a_recommendation_covers_what_it_says_and_one_cell_less_does_not(
    gangs: list[tuple[int, int, int, int]], coverage: float
) -> None:
    ran = [past(size, at, at + length, instances=n) for size, at, length, n in gangs]

    for row in recommend(ran, CHAINS, coverage=coverage):
        own = [gang for gang in ran if level_of(gang.devices) == row.level]
        seconds = [
            sum(gang.instances for gang in own if gang.start <= at < gang.end) for at in range(45)
        ]
        wanted = coverage * sum(seconds)
        assert sum(min(cells, row.count) for cells in seconds) >= wanted
        assert sum(min(cells, row.count - 1) for cells in seconds) < wanted
        assert row.peak == max(seconds)


def level_of(devices: int) -> str:
    return {1: "B", 2: "B-pair"}.get(devices, "B-node")
