"""The dry run of another specification: it says exactly what happens, and nobody is evicted."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cells import (
    Bind,
    CellEngine,
    ClusterSpec,
    GangRequest,
    GroupState,
    Member,
    PhysicalCell,
    Quota,
    RequestError,
    VcSpec,
    feasible,
)
from scheduling.core.cells.reconfiguration import (
    ClusterHealth,
    PinChange,
    PromiseChange,
    RunningGang,
    dry_run,
    guaranteed_gangs,
    taken_over,
)
from tests.strategies.cells import SPECS, TYPES, Wish, node_names, wishes
from tests.support.cell_invariants import check

FOUR = ClusterSpec(
    cell_types={"B-node": TYPES["B-node"]},
    physical=tuple(PhysicalCell(type="B-node", address=f"b{i}") for i in range(4)),
    virtual_clusters={},
)


def shares(**nodes: int) -> ClusterSpec:
    """Four nodes of which each virtual cluster is promised so many."""
    return replace(
        FOUR,
        virtual_clusters={
            vc: VcSpec(quotas=(Quota(chain="B-node", level="B-node", count=count),) * (count > 0))
            for vc, count in nodes.items()
        },
    )


def engine_with(spec: ClusterSpec, *gangs: tuple[str, str, int, int]) -> CellEngine:
    """An engine in which gangs (name, virtual cluster, priority, devices) run."""
    engine = CellEngine(spec)
    for name, vc, priority, devices in gangs:
        decision = engine.place(
            GangRequest(
                group=name,
                vc=vc,
                priority=priority,
                members=(Member(count=1, leaf_count=devices),),
            )
        )
        assert isinstance(decision, Bind), decision
    return engine


def running_in(engine: CellEngine) -> list[RunningGang]:
    """The gangs as leases would name them."""
    views = [engine.group(name) for name in engine.gangs]
    return [
        RunningGang(request=view.request, placements=view.placements)
        for view in views
        if view is not None and view.state is not GroupState.PREEMPTING
    ]


def devices_of(engine: CellEngine) -> dict[str, set[tuple[str, int]]]:
    found = {}
    for name in engine.gangs:
        view = engine.group(name)
        assert view is not None
        found[name] = {(p.node, device) for p in view.placements for device in p.devices}
    return found


def test_a_gang_whose_quota_moves_away_borrows_and_nobody_else_does() -> None:
    engine = engine_with(
        shares(v1=2, v2=1), ("1", "v1", 5, 4), ("2", "v1", 1, 4), ("3", "v2", 1, 4)
    )

    effect = dry_run(engine.spec, shares(v1=1, v2=2), running_in(engine))

    assert effect.fits
    assert effect.loses == ("2",)
    assert effect.regains == effect.stranded == ()
    assert effect.promises == (
        PromiseChange(vc="v1", chain="B-node", level="B-node", before=2, after=1),
        PromiseChange(vc="v2", chain="B-node", level="B-node", before=1, after=2),
    )


def test_the_higher_priority_keeps_the_quota_whoever_came_first() -> None:
    engine = engine_with(shares(v1=2), ("1", "v1", 1, 4), ("2", "v1", 5, 4))

    assert dry_run(engine.spec, shares(v1=1), running_in(engine)).loses == ("1",)


def test_what_was_lost_returns_when_the_quota_does() -> None:
    before = engine_with(shares(v1=1), ("1", "v1", 5, 4))
    lost, _ = taken_over(shares(v1=0, v2=2), running_in(before), ClusterHealth())

    effect = dry_run(lost.spec, shares(v1=1), running_in(lost))

    assert effect.regains == ("1",)
    assert effect.loses == ()


def test_quota_that_a_gang_does_not_use_takes_nothing_from_it() -> None:
    engine = engine_with(shares(v1=3), ("1", "v1", 5, 4))

    assert dry_run(engine.spec, shares(v1=1, v2=3), running_in(engine)).loses == ()


def test_what_does_not_fit_is_refused_with_a_witness_for_each_chain() -> None:
    spec = SPECS["nodes"]
    greedy = replace(
        spec,
        virtual_clusters={
            "v1": VcSpec(
                quotas=(
                    Quota(chain="A-pod", level="A-node", count=9),
                    Quota(chain="B-node", level="B-node", count=9),
                )
            )
        },
    )

    effect = dry_run(spec, greedy, [])

    assert not effect.fits
    assert len(effect.witnesses) == 2
    assert "at level B-node chain B-node needs 9, has 3" in effect.witnesses[0]
    assert "at level A-node chain A-pod needs 9, has 4" in effect.witnesses[1]


def test_a_node_that_vanishes_strands_those_who_run_there() -> None:
    engine = engine_with(shares(v1=1), ("1", "v1", 5, 4))
    node = devices_of(engine)["1"].pop()[0]
    less = replace(
        shares(v1=1), physical=tuple(cell for cell in FOUR.physical if cell.address != node)
    )

    effect = dry_run(engine.spec, less, running_in(engine))

    assert effect.stranded == ("1",)
    assert effect.nodes_removed == (node,)
    assert dry_run(less, engine.spec, []).nodes_added == (node,)


def test_pinning_a_cell_in_use_makes_its_user_borrow_when_nothing_else_is_its_own() -> None:
    engine = engine_with(shares(v1=1), ("1", "v1", 5, 4))
    node = devices_of(engine)["1"].pop()[0]
    pinned = replace(
        FOUR,
        virtual_clusters={**shares(v1=1).virtual_clusters, "v2": VcSpec(pinned={"mine": node})},
    )

    effect = dry_run(engine.spec, pinned, running_in(engine))

    assert effect.fits
    assert effect.loses == ("1",)
    assert effect.pins == (PinChange(vc="v2", name="mine", before="", after=node),)


@st.composite
def changed(draw: st.DrawFn, spec: ClusterSpec) -> ClusterSpec:
    """The same machines with other quotas, some of them more than there is."""
    found = {}
    for vc, share in spec.virtual_clusters.items():
        quotas = [
            replace(quota, count=draw(st.integers(0, quota.count + 1))) for quota in share.quotas
        ]
        keeps_pins = draw(st.booleans())
        found[vc] = VcSpec(quotas=tuple(quotas), pinned=share.pinned if keeps_pins else {})
    return replace(spec, virtual_clusters=found)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(SPECS)))
def test_applying_a_change_gives_exactly_what_the_dry_run_said(
    data: st.DataObject, name: str
) -> None:
    spec = SPECS[name]
    engine = CellEngine(spec)
    for node in data.draw(st.sets(st.sampled_from(node_names(spec)), max_size=1)):
        engine.set_node_health(node, healthy=False)
    for number, wish in enumerate(data.draw(st.lists(wishes(), max_size=8))):
        vc = data.draw(st.sampled_from(sorted(spec.virtual_clusters)))
        submit(engine, wish, f"{number}", vc)
    after = data.draw(changed(spec))
    health = ClusterHealth(nodes=frozenset(engine.bad_nodes))

    effect = dry_run(spec, after, running_in(engine), health=health)

    assert effect.fits == feasible(after).ok
    if not effect.fits:
        assert effect.witnesses
        return
    applied, stranded = taken_over(after, running_in(engine), health)
    check(applied)
    assert stranded == effect.stranded == ()
    assert devices_of(applied) == devices_of(engine), "no gang ends or moves"
    had, has = guaranteed_gangs(engine), guaranteed_gangs(applied)
    assert set(effect.loses) == had - has
    assert set(effect.regains) == has - had
    if name == "nodes":
        # With quotas of one level: else a small gang may come back in a larger cell than before.
        back, _ = taken_over(spec, running_in(applied), health)
        assert had <= guaranteed_gangs(back), "what is given back returns"
    if after == spec:
        assert effect.loses == ()


def submit(engine: CellEngine, wish: Wish, name: str, vc: str) -> None:
    """Let a gang start if it can at once."""
    request = replace(wish.request(name, engine.spec, vc), lazy_preemption=False)
    try:
        engine.place(request)
    except RequestError:
        return
