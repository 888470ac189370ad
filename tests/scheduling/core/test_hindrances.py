"""Why jobs wait that no policy could start: the reason is what stands behind the policy's."""

from dataclasses import replace

import pytest

from scheduling.core.planning import Plan
from scheduling.core.policies import POLICIES
from scheduling.core.reasons import ReasonCode
from scheduling.core.rounds import decide
from tests.scheduling.core.test_orders import decided, elastic, gives, held
from tests.scheduling.core.test_rounds import LANGUAGE, VISION, job, snapshot

KEEPS_WAITING = Plan(allocs={}, order=(), why={1: "Not now."})


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    ("count", "devices", "words"),
    [(1, 16, "One instance wants 16 devices; a node has 8."), (2, 8, "vision-a has 8 of one")],
)
def test_under_every_policy_a_job_that_is_too_large_is_told_so(policy, count, devices, words):
    vc = replace(VISION, policy=policy)

    result = decide(snapshot(job(1, devices, count), vcs=(LANGUAGE, vc)))

    assert result.rejections or (
        result.reasons[1].code is ReasonCode.EXCEEDS_VC_MAX and words in result.reasons[1].text
    )


def test_a_job_that_only_ill_nodes_could_take_is_told_of_a_node():
    nodes = tuple(replace(node, healthy=False) for node in snapshot().nodes)

    result = decided(KEEPS_WAITING, job(1, 8), nodes=nodes)

    assert result.reasons[1].code is ReasonCode.CELLS_UNHEALTHY
    assert result.reasons[1].text.startswith("It would fit if node node-")


def test_what_a_policy_says_stands_where_devices_are_free_or_only_in_use():
    assert decided(KEEPS_WAITING, job(1, 4)).reasons[1].text == "Not now."
    result = decided(gives(j2=8), job(1, 4), holding=(held(8, ran=1.0, at=2),))
    assert result.reasons[1].code is ReasonCode.HELD_BY_POLICY


def test_an_elastic_job_is_judged_by_the_smallest_size_that_it_could_have():
    known = {1: elastic(2, 16, 16), 2: elastic(12, 16, 16)}

    result = decided(KEEPS_WAITING, job(1, 16), job(2, 16), known=known)

    assert result.reasons[1].code is ReasonCode.HELD_BY_POLICY
    assert result.reasons[2].code is ReasonCode.EXCEEDS_VC_MAX
