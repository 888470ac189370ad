"""The search for gangs to evict leaves out what changes nothing, and finds what it found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cells import (
    Bind,
    CellEngine,
    GangRequest,
    GroupState,
    Member,
    Phase,
    preemption,
)
from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.preemption import PreemptionSearch
from scheduling.core.cells.search import items_of
from tests.strategies.cells import SPECS

MOST = 40
WALKS = 10
"""A few percent of all walks reach no gang that is spoken for."""


def fewest_in_full(search: PreemptionSearch, lower: list[Gang], scan: int) -> list[Gang] | None:
    """Gangs to evict, every one of them tried, whether it can free anything or not."""
    if not search._fits(lower):
        return None
    for gang in lower[:scan]:
        if search._fits([gang]):
            return [gang]
    kept = list(lower)
    if len(lower) > scan:
        low, high = 1, len(lower)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if search._fits(lower[:middle]) else (middle + 1, high)
        kept = lower[:low]
    for gang in reversed(list(kept)):
        without = [one for one in kept if one is not gang]
        if search._fits(without):
            kept = without
    return kept


def mask_in_full(search: PreemptionSearch, gang: Gang) -> list[int]:
    """What counts in the books for a gang that runs, each of its devices looked up."""
    roster = search.roster
    return [
        sum(bit for leaf, bit in roster.bits(spot.node, spot.mask) if leaf not in roster.claims)
        for spot in gang.spots
    ]


def compare(engine: CellEngine, request: GangRequest, scan: int) -> bool:
    """Look for gangs to evict in both ways; whether any were spoken for."""
    left_out = False
    for chain, roster in engine.rosters.items():
        pool = engine.pool(request.vc, chain)
        items = items_of(engine.topology.chains[chain], request)
        if pool is None or items is None:
            continue
        with roster.ledger.trial():
            search = PreemptionSearch(roster, pool, request.priority, items, None)
            if search.without_eviction() is not None:
                continue
            lower = search._lower_gangs()
            for gang in lower:
                if gang.state is not GroupState.PREEMPTING:
                    masks = [roster.own_mask(gang, spot) for spot in gang.spots]
                    assert masks == mask_in_full(search, gang)
            assert search._fewest_victims(lower) == fewest_in_full(search, lower, scan)
            left_out |= any(map(search._is_spoken_for, lower))
    return left_out


@st.composite
def submissions(draw: st.DrawFn) -> list[tuple[str, int, Member, bool]]:
    """Gangs of many priorities that want more than there is; some end, some may lose quota."""
    one = st.tuples(
        st.sampled_from(["v1", "v1", "v2"]),
        st.integers(-1, 5),
        st.builds(
            Member, count=st.sampled_from([1, 1, 2, 3]), leaf_count=st.sampled_from([1, 2, 4])
        ),
        st.booleans(),
    )
    return draw(st.lists(one, min_size=8, max_size=MOST))


@pytest.mark.parametrize("scan", [1, 64])
@pytest.mark.parametrize("name", sorted(SPECS))
def test_gangs_that_can_free_nothing_change_no_choice(name: str, scan: int) -> None:
    seen = [0]

    @settings(max_examples=60, deadline=None)
    @given(wanted=submissions())
    def walk(wanted: list[tuple[str, int, Member, bool]]) -> None:
        engine = CellEngine(SPECS[name])
        for number, (vc, priority, member, lazy) in enumerate(wanted):
            request = GangRequest(
                group=f"g{number}",
                vc=vc,
                priority=priority,
                members=(member,),
                lazy_preemption=lazy and number % 3 == 0,
            )
            if priority >= 0:
                seen[0] += compare(engine, request, scan)
            decision = engine.schedule(request, phase=Phase.PREEMPTING)
            if isinstance(decision, Bind):
                engine.commit(decision)
            if number % 5 == 4:
                engine.release(f"g{number - 3}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemption, "SCAN", scan)
        for _ in range(WALKS):
            walk()
            if seen[0]:
                break
    assert seen[0]
