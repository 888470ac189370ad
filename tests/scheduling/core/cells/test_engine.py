"""What the engine does in single situations, one at a time."""

import pytest

from scheduling.core.cells import (
    Bind,
    CellEngine,
    CellType,
    ClusterSpec,
    GangRequest,
    GroupState,
    Member,
    Phase,
    PhysicalCell,
    Placed,
    Preempt,
    Quota,
    RequestError,
    StaleDecisionError,
    VcSpec,
    Wait,
    WaitCode,
)
from scheduling.core.messages import english
from tests.support.cell_invariants import check, snapshot

TYPES = {
    "pair": CellType(child="gpu", count=2),
    "socket": CellType(child="pair", count=2),
    "node": CellType(child="socket", count=2, node_level=True),
    "rack": CellType(child="node", count=2),
}


def cluster(
    nodes: int, shares: dict[str, list[tuple[str, int]]], pinned: dict[str, str] | None = None
) -> CellEngine:
    """Racks of two nodes of eight devices."""
    racks = tuple(
        PhysicalCell(
            type="rack",
            children=(PhysicalCell(address=f"n{2 * i}"), PhysicalCell(address=f"n{2 * i + 1}")),
        )
        for i in range(nodes // 2)
    )
    return CellEngine(
        ClusterSpec(
            cell_types=TYPES,
            physical=racks,
            virtual_clusters={
                vc: VcSpec(
                    quotas=tuple(Quota(chain="rack", level=lv, count=n) for lv, n in quotas),
                    pinned=pinned or {} if vc == "vision" else {},
                )
                for vc, quotas in shares.items()
            },
        )
    )


def gang(
    name: str, *sizes: int, vc: str = "vision", priority: int = 0, **more: object
) -> GangRequest:
    """A gang with one instance of each size."""
    return GangRequest(
        group=name,
        vc=vc,
        priority=priority,
        members=tuple(Member(count=1, leaf_count=size) for size in sizes),
        leaf_types=("gpu",),
        **more,  # type: ignore[arg-type]
    )


def start(engine: CellEngine, request: GangRequest) -> tuple[Placed, ...]:
    """Schedule and commit what must fit without anybody leaving."""
    decision = engine.schedule(request)
    assert isinstance(decision, Bind), decision
    placed = engine.commit(decision)
    check(engine)
    return placed


def nodes(placed: tuple[Placed, ...]) -> list[str]:
    """Nodes of the instances."""
    return [p.node for p in placed]


def test_two_small_jobs_share_a_node_and_leave_the_other_shares_alone() -> None:
    engine = cluster(4, {"vision": [("node", 1)], "language": [("node", 3)]})

    first = start(engine, gang("a", 2))
    second = start(engine, gang("b", 2))
    third = engine.schedule(gang("c", 8))

    assert nodes(first) == nodes(second)
    assert isinstance(third, Wait)
    assert third.code is WaitCode.VC_GUARANTEE_IN_USE
    assert third.blocked_by == ("a", "b")


def test_virtual_addresses_name_slot_and_path() -> None:
    engine = cluster(2, {"vision": [("rack", 1)]})

    placed = start(engine, gang("a", 8, 2))

    assert placed[0].virtual[0] == "vision/0/0/0/0/0"
    assert placed[1].virtual == ("vision/0/1/2/4/8", "vision/0/1/2/4/9")
    assert placed[1].leaves == ("0/n1/0/0/0", "0/n1/0/0/1")


def test_a_small_job_takes_the_small_quota_and_leaves_the_node_whole() -> None:
    engine = cluster(4, {"vision": [("node", 1), ("socket", 1)]})

    start(engine, gang("half", 4))

    assert isinstance(engine.schedule(gang("whole", 8)), Bind)


def test_a_gang_of_mixed_sizes_is_packed_completely() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    start(engine, gang("five", 5))
    start(engine, gang("three", 3))
    start(engine, gang("other", 3))
    engine.release("three")

    placed = start(engine, gang("mixed", 2, 3, 3))

    assert sorted(nodes(placed)) == ["n0", "n1", "n1"]


def test_cells_below_the_node_are_combined_for_one_instance() -> None:
    engine = cluster(2, {"vision": [("socket", 2)], "language": [("node", 1)]})

    placed = start(engine, gang("wide", 8))

    assert len(set(nodes(placed))) == 1
    assert len(placed[0].devices) == 8


def test_a_combination_of_cells_evicts_nobody() -> None:
    engine = cluster(2, {"vision": [("socket", 2)], "language": [("node", 1)]})
    start(engine, gang("guest", 8, vc="language", priority=-1))
    start(engine, gang("other", 8, vc="language", priority=-1))

    wide = engine.schedule(gang("wide", 8))
    narrow = engine.schedule(gang("narrow", 4))

    assert isinstance(wide, Wait)
    assert isinstance(narrow, Preempt)


def test_a_combination_of_cells_takes_no_quota_from_lower_priorities() -> None:
    engine = cluster(2, {"vision": [("socket", 2)], "language": [("node", 1)]})
    start(engine, gang("low", 4))
    start(engine, gang("lower", 4))

    wide = engine.schedule(gang("wide", 8, priority=5))

    assert isinstance(wide, Wait)


def test_instances_larger_than_a_node_never_fit() -> None:
    engine = cluster(4, {"vision": [("rack", 2)]})

    decision = engine.schedule(gang("huge", 9))

    assert isinstance(decision, Wait)
    assert decision.code is WaitCode.EXCEEDS_VC_MAX
    assert "a node has at most 8" in decision.text


def test_a_gang_larger_than_the_share_is_told_so() -> None:
    engine = cluster(4, {"vision": [("node", 1)], "language": [("node", 1)]})

    decision = engine.schedule(gang("big", 8, 8))

    assert isinstance(decision, Wait)
    assert decision.code is WaitCode.EXCEEDS_VC_MAX
    assert "Run it opportunistically." in map(english, decision.unblock)


def test_a_gang_larger_than_the_cluster_is_not_told_to_do_without_a_quota() -> None:
    engine = cluster(4, {"vision": [("node", 1)]})

    fits, too_large = (engine.schedule(gang("big", *[8] * nodes)) for nodes in (4, 5))

    assert isinstance(fits, Wait)
    assert isinstance(too_large, Wait)
    assert list(map(english, fits.unblock)) == [
        "Request at most 8 devices.",
        "Run it opportunistically.",
    ]
    assert list(map(english, too_large.unblock)) == ["Request at most 8 devices."]


def test_fragments_that_do_not_fit_together_are_named_as_such() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    start(engine, gang("a", 5))
    start(engine, gang("b", 5))

    decision = engine.schedule(gang("c", 6))

    assert isinstance(decision, Wait)
    assert decision.code is WaitCode.NO_CELL_OF_LEVEL
    assert "6 of its 16 devices are free" in decision.text


def test_an_affinity_level_keeps_an_instance_inside_one_cell_of_it() -> None:
    engine = cluster(2, {"vision": [("node", 1)]})
    start(engine, gang("a", 3))
    start(engine, gang("b", 3))
    tight = GangRequest(
        group="c",
        vc="vision",
        members=(Member(count=1, leaf_count=2, within_level="pair"),),
        leaf_types=("gpu",),
    )

    assert isinstance(engine.schedule(tight), Wait)
    assert isinstance(engine.schedule(gang("d", 2)), Bind)


def test_opportunistic_jobs_use_what_is_idle_and_go_first() -> None:
    engine = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    start(engine, gang("guest", 8, 8, priority=-1))

    decision = engine.schedule(gang("owner", 8))

    assert isinstance(decision, Preempt)
    assert decision.victims == ("guest",)
    assert not isinstance(engine.schedule(gang("late", 1, priority=-1)), Bind)


def test_a_new_cell_is_taken_where_nobody_has_to_go() -> None:
    engine = cluster(4, {"vision": [("node", 2)]})
    guest = start(engine, gang("guest", 1, priority=-1))

    placed = start(engine, gang("owner", 8, 8))

    assert nodes(guest)[0] not in nodes(placed)


def test_one_victim_with_little_to_lose_is_preferred() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    start(engine, gang("dear", 8, at_stake=900.0))
    start(engine, gang("cheap", 8, at_stake=5.0))

    decision = engine.schedule(gang("boss", 8, priority=3))

    assert isinstance(decision, Preempt)
    assert decision.victims == ("cheap",)


def test_one_large_victim_is_preferred_to_many_small_ones() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    for i in range(4):
        start(engine, gang(f"small{i}", 2))
    start(engine, gang("large", 8))

    decision = engine.schedule(gang("boss", 8, priority=3))

    assert isinstance(decision, Preempt)
    assert decision.victims == ("large",)


def claim_whose_victim_has_left() -> CellEngine:
    """Two full nodes; ``claimer`` evicted ``cheap``, which is gone, and has not started yet."""
    engine = cluster(2, {"vision": [("node", 2)]})
    start(engine, gang("dear", 8, priority=5))
    start(engine, gang("cheap", 8))
    engine.schedule(gang("claimer", 8, priority=3), phase=Phase.PREEMPTING)
    engine.release("cheap")
    return engine


@pytest.mark.parametrize("phase", [Phase.FILTERING, Phase.PREEMPTING])
def test_overriding_a_claim_whose_victims_have_left_binds_at_once(phase: Phase) -> None:
    engine = claim_whose_victim_has_left()
    before = snapshot(engine)

    decision = engine.schedule(gang("boss", 8, priority=9), phase=phase)

    assert isinstance(decision, Bind)
    assert snapshot(engine) == before
    engine.commit(decision)
    check(engine)
    assert engine.group("claimer") is None
    boss = engine.group("boss")
    assert boss is not None
    assert boss.state is GroupState.ALLOCATED


def test_an_overriding_bind_uses_the_smaller_part_of_a_claim_and_frees_the_rest() -> None:
    engine = claim_whose_victim_has_left()

    start(engine, gang("boss", 2, priority=9))

    start(engine, gang("small", 4))


def test_a_gang_that_lost_quota_to_an_overridden_claim_regains_it() -> None:
    engine = cluster(4, {"vision": [("node", 2)]})
    start(engine, gang("lazy", 8, lazy_preemption=True))
    start(engine, gang("firm", 8, priority=1))
    engine.schedule(gang("claimer", 8, 8, priority=3), phase=Phase.PREEMPTING)
    engine.release("firm")
    lowered = engine.group("lazy")
    assert lowered is not None
    assert lowered.lazy_preempted_by == "claimer"

    start(engine, gang("boss", 8, priority=9))

    regained = engine.group("lazy")
    assert regained is not None
    assert regained.guaranteed
    assert engine.group("claimer") is None


def test_equal_priority_never_preempts() -> None:
    engine = cluster(2, {"vision": [("rack", 1)]})
    start(engine, gang("a", 8, 8, priority=2))

    assert isinstance(engine.schedule(gang("b", 1, priority=2)), Wait)
    assert isinstance(engine.schedule(gang("b", 1, priority=3)), Preempt)


def test_a_preemption_is_begun_carried_out_and_started() -> None:
    engine = cluster(2, {"vision": [("rack", 1)]})
    start(engine, gang("old", 8, 8))
    new = gang("new", 8, priority=1)

    engine.schedule(new, phase=Phase.PREEMPTING)
    check(engine)
    waiting = engine.schedule(new, phase=Phase.PREEMPTING)
    engine.release("old")
    check(engine)
    ready = engine.schedule(new, phase=Phase.PREEMPTING)
    assert isinstance(ready, Bind)
    engine.commit(ready)

    check(engine)
    assert isinstance(waiting, Preempt)
    assert engine.gangs["new"].state is GroupState.ALLOCATED


def test_a_cancelled_preemption_leaves_no_trace() -> None:
    engine = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    start(engine, gang("guest", 8, 3, priority=-1))
    before = snapshot(engine)

    engine.schedule(gang("owner", 8), phase=Phase.PREEMPTING)
    assert engine.gangs["guest"].state is GroupState.BEING_PREEMPTED
    engine.release("owner")

    assert snapshot(engine) == before


def test_a_higher_priority_overtakes_a_preemptor() -> None:
    engine = cluster(2, {"vision": [("rack", 1)]})
    start(engine, gang("old", 8, 8))
    engine.schedule(gang("middle", 8, 8, priority=1), phase=Phase.PREEMPTING)

    decision = engine.schedule(gang("top", 8, 8, priority=2), phase=Phase.PREEMPTING)

    check(engine)
    assert isinstance(decision, Preempt)
    assert "middle" not in engine.gangs
    assert engine.gangs["old"].state is GroupState.BEING_PREEMPTED


def test_lazy_preemption_takes_the_quota_and_leaves_the_devices() -> None:
    engine = cluster(4, {"vision": [("node", 1)]})
    start(engine, gang("test", 8, lazy_preemption=True))

    decision = engine.schedule(gang("prod", 8, priority=5))
    assert isinstance(decision, Bind)
    before = engine.group("test")
    engine.commit(decision)

    check(engine)
    after = engine.group("test")
    assert before is not None
    assert after is not None
    assert before.guaranteed
    assert not after.guaranteed
    assert after.lazy_preempted_by == "prod"
    assert nodes(after.placements) == nodes(before.placements)


def test_an_undone_decision_costs_nobody_the_quota() -> None:
    engine = cluster(4, {"vision": [("node", 1)]})
    start(engine, gang("test", 8, lazy_preemption=True))
    before = snapshot(engine)

    engine.schedule(gang("prod", 8, priority=5))

    assert snapshot(engine) == before


def test_a_lowered_gang_gets_its_quota_back_when_it_is_free() -> None:
    engine = cluster(4, {"vision": [("node", 1)]})
    start(engine, gang("test", 8, lazy_preemption=True))
    start(engine, gang("prod", 8, priority=5))

    assert engine.return_to_guaranteed() == ()
    engine.release("prod")
    assert engine.return_to_guaranteed() == ("test",)

    check(engine)
    assert engine.gangs["test"].guaranteed


def test_a_preemptor_that_gives_up_costs_nobody_the_quota() -> None:
    engine = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    start(engine, gang("test", 8, lazy_preemption=True))
    start(engine, gang("other", 8, vc="language"))
    before = snapshot(engine)

    decision = engine.schedule(gang("prod", 8, priority=5), phase=Phase.PREEMPTING)
    assert isinstance(decision, Preempt)
    assert decision.downgraded == ("test",)
    engine.release("prod")

    check(engine)
    assert snapshot(engine) == before


def test_one_bad_device_leaves_the_others_of_its_node_usable() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    engine.set_device_health("n0", 3, healthy=False)
    start(engine, gang("whole", 8))

    placed = start(engine, gang("seven", 7))
    refused = engine.schedule(gang("more", 1))

    assert placed[0].devices == (0, 1, 2, 4, 5, 6, 7)
    assert isinstance(refused, Wait)
    assert refused.code is WaitCode.CELLS_UNHEALTHY


def test_a_bad_node_is_named_and_a_healed_one_is_used() -> None:
    engine = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    engine.set_node_health("n0", healthy=False)
    engine.set_node_health("n1", healthy=False)

    waiting = engine.schedule(gang("a", 1))
    engine.set_node_health("n1", healthy=True)
    placed = start(engine, gang("a", 1))

    assert isinstance(waiting, Wait)
    assert waiting.reason.startswith("have to use at least one bad node")
    assert nodes(placed) == ["n1"]


def test_only_suggested_nodes_are_used_unless_they_are_ignored() -> None:
    engine = cluster(4, {"vision": [("node", 4)]})

    kept = engine.schedule(gang("a", 8, ignore_suggested=False), suggested={"n2"})
    refused = engine.schedule(gang("b", 8, 8, ignore_suggested=False), suggested={"n2"})
    free = engine.schedule(gang("c", 8, 8), suggested={"n2"})

    assert isinstance(kept, Bind)
    assert nodes(kept.placements) == ["n2"]
    assert isinstance(refused, Wait)
    assert "non-suggested node" in refused.reason
    assert isinstance(free, Bind)


def test_pinned_cells_are_for_those_who_name_them() -> None:
    engine = cluster(4, {"vision": [("node", 1)]}, pinned={"lab": "0/n1"})

    pinned = start(engine, gang("p", 8, pinned="lab"))
    loose = start(engine, gang("q", 8))

    assert nodes(pinned) == ["n1"]
    assert nodes(loose) != ["n1"]
    with pytest.raises(RequestError, match="does not have pinned cell"):
        engine.schedule(gang("r", 1, pinned="other"))


def test_a_stale_decision_is_refused() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    first, second = engine.schedule(gang("a", 8)), engine.schedule(gang("b", 8))
    assert isinstance(first, Bind)
    assert isinstance(second, Bind)
    engine.commit(first)

    with pytest.raises(StaleDecisionError):
        engine.commit(second)


def test_a_restart_keeps_devices_quota_and_claims() -> None:
    engine = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    start(engine, gang("guest", 8, vc="language", priority=-1))
    start(engine, gang("own", 3))
    claim = engine.schedule(gang("big", 8, vc="language"), phase=Phase.PREEMPTING)
    assert isinstance(claim, Preempt)
    views = [engine.group(name) for name in ("guest", "own", "big")]

    after = CellEngine(engine.spec)
    for view in views:
        assert view is not None
        after.restore(
            view.request, view.placements, preempting=view.state is GroupState.PREEMPTING
        )

    check(after)
    assert snapshot(after)["gangs"].keys() == {"guest", "own", "big"}
    assert after.gangs["own"].guaranteed
    assert after.gangs["big"].state is GroupState.PREEMPTING
    assert after.gangs["guest"].state is GroupState.BEING_PREEMPTED


def test_a_gang_whose_quota_is_gone_runs_on_as_opportunistic() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    start(engine, gang("a", 8, priority=1))
    start(engine, gang("b", 8, priority=2))
    views = [engine.group(name) for name in ("a", "b")]

    after = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    restored = [after.restore(v.request, v.placements) for v in views if v is not None]

    check(after)
    assert restored[0].guaranteed
    assert restored[1].displaced == ("a",)
    assert not after.gangs["a"].guaranteed
    assert after.gangs["b"].guaranteed


def test_quota_does_not_return_on_devices_that_another_share_owns_now() -> None:
    engine = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    placed = start(engine, gang("a", 1))
    after = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    without_quota = Placed(
        member=0,
        node=placed[0].node,
        devices=placed[0].devices,
        leaves=placed[0].leaves,
        virtual=(),
        chain="rack",
    )
    after.restore(gang("a", 1), [without_quota])
    beside = after.schedule(
        gang("b", 4, vc="language", ignore_suggested=False), suggested={placed[0].node}
    )
    assert isinstance(beside, Bind)
    after.commit(beside)

    assert after.return_to_guaranteed() == ()
    check(after)
    after.release("b")
    assert after.return_to_guaranteed() == ("a",)
    check(after)


def test_devices_that_are_gone_are_named_and_not_accounted() -> None:
    engine = cluster(4, {"vision": [("node", 4)]})
    placed = start(engine, gang("a", 8, 8, 8))

    after = cluster(2, {"vision": [("node", 2)]})
    restored = after.restore(gang("a", 8, 8, 8), placed)

    check(after)
    assert len(restored.unknown) == 8
    assert restored.guaranteed


def test_the_accounts_say_what_is_used_free_lent_and_unhealthy() -> None:
    engine = cluster(2, {"vision": [("node", 1)], "language": [("node", 1)]})
    start(engine, gang("a", 3))
    start(engine, gang("guest", 8, priority=-1))
    start(engine, gang("small", 2, priority=-1))

    view = engine.free_view()

    vision = view["virtual_clusters"]["vision"]["rack"]  # type: ignore[index]
    assert {k: vision[k] for k in ("quota", "used", "free", "lent", "unhealthy")} == {
        "quota": 8,
        "used": 3,
        "free": 5,
        "lent": 2,
        "unhealthy": 0,
    }
    chain = view["chains"]["rack"]  # type: ignore[index]
    assert chain["largest_gang"] == {1: 3, 2: 1, 4: 0, 8: 0}


def test_a_copy_of_a_fresh_engine_is_independent() -> None:
    engine = cluster(2, {"vision": [("node", 2)]})
    other = engine.fresh_copy()

    start(other, gang("a", 8, 8))

    check(engine)
    assert snapshot(engine) == snapshot(engine.fresh_copy())
    assert isinstance(engine.schedule(gang("b", 8, 8)), Bind)


def racks(*quotas: tuple[str, int]) -> CellEngine:
    """Three racks of two nodes, all of them one virtual cluster's."""
    return cluster(6, {"vision": list(quotas), "language": []})


def rack_of(engine: CellEngine, placed: tuple[Placed, ...]) -> set[str]:
    return {leaf.split("/")[0] for place in placed for leaf in place.leaves}


def test_a_gang_that_wants_one_rack_gets_one() -> None:
    engine = racks(("node", 6))
    for number, size in enumerate((3, 8, 8)):
        start(engine, gang(f"g{number}", size))

    placed = start(engine, gang("together", 8, 8, within="rack"))

    assert len(rack_of(engine, placed)) == 1
    check(engine)


def test_a_gang_that_wants_one_rack_waits_while_only_nodes_apart_are_free() -> None:
    engine = racks(("node", 6))
    for name in ("n0", "n2", "n4"):
        request = gang(f"on-{name}", 8, ignore_suggested=False)
        bind = engine.schedule(request, suggested=[name])
        assert isinstance(bind, Bind)
        engine.commit(bind)

    wait = engine.schedule(gang("together", 8, 8, within="within:rack"))
    apart = engine.schedule(gang("apart", 8, 8))

    assert isinstance(wait, Wait)
    assert (wait.code, wait.level) == (WaitCode.NO_CELL_OF_LEVEL, "rack")
    assert len(engine.remedies(wait).ends) == 1
    assert isinstance(apart, Bind)


def test_of_two_racks_the_one_with_less_to_lose_is_taken() -> None:
    engine = racks(("node", 6))
    for name, stake in (("n0", 9.0), ("n2", 1.0), ("n4", 5.0)):
        request = gang(f"on-{name}", 8, ignore_suggested=False, at_stake=stake)
        bind = engine.schedule(request, suggested=[name])
        assert isinstance(bind, Bind)
        engine.commit(bind)

    decision = engine.schedule(gang("together", 8, 8, priority=1, within="rack"))

    assert isinstance(decision, Preempt)
    assert decision.victims == ("on-n2",)


def test_opportunistic_gangs_stay_in_one_rack_too() -> None:
    engine = racks(("node", 6))

    placed = start(engine, gang("together", 5, 5, 3, priority=-1, within="rack"))

    assert len(rack_of(engine, placed)) == 1


def test_a_gang_larger_than_a_rack_is_told_so() -> None:
    wait = racks(("node", 6)).schedule(gang("big", 8, 8, 8, within="rack"))

    assert isinstance(wait, Wait)
    assert wait.code is WaitCode.EXCEEDS_VC_MAX
    assert wait.text == "The job needs 24 devices in one rack; the largest has 16."


def test_a_level_that_no_chain_has_is_named() -> None:
    wait = racks(("node", 6)).schedule(gang("lost", 1, within="pod"))

    assert isinstance(wait, Wait)
    assert wait.text == "No suitable chain has the level pod."
