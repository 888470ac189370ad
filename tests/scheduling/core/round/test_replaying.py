"""Stored rounds decided again: the same snapshot gives the same bytes."""

from contextlib import nullcontext
from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings

from scheduling.common.canonical_json import canonical_json
from scheduling.core.round.decide import decide
from scheduling.core.round.replaying import differing_fields, replay_round
from scheduling.core.round.stored import read_stored
from scheduling.core.simulation import SimulatedCluster
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
