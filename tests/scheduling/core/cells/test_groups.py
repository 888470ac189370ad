"""Groups of nodes limit a gang like cells of that level, where a chain has no such level."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import (
    Bind,
    CellEngine,
    CellType,
    ClusterSpec,
    GangRequest,
    Member,
    PhysicalCell,
    VcSpec,
)

TYPES = {"A-node": CellType(child="A", count=2, node_level=True)}


def spec_of(groups: dict[str, str], nodes: int) -> ClusterSpec:
    return ClusterSpec(
        cell_types=TYPES,
        physical=tuple(PhysicalCell(type="A-node", address=f"n{i}") for i in range(nodes)),
        virtual_clusters={"v": VcSpec()},
        groups={"rack": groups} if groups else {},
    )


def gang(count: int, within: str | None = "within:rack") -> GangRequest:
    return GangRequest(
        group="g",
        vc="v",
        priority=-1,
        members=(Member(count=count, leaf_count=2),),
        within=within,
    )


@given(st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=6), st.integers(1, 6))
def test_a_gang_starts_exactly_if_one_group_has_room(racks: list[str], count: int) -> None:
    members = {f"n{i}": rack for i, rack in enumerate(racks) if rack}
    engine = CellEngine(spec_of({**members, "elsewhere": "a"}, len(racks)))
    rooms = [racks.count(rack) for rack in {*racks} - {""}] + [1] * ("" in racks)

    decision = engine.schedule(gang(count))

    assert isinstance(decision, Bind) == (max(rooms) >= count)
    if isinstance(decision, Bind):
        nodes = {placed.node for placed in engine.commit(decision)}
        assert len({members.get(node, node) for node in nodes}) == 1


def test_groups_are_part_of_the_specification_only_if_there_are_any() -> None:
    plain, grouped = spec_of({}, 2), spec_of({"n0": "a"}, 2)

    assert "groups" not in plain.to_json()
    assert ClusterSpec.from_json(grouped.to_json()) == grouped
    assert ClusterSpec.from_json(plain.to_json()) == plain
    assert replace(grouped, groups={}) == plain


def test_cells_of_a_rack_come_before_labels() -> None:
    types = {**TYPES, "rack": CellType(child="A-node", count=2)}
    nodes = tuple(PhysicalCell(address=f"n{i}") for i in range(2))
    spec = ClusterSpec(
        cell_types=types,
        physical=(PhysicalCell(type="rack", address="r", children=nodes),),
        virtual_clusters={"v": VcSpec()},
        groups={"rack": {"n0": "a", "n1": "b"}},
    )

    assert isinstance(CellEngine(spec).schedule(gang(2)), Bind)
