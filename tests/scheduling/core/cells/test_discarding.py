"""Books that nobody needs any more are gone at once: no round pays for the last one's."""

import copy
import gc
import weakref
from collections.abc import Iterator

import pytest

from scheduling.core.cells import CellEngine, GangRequest, Member, Phase
from tests.strategies.cells import SPECS


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _engine_in_use() -> CellEngine:
    spec = SPECS[min(SPECS)]
    engine = CellEngine(spec)
    for number, vc in enumerate(sorted(spec.virtual_clusters)):
        for priority in (-1, 0, 5):
            request = GangRequest(
                group=f"g{number}.{priority}",
                vc=vc,
                priority=priority,
                members=(Member(count=1, leaf_count=1),),
            )
            engine.place(request)
            engine.schedule(request, phase=Phase.PREEMPTING)
    assert engine.gangs
    return engine


@pytest.mark.usefixtures("without_collector")
def test_an_engine_with_gangs_is_freed_without_the_garbage_collector() -> None:
    engine = _engine_in_use()
    rosters = [weakref.ref(roster) for roster in engine.rosters.values()]

    del engine

    assert [roster() for roster in rosters] == [None] * len(rosters)


def test_the_gangs_of_a_copied_engine_are_on_the_chains_of_the_copy() -> None:
    engine = _engine_in_use()

    other = copy.deepcopy(engine)

    for gang in other.gangs.values():
        assert gang.roster in other.rosters.values()
        assert gang.roster not in engine.rosters.values()
