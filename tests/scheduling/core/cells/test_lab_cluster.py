"""The cluster of the lab (``docs/lab.md``) on the engine alone: what its pinned cell does."""

from pathlib import Path

import yaml

from scheduling.core.cells import (
    Bind,
    CellEngine,
    GangRequest,
    Member,
    Phase,
    Preempt,
    Wait,
    WaitCode,
)
from scheduling.core.cells.hived import spec_from_hived

CLUSTER = Path(__file__).resolve().parents[4] / "examples" / "lab" / "cluster.yaml"


def bench(group: str) -> GangRequest:
    return GangRequest(
        group=group,
        vc="vision",
        priority=100,
        members=(Member(count=1, leaf_count=4),),
        pinned="vision-bench",
    )


def test_a_pinned_cell_is_a_certain_one_and_lent_like_any_other() -> None:
    engine = CellEngine(spec_from_hived(yaml.safe_load(CLUSTER.read_text())))
    pair = (Member(count=1, leaf_count=2),)
    pairs = [
        engine.place(GangRequest(group=f"pair-{n}", vc="language", priority=-1, members=pair))
        for n in range(12)
    ]
    assert all(isinstance(decision, Bind) for decision in pairs)

    first = engine.schedule(bench("first"), phase=Phase.PREEMPTING)

    assert isinstance(first, Preempt)
    assert len(first.victims) == 2
    assert {(place.node, place.devices) for place in first.placements} == {
        ("demo-3", (0, 1, 2, 3))
    }
    for victim in first.victims:
        engine.release(victim)
    starts = engine.schedule(bench("first"), phase=Phase.PREEMPTING)
    assert isinstance(starts, Bind)
    engine.commit(starts)
    again = engine.schedule(bench("again"), phase=Phase.PREEMPTING)
    assert isinstance(again, Wait)
    assert again.code is WaitCode.VC_GUARANTEE_IN_USE
