"""Running gangs of a pinned cell under another specification, in which the cell is elsewhere."""

from dataclasses import replace

import pytest

from scheduling.core.cells import (
    Bind,
    CellEngine,
    ClusterSpec,
    GangRequest,
    Member,
    PhysicalCell,
    Quota,
    VcSpec,
)
from scheduling.core.cells.reconfiguration import ClusterHealth, RunningGang, dry_run, taken_over
from scheduling.core.cells.views import cells_of, placements
from tests.strategies.cells import TYPES
from tests.support.cell_invariants import check

GANG = GangRequest(group="mine", vc="v1", members=(Member(count=1, leaf_count=2),), pinned="lab")


def spec(mine: str | None, theirs: str | None = None) -> ClusterSpec:
    """Two chains of two nodes, in which v1 and v2 have nothing but a pinned node, or not even."""
    return ClusterSpec(
        cell_types=TYPES,
        physical=tuple(
            PhysicalCell(type=kind, address=f"{kind[0].lower()}{number}")
            for kind in ("A-node", "B-node")
            for number in range(2)
        ),
        virtual_clusters={
            "v1": VcSpec(pinned={"lab": mine} if mine else {}),
            "v2": VcSpec(pinned={"lab": theirs} if theirs else {}),
        },
    )


def running() -> RunningGang:
    """The gang on v1's pinned node a0."""
    engine = CellEngine(spec("a0"))
    bind = engine.schedule(GANG)
    assert isinstance(bind, Bind)
    engine.commit(bind)
    return RunningGang(request=GANG, placements=bind.placements)


def test_it_is_guaranteed_where_the_cell_is_the_same() -> None:
    gang = running()

    engine, stranded = taken_over(spec("a0", "b0"), [gang], ClusterHealth())

    assert stranded == ()
    assert engine.gangs["mine"].guaranteed
    check(engine)


@pytest.mark.parametrize(
    "after",
    [spec(None), spec("a1"), spec("b0"), spec("b0", "a0"), spec("a1", "a0")],
    ids=["gone", "another node", "another chain", "another's, chain", "another's, node"],
)
def test_it_borrows_where_the_cell_is_gone_or_elsewhere(after: ClusterSpec) -> None:
    gang = running()

    engine, stranded = taken_over(after, [gang], ClusterHealth())

    assert stranded == ()
    assert not engine.gangs["mine"].guaranteed
    assert dry_run(spec("a0"), after, [gang]).loses == ("mine",)
    assert engine.return_to_guaranteed() == ()
    check(engine)


def test_devices_are_found_by_node_and_index_where_addresses_have_changed() -> None:
    gang = running()
    renamed = tuple(
        replace(placed, leaves=tuple(f"old/{leaf}" for leaf in placed.leaves))
        for placed in gang.placements
    )
    engine = CellEngine(spec("a0"))

    restored = engine.restore(GANG, renamed)

    assert restored.unknown == ()
    assert [(at.node, at.devices) for at in placements(engine.gangs["mine"])] == [("a0", (0, 1))]
    check(engine)


def test_only_a_bound_cell_without_a_healthy_choice_is_doomed() -> None:
    quota = Quota(chain="A-node", level="A-node", count=2)
    engine = CellEngine(
        ClusterSpec(
            cell_types=TYPES,
            physical=(
                PhysicalCell(type="A-node", address="a0"),
                PhysicalCell(type="A-node", address="a1"),
            ),
            virtual_clusters={"v1": VcSpec(quotas=(quota,))},
        )
    )
    bind = engine.schedule(replace(GANG, pinned=None))
    assert isinstance(bind, Bind)
    engine.commit(bind)
    (used,) = {placed.node for placed in bind.placements}
    (other,) = {"a0", "a1"} - {used}

    engine.set_node_health(other, healthy=False)

    cells = {cell.physical: cell.doomed for cell in cells_of(engine, "v1")}
    assert cells == {used: False, other: True}
    engine.set_node_health(other, healthy=True)
    assert not any(cell.doomed for cell in cells_of(engine, "v1"))
