"""The count after a round's starts equals a full count, though it lists no gangs."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.cells import CellEngine, ClusterSpec, GangRequest, Member, Wait
from scheduling.core.cells.explain import refusal_of
from tests.strategies.cells import MIXED, NODES, PINNED

QUIET = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
IN_USE = re.compile(r"(\d+) of its (\d+) devices?")


def ask(number: int, spec: ClusterSpec, chance: random.Random) -> GangRequest:
    vc = chance.choice(sorted(spec.virtual_clusters))
    pinned = chance.choice([None, None, *sorted(spec.virtual_clusters[vc].pinned)])
    return GangRequest(
        group=f"g{number}",
        vc=vc,
        priority=chance.choice((0, 1) if pinned else (-1, 0, 0, 1)),
        members=(Member(count=chance.randint(1, 3), leaf_count=chance.choice((1, 2, 3, 4))),),
        leaf_types=() if pinned else chance.choice([(), ("A",)]),
        pinned=pinned,
    )


@pytest.mark.parametrize("spec", [NODES, MIXED, PINNED], ids=["nodes", "mixed", "pinned"])
@QUIET
@given(seed=st.integers(0, 2**32))
def test_a_recount_is_the_count_of_a_new_trial(spec: ClusterSpec, seed: int) -> None:
    chance = random.Random(seed)
    engine = CellEngine(spec)
    refused: list[Wait] = []
    for number in range(60):
        decision = engine.place(ask(number, spec, chance))
        if isinstance(decision, Wait):
            refused.append(decision)
        if engine.gangs and chance.random() < 0.1:
            engine.release(chance.choice(sorted(engine.gangs)))

    recounted = engine.recounted(refused)

    assert any(refusal.counts for refusal in refused)
    for refusal, again in zip(refused, recounted, strict=True):
        chains = engine._candidate_chains(refusal.request)
        engine.guarantees.clear()
        whole = refusal_of(engine, refusal.request, chains, None)
        assert again.blocked_by == refusal.blocked_by
        assert replace(again, blocked_by=whole.blocked_by) == whole
        if refusal.counts:
            check_by_hand(engine, again, chains)


def check_by_hand(engine: CellEngine, found: Wait, chains: list[str]) -> None:
    """What is free is what no gang holds."""
    request = found.request
    held = [
        gang
        for gang in engine.gangs.values()
        if gang.roster in [engine.rosters[name] for name in chains]
    ]
    if not request.guaranteed:
        there = engine.topology.chains[found.chain].leaf_count
        used = sum(gang.size for gang in held if gang.roster is engine.rosters[found.chain])
        assert found.free == there - used
        return
    quota = (request.vc, request.pinned)
    used = sum(
        gang.size
        for gang in held
        if gang.guaranteed and (gang.request.vc, gang.request.pinned) == quota
    )
    said = IN_USE.search(found.text)
    assert said is not None
    counted, total = map(int, said.groups())
    assert found.free == total - used
    assert counted == (used if "in use" in found.text else found.free)
