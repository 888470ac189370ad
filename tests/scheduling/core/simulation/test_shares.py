"""Virtual clusters in simulations: guarantees hold, devices are used once, inputs are named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies import make_policy
from scheduling.core.simulation.setups import Conditions, Setup
from scheduling.core.simulation.shares import read_shares
from scheduling.core.simulation.workload_jobs import workload_jobs
from scheduling.core.simulation.workload_run import WorkloadRun, run_workload
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Knowledge, SimulationError, Trace, TraceJob

CLUSTER = read_cluster("a:3x4,b:1x2")
SHARES = read_shares(["language=a:1,b:1", "vision=a:2"], CLUSTER)


def setup_of(*rows, **setup):
    jobs = tuple(
        TraceJob(name=f"j{n}", submitted=float(at), devices=size, duration=float(d), tenant=tenant)
        for n, (tenant, at, size, d) in enumerate(rows)
    )
    return Setup(
        trace=Trace(name="t", format="events", jobs=jobs),
        cluster=CLUSTER,
        files=lambda _path: None,
        shares=SHARES,
        **setup,
    )


def run(setup, policy, **args):
    return run_workload(
        setup, make_policy(policy, args), rules="events", workload="t", timer=lambda: 0.0
    )


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_a_neighbour_with_a_long_queue_takes_nothing_of_a_guarantee(policy):
    rows = [("vision", 0, 4, 100)] * 6 + [("language", 1, 4, 50)]

    result = run(setup_of(*rows), policy)

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

    result = run(setup_of(*rows), "fifo", backfill=False)

    assert [job.started for job in result.jobs] == [0.0, 100.0, 100.0, 3.0]


def test_what_no_guarantee_can_hold_is_refused():
    result = run(setup_of(("language", 0, 5, 10), ("language", 0, 4, 10)), "fifo")

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
    setup = setup_of(*rows, conditions=conditions, seed=seed, knowledge=Knowledge(size_aware=True))
    most = {1: {"a": 4, "b": 2}, 2: {"a": 8, "b": 0}}
    run = WorkloadRun(setup, make_policy(policy, {}), lambda: 0.0)

    while run.step():
        world = run.world
        held = [leaf.address for job in world.holding.values() for m in job.members for leaf in m]
        assert len(held) == len(set(held)) == world.devices
        down = {node.name for node in world.snapshot().nodes if not node.healthy}
        assert not [address for address in held if "/".join(address.split("/")[:2]) in down]
        for vc, limits in most.items():
            jobs = [job_id for job_id, job in world.holding.items() if job.vc == vc]
            for kind, limit in limits.items():
                assert sum(world.held_types(job_id).get(kind, 0) for job_id in jobs) <= limit

    assert run.fallbacks == []
    for record, (_vc, _at, devices, duration) in zip(run.records(), rows, strict=True):
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
        workload_jobs(setup_of(("speech", 0, 1, 10)))
