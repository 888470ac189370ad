"""Stored rounds decided again: the same snapshot gives the same bytes."""

import random
from contextlib import nullcontext
from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings

from scheduling.common.canonical_json import canonical_json
from scheduling.core.policies import make_policy
from scheduling.core.round.decide import decide
from scheduling.core.round.replaying import differing_fields, replay_round
from scheduling.core.round.stored import read_stored
from scheduling.core.simulation import SimulatedCluster
from scheduling.core.simulation.setups import Conditions, Setup
from scheduling.core.simulation.shares import read_shares
from scheduling.core.simulation.workload_run import WorkloadRun
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Knowledge, Trace, TraceJob
from tests.factories.rounds import LANGUAGE, VISION, cluster_snapshot, queued_job
from tests.strategies.waiting_clusters import clusters

POLICIES: list[tuple[str, dict[str, object]]] = [
    ("fifo", {}), ("srtf", {}), ("fair", {}), ("tiresias", {}), ("sia", {}), ("tessera", {}),
]  # fmt: skip


def stored(snapshot, result):
    return orjson.loads(canonical_json({"snapshot": snapshot, "result": result}))


def replayed(document):
    snapshot, result = read_stored(document)
    return orjson.loads(canonical_json(replay_round(snapshot, result)))


def check_some_rounds(snapshot):
    world = SimulatedCluster(snapshot, lambda job_id: 400.0 * job_id)
    for _ in range(6):
        now = world.snapshot()
        document = stored(now, decide(now))
        assert replayed(document) == document["result"]
        world.decide()
        due = world.next_time()
        if due is None:
            return
        world.advance(due)


@settings(max_examples=25)
@given(snapshot=clusters(policies=POLICIES))
def test_generated_rounds_give_their_decision_again(snapshot):
    check_some_rounds(snapshot)


@pytest.mark.soak
@settings(settings.get_profile("soak"), max_examples=400)
@given(snapshot=clusters(policies=POLICIES))
def test_many_generated_rounds_give_their_decision_again(snapshot):
    check_some_rounds(snapshot)


class Stored(WorkloadRun):
    """Stores each round of a run, and replays it; the simulation decides the same."""

    def decide(self):
        snapshot = self.world.snapshot()
        result = decide(snapshot)
        document = stored(snapshot, result)
        assert replayed(document) == document["result"]
        warm = super().decide()
        assert (warm.starts, warm.preemptions) == (result.starts, result.preemptions)
        assert warm.rebindings == result.rebindings
        return warm


def generated_jobs(chance, days):
    at = 0.0
    while (at := at + chance.expovariate(1.0 / 1800.0)) < days * 86_400.0:
        yield TraceJob(
            name=f"job-{at:.3f}",
            submitted=at,
            devices=chance.choice([1, 1, 2, 3, 4, 8]),
            duration=60.0 + chance.expovariate(1.0 / 9000.0),
            tenant=chance.choice(["vision", "language"]),
            user=chance.choice(["alice", "bob"]),
            priority=chance.choice([0, 0, 0, 10]),
        )


def check_generated_days(days, policy):
    cluster = read_cluster("a:3x4,b:2x4")
    setup = Setup(
        trace=Trace(
            name="generated", format="events", jobs=tuple(generated_jobs(random.Random(7), days))
        ),
        cluster=cluster,
        files=lambda _path: None,
        shares=read_shares(["vision=a:2,b:1", "language=a:1,b:1"], cluster),
        conditions=Conditions(node_mtbf=86_400.0, node_repair=7200.0, checkpoint_seconds=600.0),
        knowledge=Knowledge(size_aware=True),
    )
    run = Stored(setup, make_policy(policy, {}), lambda: 0.0)
    while run.step():
        pass
    assert run.world.record.failures or days < 2.0
    assert all(job.finished is not None for job in run.records() if job.refused is None)


@pytest.mark.parametrize(("days", "policy"), [(2.0, "fifo"), (0.5, "srtf")])
def test_each_round_of_generated_days_gives_its_decision_again(days, policy):
    check_generated_days(days, policy)


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["fifo", "srtf", "fair", "tiresias", "tessera"])
def test_each_round_of_a_generated_month_gives_its_decision_again(policy):
    check_generated_days(30.0, policy)


@pytest.mark.parametrize("args", [{}, {"wrap": {"hysteresis": {}}}])
def test_a_policy_that_exceeded_its_time_fails_again_without_a_clock(args):
    slow = replace(VISION, policy="srtf", policy_args=args)
    snapshot = cluster_snapshot(queued_job(1, 8), queued_job(2, 8), vcs=(LANGUAGE, slow))

    def late():
        raise TimeoutError

    result = decide(snapshot, limit=late)
    document = stored(snapshot, result)

    assert "took too long" in result.policy_faults[VISION.id]
    assert replayed(document) == document["result"]
    assert decide(snapshot, limit=nullcontext) != result


def test_differences_are_named_by_field():
    snapshot = cluster_snapshot(queued_job(1, 8))
    result = decide(snapshot)

    assert differing_fields(result, result) == ()
    assert differing_fields(result, replace(result, starts=(), wake=1.0)) == ("starts", "wake")
