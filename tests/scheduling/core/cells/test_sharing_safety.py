"""P6: a virtual cluster is never worse off in the shared cluster than in one of its own."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.cells import (
    Bind,
    CellEngine,
    ClusterSpec,
    GangRequest,
    Member,
    Phase,
    Preempt,
    VcSpec,
    Wait,
)
from tests.strategies.cells import MIXED, NODES, PINNED
from tests.support.cell_invariants import check

PAIRS = {"compared": 0}


class Pair:
    """The shared cluster, and the same machines with one virtual cluster alone on them."""

    def __init__(self, spec: ClusterSpec, vc: str) -> None:
        alone = {name: VcSpec() for name in spec.virtual_clusters if name != vc}
        self.vc = vc
        self.shared = CellEngine(spec)
        self.private = CellEngine(
            ClusterSpec(
                cell_types=spec.cell_types,
                physical=spec.physical,
                virtual_clusters={**alone, vc: spec.virtual_clusters[vc]},
            )
        )
        self.evictions = 0

    def submit(self, request: GangRequest) -> bool:
        """Compare one request; False when a combination of small cells ends the comparison."""
        if request.vc != self.vc or request.priority < 0:
            run(self.shared, request)
            return True
        here, victims_here = run(self.shared, request)
        there, victims_there = run(self.private, request)
        PAIRS["compared"] += 1
        self.evictions += len(victims_here) + len(victims_there)
        if combines(self.shared, request.group) or combines(self.private, request.group):
            return False
        assert isinstance(here, Wait) == isinstance(there, Wait), (request, here, there)
        return True

    def end(self, group: str) -> None:
        """A gang is done, wherever it still runs."""
        self.shared.release(group)
        self.private.release(group)


def run(engine: CellEngine, request: GangRequest) -> tuple[Bind | Wait, tuple[str, ...]]:
    """Schedule with evictions driven to the end: the victims are gone at once."""
    victims: tuple[str, ...] = ()
    decision = engine.schedule(request, phase=Phase.PREEMPTING)
    if isinstance(decision, Preempt):
        victims = decision.victims
        for victim in victims:
            engine.release(victim)
        decision = engine.schedule(request, phase=Phase.PREEMPTING)
    assert not isinstance(decision, Preempt), "evicting the victims was not enough"
    if isinstance(decision, Bind):
        engine.commit(decision)
    return decision, victims


def combines(engine: CellEngine, group: str) -> bool:
    """Whether an instance of a gang lies on several quota cells."""
    gang = engine.gangs.get(group)
    if gang is None or gang.roster is None or not gang.guaranteed:
        return False
    ledger = gang.roster.ledger
    return any(len(list(ledger.holders(s.node, s.mask))) > 1 for s in gang.spots)


def drive(spec: ClusterSpec, seed: int, *, events: int, priorities: int) -> Pair:
    """A random stream of requests and ends."""
    chance = random.Random(seed)
    vcs = sorted(spec.virtual_clusters)
    pair = Pair(spec, chance.choice(vcs))
    for number in range(events):
        running = sorted(pair.shared.gangs)
        if running and chance.random() < 0.45:
            pair.end(chance.choice(running))
        else:
            members = tuple(
                Member(count=chance.randint(1, 2), leaf_count=chance.choice((1, 1, 2, 3, 4)))
                for _ in range(chance.choice((1, 1, 2)))
            )
            request = GangRequest(
                group=f"g{number}",
                vc=chance.choice((pair.vc, *vcs)),
                priority=chance.choice((-1, *range(priorities))),
                members=members,
                leaf_types=chance.choice((("A",), ("A",), ())),
                lazy_preemption=chance.random() < 0.5,
            )
            if not pair.submit(request):
                break
        check(pair.shared)
    return pair


QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("spec", [NODES, MIXED, PINNED], ids=["nodes", "mixed", "pinned"])
@settings(QUICK)
@given(seed=st.integers(0, 2**32))
def test_what_starts_alone_starts_shared_and_what_waits_there_waits_here(
    spec: ClusterSpec, seed: int
) -> None:
    drive(spec, seed, events=40, priorities=1)


@pytest.mark.parametrize("spec", [NODES, MIXED, PINNED], ids=["nodes", "mixed", "pinned"])
@settings(QUICK)
@given(seed=st.integers(0, 2**32))
def test_priorities_change_nothing_about_it_when_evictions_are_driven_to_the_end(
    spec: ClusterSpec, seed: int
) -> None:
    drive(spec, seed, events=40, priorities=3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_sharing_is_safe_over_many_paired_requests() -> None:
    evictions = 0
    for seed in range(1500):
        for spec in (NODES, MIXED, PINNED):
            evictions += drive(spec, seed, events=60, priorities=1 + seed % 3).evictions

    assert PAIRS["compared"] > 40_000
    assert evictions > 1_000
