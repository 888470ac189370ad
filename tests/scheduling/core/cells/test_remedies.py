"""What a refusal names as the smallest change is enough, and is the smallest of its kind."""

import copy
import random
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
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
    VcSpec,
    Wait,
    WaitCode,
)
from scheduling.core.messages import english, message
from tessera.messages import Listing
from tests.strategies.cells import MIXED, NODES, PINNED
from tests.support.cell_invariants import snapshot

QUIET = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


def ask(number: int, vc: str, chance: random.Random) -> GangRequest:
    return GangRequest(
        group=f"g{number}",
        vc=vc,
        priority=chance.choice((-1, 0, 0, 1)),
        members=(Member(count=chance.randint(1, 3), leaf_count=chance.choice((1, 2, 3, 4))),),
        leaf_types=("A",),
    )


def crowded(spec: ClusterSpec, chance: random.Random) -> CellEngine:
    """A cluster in which much runs and nobody waits for victims."""
    engine = CellEngine(spec)
    for number in range(40):
        engine.place(ask(number, chance.choice(sorted(spec.virtual_clusters)), chance))
    return engine


@pytest.mark.parametrize("spec", [NODES, MIXED, PINNED], ids=["nodes", "mixed", "pinned"])
@QUIET
@given(seed=st.integers(0, 2**32))
def test_what_is_named_is_enough_and_changes_nothing(spec: ClusterSpec, seed: int) -> None:
    chance = random.Random(seed)
    engine = crowded(spec, chance)
    for number in range(40, 60):
        request = ask(number, chance.choice(sorted(spec.virtual_clusters)), chance)
        wait = engine.schedule(request)
        if not isinstance(wait, Wait):
            continue
        before = snapshot(engine)

        found = engine.remedies(wait)

        assert snapshot(engine) == before
        if found.ends:
            assert starts(engine, request, found.ends)
            for left_out in found.ends:
                rest = tuple(name for name in found.ends if name != left_out)
                assert not starts(engine, request, rest)
        steps = tuple(map(english, found.unblock))
        assert all(step.endswith(".") for step in steps)
        check_smaller(engine, request, steps)


def starts(engine: CellEngine, request: GangRequest, ended: tuple[str, ...]) -> bool:
    later = copy.deepcopy(engine)
    for name in ended:
        later.release(name)
    return isinstance(later.schedule(request), Bind | Preempt)


def check_smaller(engine: CellEngine, request: GangRequest, steps: tuple[str, ...]) -> None:
    for step in steps:
        asked = re.fullmatch(r"Request (\d+) instances? of (\d+) devices?: that fits now.", step)
        if asked:
            count, size = map(int, asked.groups())
            less = GangRequest(
                group="less",
                vc=request.vc,
                priority=request.priority,
                members=(Member(count=count, leaf_count=size),),
                leaf_types=request.leaf_types,
            )
            assert count * size < request.leaf_count
            assert isinstance(engine.schedule(less), Bind)


def full() -> CellEngine:
    """Both nodes of v1 in chain A are used by three gangs."""
    engine = CellEngine(NODES)
    for name, size in (("small", 1), ("large", 3), ("whole", 4)):
        request = GangRequest(
            group=name, vc="v1", members=(Member(count=1, leaf_count=size),), leaf_types=("A",)
        )
        assert isinstance(engine.place(request), Bind)
    return engine


def wish(count: int, size: int, priority: int = 0) -> GangRequest:
    return GangRequest(
        group="wish",
        vc="v1",
        priority=priority,
        members=(Member(count=count, leaf_count=size),),
        leaf_types=("A",),
    )


def test_the_smallest_job_that_is_enough_is_named_first() -> None:
    engine = full()

    wait = engine.schedule(wish(1, 2))
    assert isinstance(wait, Wait)
    found = engine.remedies(wait)

    assert wait.code is WaitCode.VC_GUARANTEE_IN_USE
    assert wait.quota == Listing((message("cells-of-level", count=2, level="A node"),))
    assert wait.level == "A-pair"
    assert found.ends == ("large",)
    assert len(found.cells) == 1
    assert english(found.unblock[0]) == "One blocking job ends; it has 3 devices."
    assert "Run it opportunistically: enough devices are free now." in map(english, found.unblock)


def test_several_jobs_are_named_where_one_is_not_enough() -> None:
    engine = full()

    wait = engine.schedule(wish(2, 4))
    assert isinstance(wait, Wait)
    found = engine.remedies(wait)

    assert set(found.ends) == {"small", "large", "whole"}
    assert english(found.unblock[0]) == "3 blocking jobs end; they have 8 devices together."


def test_a_smaller_gang_that_fits_now_is_proposed() -> None:
    engine = full()
    engine.release("large")

    wait = engine.schedule(wish(1, 4))
    assert isinstance(wait, Wait)

    steps = map(english, engine.remedies(wait).unblock)
    assert "Request 1 instance of 3 devices: that fits now." in steps


