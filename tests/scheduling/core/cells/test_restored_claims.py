"""A preemption under way and a restart: the claims are what they were, and so are the victims."""

import random

import pytest

from scheduling.core.cells import (
    Bind,
    CellEngine,
    GangRequest,
    GroupState,
    Member,
    Phase,
    Preempt,
    RequestError,
)
from tests.strategies.cells import SPECS
from tests.support.cell_invariants import books, check
from tests.support.cell_restarts import restarted_engine


def request(number: int, vc: str, chance: random.Random) -> GangRequest:
    return GangRequest(
        group=f"g{number}",
        vc=vc,
        priority=chance.choice([-1, -1, 0, 5, 9]),
        members=(Member(count=chance.choice([1, 1, 2]), leaf_count=chance.choice([1, 1, 2, 4])),),
        lazy_preemption=chance.random() < 0.3,
        at_stake=float(chance.randint(0, 3)),
    )


def preempting(engine: CellEngine) -> list[str]:
    found = [gang for gang in engine.gangs.values() if gang.state is GroupState.PREEMPTING]
    return [gang.name for gang in sorted(found, key=lambda gang: (-gang.priority, gang.name))]


def restarted_with_claims(before: CellEngine) -> CellEngine:
    after = restarted_engine(before, before.spec)
    for name in preempting(before):
        view = before.group(name)
        assert view is not None
        after.restore(view.request, view.placements, preempting=True)
    return after


@pytest.mark.parametrize("seed", range(30))
def test_after_a_restart_every_claim_has_its_devices_and_its_victims(seed: int) -> None:
    chance = random.Random(seed)
    spec = SPECS[chance.choice(sorted(SPECS))]
    engine = CellEngine(spec)
    for number in range(24):
        if chance.random() < 0.7:
            asked = request(number, chance.choice(sorted(spec.virtual_clusters)), chance)
            try:
                decision = engine.schedule(asked, phase=Phase.PREEMPTING)
            except RequestError:
                continue
            if isinstance(decision, Bind):
                engine.commit(decision)
        elif engine.gangs:
            engine.release(chance.choice(sorted(engine.gangs)))

        after = restarted_with_claims(engine)

        check(engine)
        check(after)
        for name in preempting(engine):
            view, again = engine.group(name), after.group(name)
            assert view is not None
            assert again is not None
            assert again.victims == view.victims
            assert [p.leaves for p in again.placements] == [p.leaves for p in view.placements]


def test_a_claim_that_is_not_all_there_any_more_is_none() -> None:
    engine = CellEngine(SPECS["nodes"])
    vc = min(SPECS["nodes"].virtual_clusters)
    gang = GangRequest(group="g", vc=vc, members=(Member(count=1, leaf_count=2),))
    bind = engine.schedule(gang)
    assert isinstance(bind, Bind)
    (placed,) = engine.commit(bind)
    other = CellEngine(SPECS["nodes"])
    broken = type(placed)(
        member=0,
        node="",
        devices=(),
        leaves=(placed.leaves[0], "gone"),
        virtual=placed.virtual,
        chain=placed.chain,
    )

    restored = other.restore(gang, [broken], preempting=True)

    assert not restored.guaranteed
    assert restored.unknown == ("gone",)
    assert other.gangs == {}
    check(other)


def test_cells_that_a_claim_keeps_in_use_stay_when_a_lazy_gang_is_lowered_for_a_higher_one() -> (
    None
):
    engine = CellEngine(SPECS["irregular"])
    history = (
        ("a", 5, 1, 1, True, 2.0),
        ("b", -1, 1, 1, False, 3.0),
        ("c", -1, 1, 1, False, 1.0),
        ("d", -1, 1, 1, False, 0.0),
        ("e", 5, 2, 2, True, 3.0),
        ("f", -1, 1, 2, True, 2.0),
        ("g", -1, 1, 4, False, 2.0),
        ("h", 0, 1, 4, False, 1.0),
        ("i", 9, 2, 4, False, 2.0),
    )

    for name, priority, count, devices, lazy, at_stake in history:
        asked = GangRequest(
            group=name,
            vc="v2" if name == "g" else "v1",
            priority=priority,
            members=(Member(count=count, leaf_count=devices),),
            lazy_preemption=lazy,
            at_stake=at_stake,
        )
        decision = engine.schedule(asked, phase=Phase.PREEMPTING)
        if isinstance(decision, Bind):
            engine.commit(decision)
        check(engine)

    assert isinstance(decision, Preempt)


def random_engine(chance: random.Random) -> CellEngine:
    """An engine after some submits and ends, of which some claims are left."""
    spec = SPECS[chance.choice(sorted(SPECS))]
    engine = CellEngine(spec)
    for number in range(30):
        if engine.gangs and chance.random() < 0.3:
            engine.release(chance.choice(sorted(engine.gangs)))
            continue
        asked = request(number, chance.choice(sorted(spec.virtual_clusters)), chance)
        try:
            decision = engine.schedule(asked, phase=Phase.PREEMPTING)
        except RequestError:
            continue
        if isinstance(decision, Bind):
            engine.commit(decision)
    return engine


@pytest.mark.parametrize("seed", range(60))
def test_a_renumbered_engine_has_the_virtual_cells_of_a_restored_one(seed: int) -> None:
    chance = random.Random(seed)
    engine = random_engine(chance)
    claiming = preempting(engine)
    running = [name for name in engine.gangs if name not in claiming]
    chance.shuffle(running)
    restored = CellEngine(engine.spec)
    for name in (*running, *claiming):
        view = engine.group(name)
        assert view is not None
        restored.restore(view.request, view.placements, preempting=name in claiming)

    assert engine.renumber((*running, *claiming))

    check(engine)
    for name in engine.gangs:
        assert engine.gangs[name].virtual == restored.gangs[name].virtual or not (
            engine.gangs[name].guaranteed
        )
    for chain, roster in engine.rosters.items():
        mine, theirs = books(roster.ledger), books(restored.rosters[chain].ledger)
        assert (mine["owned"], mine["pools"]) == (theirs["owned"], theirs["pools"])
