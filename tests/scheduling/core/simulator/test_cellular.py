"""Virtual clusters in simulations: guarantees hold, devices are used once, inputs are named."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies import make_policy
from scheduling.core.simulator import (
    Conditions,
    Knowledge,
    Setup,
    SimulationError,
    Trace,
    TraceJob,
    read_cluster,
    simulate,
)
from scheduling.core.simulator.cellular import read_shares, split
from scheduling.core.simulator.rules.events import EventWorld

CLUSTER = read_cluster("a:3x4,b:1x2")
SHARES = read_shares(["language=a:1,b:1", "vision=a:2"], CLUSTER)


def world_of(*rows, **setup):
    jobs = tuple(
        TraceJob(name=f"j{n}", submitted=float(at), devices=size, duration=float(d), tenant=tenant)
        for n, (tenant, at, size, d) in enumerate(rows)
    )
    return EventWorld(
        Setup(
            trace=Trace(name="t", format="events", jobs=jobs),
            cluster=CLUSTER,
            files=lambda _path: None,
            shares=SHARES,
            **setup,
        )
    )


def run(world, policy, **args):
    ticks = itertools.count()
    return simulate(
        world,
        split(make_policy(policy, args), SHARES, CLUSTER),
        rules="events",
        workload="t",
        timer=lambda: float(next(ticks)),
    )


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_a_neighbour_with_a_long_queue_takes_nothing_of_a_guarantee(policy):
    rows = [("vision", 0, 4, 100)] * 6 + [("language", 1, 4, 50)]

    result = run(world_of(*rows), policy)

    assert result.fallbacks == ()
    assert result.jobs[6].started == 1.0
    assert sorted(job.started for job in result.jobs[:6]) == [0.0, 0.0, 100.0, 100.0, 200.0, 200.0]


def test_a_head_that_does_not_fit_holds_back_its_own_virtual_cluster_only():
    rows = [
        ("vision", 0, 6, 100),
        ("vision", 1, 4, 10),
        ("vision", 2, 1, 10),
        ("language", 3, 1, 10),
    ]

    result = run(world_of(*rows), "fifo", backfill=False)

    assert [job.started for job in result.jobs] == [0.0, 100.0, 100.0, 3.0]


def test_what_no_guarantee_can_hold_is_refused():
    result = run(world_of(("language", 0, 5, 10), ("language", 0, 4, 10)), "fifo")

    assert result.jobs[0].refused == "asks for 5 devices, of which there are 4 of one type"
    assert result.jobs[1].finished == 10.0


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["vision", "language", ""]),
            st.integers(0, 40),
            st.integers(1, 5),
            st.integers(1, 90),
        ),
        min_size=1,
        max_size=8,
    ),
    policy=st.sampled_from(["fifo", "srtf", "tiresias"]),
    mtbf=st.sampled_from([None, 150.0]),
    seed=st.integers(0, 2),
)
def test_no_device_is_used_twice_no_guarantee_is_exceeded_and_all_work_is_done(
    rows, policy, mtbf, seed
):
    conditions = Conditions(node_mtbf=mtbf, node_repair=40.0)
    knowledge = Knowledge(size_aware=True)
    world = world_of(*rows, conditions=conditions, seed=seed, knowledge=knowledge)
    most = {"vision": {"a": 8, "b": 0}, "language": {"a": 4, "b": 2}}

    class Watched(EventWorld):
        def apply(self, plan):
            super().apply(plan)
            assert self._book is not None
            used = self._book.used()
            assert all(0 <= used[kind, node] <= (4 if kind == "a" else 2) for kind, node in used)
            assert all(used[place] == 0 for place in self._book._down)
            assert sum(used.values()) == self.busy
            for vc, limits in most.items():
                held = [a.single for i, a in self._held.items() if self._vcs[i] == vc]
                for kind, limit in limits.items():
                    assert sum(part.n for part in held if part.type == kind) <= limit

    world = Watched(world._setup)
    result = run(world, policy)

    assert result.fallbacks == ()
    for record, (_vc, _at, devices, duration) in zip(result.jobs, rows, strict=True):
        if record.refused is None:
            assert record.finished is not None
            assert record.gpu_seconds >= devices * duration - 1e-3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vision", "'vision' is not of the form NAME=TYPE:NODES"),
        ("vision=a", "is not of the form"),
        ("a/b=a:1", "is not of the form"),
        ("vision=c:1", "vision: device type c not found"),
        ("vision=a:4", "4 nodes of a are guaranteed, but the cluster has 3"),
    ],
)
def test_a_guarantee_that_cannot_be_is_refused_by_name(text, message):
    with pytest.raises(SimulationError, match=message):
        read_shares([text], CLUSTER)


def test_a_tenant_without_a_virtual_cluster_is_named():
    with pytest.raises(SimulationError, match="j0: its tenant speech has no virtual cluster"):
        world_of(("speech", 0, 1, 10))