def test_a_refusal_reports_which_level_is_missing() -> None:
    engine = full()
    engine.release("small")

    wait = engine.schedule(wish(1, 4))

    assert isinstance(wait, Wait)
    assert wait.code is WaitCode.VC_GUARANTEE_IN_USE
    assert (wait.chain, wait.level) == ("A-pod", "A-node")
    assert wait.text == (
        "Virtual cluster v1 is guaranteed 2 × A node; 7 of its 8 devices are in use,"
        " and it needs 1 instance of 4 devices."
    )


def test_a_refusal_of_any_type_counts_the_devices_of_all_that_it_names() -> None:
    engine = full()
    engine.release("small")

    wait = engine.schedule(replace(wish(2, 4), leaf_types=()))

    assert isinstance(wait, Wait)
    assert wait.text == (
        "Virtual cluster v1 is guaranteed 2 × A node, 1 × B node; 7 of its 12 devices are in"
        " use, and it needs 2 instances of 4 devices."
    )


def test_all_bad_nodes_that_are_needed_are_named() -> None:
    engine = CellEngine(NODES)
    for node in ("a0", "a1", "a2", "a3"):
        engine.set_node_health(node, healthy=False)

    wait = engine.schedule(wish(2, 4))

    assert isinstance(wait, Wait)
    assert wait.code is WaitCode.CELLS_UNHEALTHY
    assert len(wait.nodes) == 2
    assert wait.text == f"It would fit if nodes {wait.nodes[0]}, {wait.nodes[1]} were healthy."
    assert len(wait.unblock) == 2


def two_types() -> CellEngine:
    """Two chains of two nodes of eight devices; vision holds 8 and language 4 of the first."""
    quota = VcSpec(quotas=(Quota(chain="gpu-node", level="gpu-node", count=1),))
    engine = CellEngine(
        ClusterSpec(
            cell_types={
                f"{kind}-node": CellType(child=kind, count=8, node_level=True)
                for kind in ("gpu", "old")
            },
            physical=tuple(
                PhysicalCell(type=f"{kind}-node", address=f"{kind}{i}")
                for kind in ("gpu", "old")
                for i in range(2)
            ),
            virtual_clusters={"vision": quota, "language": quota},
        )
    )
    for vc, size in (("vision", 8), ("language", 4)):
        held = GangRequest(
            group=vc, vc=vc, members=(Member(count=1, leaf_count=size),), leaf_types=("gpu",)
        )
        assert isinstance(engine.place(held), Bind)
    return engine


def guest(count: int, size: int, *types: str) -> GangRequest:
    return GangRequest(
        group="guest",
        vc="vision",
        priority=-1,
        members=(Member(count=count, leaf_count=size),),
        leaf_types=types,
    )


def test_who_holds_guarantees_is_in_the_way_of_an_opportunistic_gang() -> None:
    engine = two_types()

    wait = engine.schedule(guest(2, 8, "gpu"))
    assert isinstance(wait, Wait)

    assert wait.code is WaitCode.OPPORTUNISTIC_NO_IDLE
    assert wait.blocked_by == ("vision", "language")
    assert wait.text == (
        "4 devices of gpu are idle, but not as 2 instances of 8 devices on level gpu node."
    )
    found = engine.remedies(wait)
    assert set(found.ends) == {"vision", "language"}
    assert starts(engine, guest(2, 8, "gpu"), found.ends)


def test_where_nothing_is_idle_the_sentence_says_no_more() -> None:
    engine = two_types()
    assert isinstance(engine.place(replace(guest(1, 4, "gpu"), group="other")), Bind)

    wait = engine.schedule(guest(1, 4, "gpu"))
    assert isinstance(wait, Wait)

    assert wait.text == (
        "No device of gpu is idle, and it needs 1 instance of 4 devices on level gpu node."
    )


def test_idle_devices_are_counted_on_the_one_chain_that_has_most() -> None:
    engine = two_types()
    assert isinstance(engine.place(replace(guest(1, 5, "old"), group="other")), Bind)

    wait = engine.schedule(guest(2, 8))
    assert isinstance(wait, Wait)

    assert wait.chain == "old-node"
    assert wait.text == (
        "11 devices of old are idle, but not as 2 instances of 8 devices on level old node."
    )
    assert wait.blocked_by == ("vision", "other", "language")
    assert engine.remedies(wait).ends == ("other",)


@pytest.mark.parametrize("spec", [NODES, MIXED, PINNED], ids=["nodes", "mixed", "pinned"])
@QUIET
@given(seed=st.integers(0, 2**32))
def test_an_opportunistic_gang_that_would_fit_on_an_empty_cluster_is_told_who_is_in_its_way(
    spec: ClusterSpec, seed: int
) -> None:
    chance = random.Random(seed)
    engine = crowded(spec, chance)
    for number in range(40, 60):
        request = replace(ask(number, min(spec.virtual_clusters), chance), priority=-1)
        wait = engine.schedule(request)
        if isinstance(wait, Wait) and wait.code is WaitCode.OPPORTUNISTIC_NO_IDLE:
            assert wait.blocked_by
            assert starts(engine, request, tuple(engine.gangs))
