"""Soft avoidance: only equal choices, no refused start, no further victim, no effect unmarked."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cells import (
    Bind,
    CellEngine,
    Decision,
    GangRequest,
    Member,
    Phase,
    Preempt,
    RequestError,
)
from scheduling.core.cells.avoiding import choose
from tests.strategies.cells import SPECS, Wish, node_names, wishes
from tests.support.cell_invariants import check, snapshot


@st.composite
def marked_engines(draw: st.DrawFn) -> tuple[CellEngine, list[tuple[str, int]]]:
    """An engine after some gangs, some of its devices, and nothing that avoids them yet."""
    spec = SPECS[draw(st.sampled_from(sorted(SPECS)))]
    engine = CellEngine(spec)
    for number, (wish, vc) in enumerate(
        draw(
            st.lists(
                st.tuples(wishes(), st.sampled_from(sorted(spec.virtual_clusters))), max_size=6
            )
        )
    ):
        with suppress(RequestError):
            engine.place(wish.request(f"g{number}", spec, vc))
    for name in draw(st.sets(st.sampled_from(sorted(engine.gangs)))) if engine.gangs else ():
        engine.release(name)
    devices = sorted(engine.topology.devices)
    return engine, draw(st.lists(st.sampled_from(devices), min_size=1, max_size=8, unique=True))


def decide(engine: CellEngine, request: GangRequest, names: set[str] | None) -> Decision | None:
    """The decision; None if the request can never be scheduled."""
    try:
        return engine.schedule(request, suggested=names)
    except RequestError:
        return None


def shape_of(decision: Decision | None) -> tuple[object, ...]:
    """The kind of a decision, and everything that concerns other gangs."""
    if decision is None:
        return ("invalid",)
    if isinstance(decision, Bind):
        return ("bind", decision.chain, decision.downgraded)
    if isinstance(decision, Preempt):
        return ("preempt", decision.chain, decision.placements, decision.victims)
    return ("wait", decision.code)


@settings(max_examples=150, deadline=None)
@given(found=marked_engines(), wish=wishes(), data=st.data())
def test_marks_change_neither_whether_a_gang_starts_nor_its_victims(
    found: tuple[CellEngine, list[tuple[str, int]]], wish: Wish, data: st.DataObject
) -> None:
    engine, marked = found
    vc = data.draw(st.sampled_from(sorted(engine.spec.virtual_clusters)))
    suggested = data.draw(st.none() | st.sets(st.sampled_from(node_names(engine.spec))))
    request = wish.request("new", engine.spec, vc)
    plain = decide(engine, request, suggested)

    engine.set_avoided(marked)
    wary = decide(engine, request, suggested)

    assert shape_of(wary) == shape_of(plain)
    assert touched(wary, marked) <= touched(plain, marked)
    if isinstance(wary, Bind):
        engine.commit(wary)
        check(engine)


@settings(max_examples=100, deadline=None)
@given(found=marked_engines(), wish=wishes(), data=st.data())
def test_without_marks_decisions_are_the_same_as_with_marks_of_unknown_devices(
    found: tuple[CellEngine, list[tuple[str, int]]], wish: Wish, data: st.DataObject
) -> None:
    engine, marked = found
    vc = data.draw(st.sampled_from(sorted(engine.spec.virtual_clusters)))
    request = wish.request("new", engine.spec, vc)
    plain, before = decide(engine, request, None), snapshot(engine)

    engine.set_avoided([("unknown", 0)])
    unknown = decide(engine, request, None)
    engine.set_avoided(marked)
    engine.set_avoided([])
    cleared = decide(engine, request, None)

    for other in (unknown, cleared):
        assert shape_of(other) == shape_of(plain)
        assert getattr(other, "placements", None) == getattr(plain, "placements", None)
    assert snapshot(engine) == before


def touched(decision: Decision | None, marked: list[tuple[str, int]]) -> int:
    if not isinstance(decision, Bind):
        return 0
    return sum(
        (placed.node, device) in marked
        for placed in decision.placements
        for device in placed.devices
    )


@pytest.mark.parametrize("priority", [1, -1])
def test_a_gang_gets_another_device_or_node_where_one_is_equal(priority: int) -> None:
    engine = CellEngine(SPECS["nodes"])

    def place(size: int, *marked: tuple[str, int]) -> tuple[str, tuple[int, ...]]:
        engine.set_avoided(marked)
        request = GangRequest(
            group="g",
            vc="v1",
            priority=priority,
            members=(Member(count=1, leaf_count=size),),
            leaf_types=("A",),
        )
        decision = engine.schedule(request, phase=Phase.FILTERING)
        assert isinstance(decision, Bind)
        (placed,) = decision.placements
        return placed.node, placed.devices

    node, devices = place(1)
    other = place(1, (node, devices[0]))
    assert other != (node, devices)
    node, devices = place(4)
    assert place(4, (node, 2))[0] != node
    every = [(name, device) for name in ("a0", "a1", "a2", "a3") for device in range(4)]
    assert place(4, *every) == (node, devices)


def test_a_choice_that_would_break_a_pair_is_not_equal() -> None:
    engine = CellEngine(SPECS["nodes"])
    ledger = engine.rosters["A-pod"].ledger
    ledger.avoided[0] = 0b0001

    assert choose(ledger, 0, 0b1101, 1, 3) == 0b0001  # the rest would be half a pair
    assert choose(ledger, 0, 0b1111, 1, 3) == 0b0010
    assert choose(ledger, 0, 0b1111, 2, 3) == 0b1100
    assert choose(ledger, 0, 0b1111, 3, 3) & 0b0001 == 0
    assert choose(ledger, 0, 0b1111, 4, 3) == 0b1111
