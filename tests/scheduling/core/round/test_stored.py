"""Rounds are read back as they were."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.common.canonical_json import canonical_json
from scheduling.core.policy_interface import Facts, Kind, Scale, Step, Terms
from scheduling.core.round.decide import decide
from scheduling.core.round.stored import UnreadableRoundError, read_stored
from scheduling.core.values import JobFacts, RunObservation
from tests.factories.rounds import LANGUAGE, cluster_snapshot, jobs_started_by, queued_job


def there_and_back(before, result):
    document = orjson.loads(canonical_json({"snapshot": before, "result": result}))
    return read_stored(document)


@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8]), max_size=5),
    borrow=st.booleans(),
    gpu_seconds=st.floats(0, 1e9),
)
def test_a_round_is_read_as_it_was_and_decided_as_it_was(sizes, borrow, gpu_seconds):
    held = jobs_started_by(cluster_snapshot(queued_job(100, 2), queued_job(101, 8, borrow=True)))
    known = JobFacts(
        terms=Terms(kind=Kind.ELASTIC, scale=Scale(minimum=1, maximum=8, step=Step.POWER_OF_TWO)),
        facts=Facts(gpu_seconds=gpu_seconds, by_type={"a": 3.0}, losses=((1.0, 2.5),)),
        asked=queued_job(1).demand,
        seen=(RunObservation(type="a", nodes=1, devices=2, seconds=3.0, steps=4, samples=5.0),),
    )
    before = cluster_snapshot(
        *(queued_job(n, size, borrow=borrow) for n, size in enumerate(sizes, 1)),
        queued_job(50, 16, vc=LANGUAGE),
        holding=held,
        known={1: known},
        bad_devices=frozenset({("node-2", 3)}),
    )
    result = decide(before)

    after, answer = there_and_back(before, result)

    assert after == before
    assert answer == result
    assert decide(after) == result


def test_what_an_older_version_did_not_write_keeps_its_default():
    before = cluster_snapshot(queued_job(1))
    document = orjson.loads(canonical_json({"snapshot": before, "result": decide(before)}))
    del document["snapshot"]["known"], document["result"]["rejections"]

    assert read_stored(document)[0] == before


@pytest.mark.parametrize("damage", [{}, {"snapshot": {}}, {"snapshot": 3, "result": {}}])
def test_what_is_no_round_is_refused(damage):
    with pytest.raises(UnreadableRoundError):
        read_stored(damage)
