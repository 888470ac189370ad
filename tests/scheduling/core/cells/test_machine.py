"""State machines over the cell engine: any legal order of events keeps properties P1 to P14."""

import copy
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduling.core.cells import (
    Bind,
    CellEngine,
    ClusterSpec,
    GangRequest,
    GroupState,
    Phase,
    Preempt,
    RequestError,
    Wait,
)
from tests.strategies.cells import SPECS, Wish, node_names, wishes
from tests.support.cell_invariants import books, check, snapshot, whole
from tests.support.cell_restarts import restarted_engine

EVENTS = {"count": 0}


class CellMachine(RuleBasedStateMachine):
    """Submits, commits, ends, breaks, heals, restarts and reconfigures."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    @initialize(name=st.sampled_from(sorted(SPECS)), healthy=st.sampled_from([True, True, False]))
    def build(self, name: str, healthy: bool) -> None:
        self.spec = SPECS[name]
        self.engine = CellEngine(self.spec, healthy=healthy)
        self.twin = CellEngine(self.spec, healthy=healthy)

    # Events

    @rule(wish=wishes(), data=st.data(), preempting=st.booleans())
    def submit(self, wish: Wish, data: st.DataObject, preempting: bool) -> None:
        self.number += 1
        vc = data.draw(st.sampled_from(sorted(self.spec.virtual_clusters)))
        request = wish.request(f"g{self.number}", self.spec, vc)
        suggested = None
        if not request.ignore_suggested:
            suggested = data.draw(st.sets(st.sampled_from(node_names(self.spec))))
        phase = Phase.PREEMPTING if preempting else Phase.FILTERING
        self._schedule(request, phase, suggested)

    @precondition(lambda self: self._named(GroupState.PREEMPTING))
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._named(GroupState.PREEMPTING)))
        suggested = data.draw(
            st.none() | st.sets(st.sampled_from(node_names(self.spec)), min_size=1)
        )
        self._schedule(self.engine.gangs[name].request, Phase.PREEMPTING, suggested)

    @precondition(lambda self: self.engine.gangs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine.gangs)))
        self._both("release", name)

    @precondition(lambda self: self._named(GroupState.BEING_PREEMPTED))
    @rule()
    def evict_all_victims(self) -> None:
        for name in self._named(GroupState.BEING_PREEMPTED):
            self._both("release", name)

    @rule(data=st.data(), healthy=st.booleans())
    def node_health(self, data: st.DataObject, healthy: bool) -> None:
        node = data.draw(st.sampled_from(node_names(self.spec)))
        self._both("set_node_health", node, healthy=healthy)

    @rule(data=st.data(), device=st.integers(0, 7), healthy=st.booleans())
    def device_health(self, data: st.DataObject, device: int, healthy: bool) -> None:
        node = data.draw(st.sampled_from(node_names(self.spec)))
        self._both("set_device_health", node, device, healthy=healthy)

    @rule()
    def return_quota(self) -> None:
        self._both("return_to_guaranteed")

    @rule()
    def restart(self) -> None:
        """P11: the same use of devices; the same accounts where nobody waits for victims."""
        before = self.engine
        settled = not self._named(GroupState.PREEMPTING)
        after = restarted_engine(before, self.spec)
        for name, gang in before.gangs.items():
            if gang.state is not GroupState.PREEMPTING:
                assert _devices(after, name) == _devices(before, name)
                if settled:
                    assert after.gangs[name].guaranteed == gang.guaranteed
        check(after)
        self.engine, self.twin = after, restarted_engine(before, self.spec)

    @rule(data=st.data())
    def reconfigure(self, data: st.DataObject) -> None:
        """Other shares on the same machines: nobody is evicted, some may lose their quota."""
        spec = data.draw(st.sampled_from(_variants(self.spec)))
        before = self.engine
        running = [n for n, g in before.gangs.items() if g.state is not GroupState.PREEMPTING]
        self.engine, self.twin = restarted_engine(before, spec), restarted_engine(before, spec)
        self.spec = spec
        for name in running:
            assert _devices(self.engine, name) == _devices(before, name)

    # Properties

    @invariant()
    def the_books_are_right(self) -> None:
        if hasattr(self, "engine"):
            EVENTS["count"] += 1
            check(self.engine)

    def teardown(self) -> None:
        """P3, P12, P14: the twin has the same books, and an emptied engine those of a new one."""
        if not hasattr(self, "engine"):
            return
        assert snapshot(self.engine) == snapshot(self.twin), "P14"
        order = random.Random(self.number)
        nodes = node_names(self.spec)
        names = sorted(self.engine.gangs)
        order.shuffle(names)
        for name in names:
            self.engine.release(name)
        order.shuffle(nodes)
        for node in nodes:
            self.engine.set_node_health(node, healthy=True)
        for node, device in sorted(self.engine.bad_devices):
            self.engine.set_device_health(node, device, healthy=True)
        check(self.engine)
        fresh = CellEngine(self.spec)
        for name, roster in self.engine.rosters.items():
            assert books(roster.ledger) == books(fresh.rosters[name].ledger), "P3"

    # Helpers

    def _named(self, state: GroupState) -> list[str]:
        return sorted(n for n, g in self.engine.gangs.items() if g.state is state)

    def _both(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = getattr(self.engine, method)(*args, **kwargs)
        assert answer == getattr(self.twin, method)(*args, **kwargs), "P14"
        return answer

    def _schedule(self, request: GangRequest, phase: Phase, suggested: set[str] | None) -> None:
        before = snapshot(self.engine)
        known = request.group in self.engine.gangs
        try:
            decision = self.engine.schedule(request, phase=phase, suggested=suggested)
            same = self.twin.schedule(request, phase=phase, suggested=suggested)
            assert decision == same, "P14"
        except RequestError:
            assert snapshot(self.engine) == before, "an error changed something"
            return
        if phase is Phase.FILTERING or (isinstance(decision, Wait | Bind) and not known):
            assert snapshot(self.engine) == before, "P8: a decision changed something"
        if isinstance(decision, Preempt):
            self._check_preempt(decision, known=known)
        if isinstance(decision, Wait) and request.guaranteed and not known:
            self._check_wait(decision)
        if isinstance(decision, Bind):
            assert isinstance(same, Bind)
            placed = self.engine.commit(decision)
            if known or request.group in self.twin.gangs:
                assert placed == self.twin.commit(same), "P14"
            else:
                at_once = self.twin.place(request, suggested=suggested)
                assert isinstance(at_once, Bind)
                assert placed == at_once.placements, "place and commit differ"
            assert whole(self.engine, request.group), "P8"

    def _check_preempt(self, decision: Preempt, *, known: bool) -> None:
        assert decision.victims, "a preemption without victims is a bind"
        for name in decision.victims:
            victim = self.engine.gangs[name]
            assert victim.priority < decision.request.priority, "P9"
        if known or decision.request.group in self.engine.gangs:
            return
        ahead = copy.deepcopy(self.engine)
        begun = ahead.schedule(decision.request, phase=Phase.PREEMPTING)
        if not decision.request.ignore_suggested or not isinstance(begun, Preempt):
            return
        claimed = snapshot(ahead)
        check(ahead)
        back = copy.deepcopy(ahead)
        back.release(decision.request.group)
        # Which of two doomed cells a quota gets may change when lowered gangs come back.
        alike = not begun.downgraded or not any(r.ledger.doomed for r in back.rosters.values())
        if alike and not _cancels(self.engine, ahead):
            assert snapshot(back) == snapshot(self.engine), "P8: cancel restores"
        for name in begun.victims:
            ahead.release(name)
        started = ahead.schedule(decision.request, phase=Phase.PREEMPTING)
        assert isinstance(started, Bind), f"P7: evicted, yet {started} after {claimed}"

    def _check_wait(self, decision: Wait) -> None:
        """P7: no opportunistic gang is the reason of a guaranteed one's wait.

        A combination of small cells is more than was promised, and takes idle devices only.
        """
        alone = copy.deepcopy(self.engine)
        for name, gang in self.engine.gangs.items():
            if not gang.guaranteed and gang.state is not GroupState.PREEMPTING:
                alone.release(name)
        if not decision.request.ignore_suggested:
            return
        answer = alone.schedule(decision.request)
        if isinstance(answer, Bind):
            alone.commit(answer)
            assert combines(alone, decision.request.group), "P7"
        else:
            assert isinstance(answer, Wait), "P7"


def combines(engine: CellEngine, group: str) -> bool:
    """Whether an instance of a gang lies on several quota cells."""
    gang = engine.gangs[group]
    assert gang.roster is not None
    holders = gang.roster.ledger.holders
    return any(len(list(holders(spot.node, spot.mask))) > 1 for spot in gang.spots)


def _cancels(before: CellEngine, after: CellEngine) -> bool:
    return any(name not in after.gangs for name in before.gangs)


def _devices(engine: CellEngine, name: str) -> set[tuple[str, int]]:
    view = engine.group(name)
    assert view is not None
    return {(p.node, device) for p in view.placements for device in p.devices}


def _variants(spec: ClusterSpec) -> list[ClusterSpec]:
    """The same machines with fewer quotas for one virtual cluster, or with those of the start."""
    name = next(n for n, s in SPECS.items() if s.physical == spec.physical)
    whole_spec = SPECS[name]
    found = [whole_spec]
    for vc, shares in whole_spec.virtual_clusters.items():
        less = type(shares)(quotas=shares.quotas[1:], pinned=shares.pinned)
        found.append(
            ClusterSpec(
                cell_types=whole_spec.cell_types,
                physical=whole_spec.physical,
                virtual_clusters={**whole_spec.virtual_clusters, vc: less},
            )
        )
    return found


QUICK = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_any_order_of_events_keeps_the_books_right() -> None:
    run_state_machine_as_test(CellMachine, settings=QUICK)  # type: ignore[no-untyped-call]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_events_keep_the_books_right() -> None:
    start, examples = EVENTS["count"], 0
    while EVENTS["count"] - start < 100_000:
        examples += 1
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            CellMachine,
            settings=settings(QUICK, max_examples=500, stateful_step_count=50),
        )
        assert examples < 100
