"""Why jobs wait that no policy could start: the reason is what stands behind the policy's."""

from dataclasses import replace

import pytest

from scheduling.core.cells import CellEngine
from scheduling.core.explanations.certificates import certify, check
from scheduling.core.policies import POLICIES
from scheduling.core.policy_interface import Plan
from scheduling.core.round.decide import EVICTION, SEARCHES, decide
from tessera.reasons import ReasonCode
from tests.factories.policies import making
from tests.factories.rounds import (
    LANGUAGE,
    VISION,
    VISION_MINE,
    cluster_snapshot,
    decide_with_policy,
    elastic_facts,
    held_job,
    plan_of_devices,
    queued_job,
)

KEEPS_WAITING = Plan(allocs={}, order=(), why={1: "Not now."})


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    ("count", "devices", "words"),
    [
        (1, 16, "One instance needs 16 devices; a node has at most 8."),
        (2, 8, "vision-a has at most 8 of one"),
    ],
)
def test_under_every_policy_a_job_that_is_too_large_is_told_so(policy, count, devices, words):
    vc = replace(VISION, policy=policy)

    result = decide(cluster_snapshot(queued_job(1, devices, count), vcs=(LANGUAGE, vc)))

    assert result.rejections or (
        result.reasons[1].code is ReasonCode.EXCEEDS_VC_MAX and words in result.reasons[1].text
    )


def test_a_job_that_only_ill_nodes_could_take_is_told_of_a_node():
    nodes = tuple(replace(node, healthy=False) for node in cluster_snapshot().nodes)

    result = decide_with_policy(KEEPS_WAITING, queued_job(1, 8), nodes=nodes)

    assert result.reasons[1].code is ReasonCode.CELLS_UNHEALTHY
    assert result.reasons[1].text.startswith("It would fit if node node-")


def test_what_a_policy_says_stands_where_devices_are_free_or_only_in_use():
    assert decide_with_policy(KEEPS_WAITING, queued_job(1, 4)).reasons[1].text == "Not now."
    result = decide_with_policy(
        plan_of_devices(j2=8), queued_job(1, 4), holding=(held_job(8, ran=1.0, at=2),)
    )
    assert result.reasons[1].code is ReasonCode.HELD_BY_POLICY


def test_an_elastic_job_is_judged_by_the_smallest_size_that_it_could_have():
    known = {1: elastic_facts(2, 16, 16), 2: elastic_facts(12, 16, 16)}

    result = decide_with_policy(KEEPS_WAITING, queued_job(1, 16), queued_job(2, 16), known=known)

    assert result.reasons[1].code is ReasonCode.HELD_BY_POLICY
    assert result.reasons[2].code is ReasonCode.EXCEEDS_VC_MAX


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The priorities of the gangs for which cells were searched."""
    found: list[int] = []
    ask = CellEngine.schedule

    def schedule(self, request, **options):
        found.append(request.priority)
        return ask(self, request, **options)

    # Counts calls and changes none; a limit of searches shows in no result.
    monkeypatch.setattr(CellEngine, "schedule", schedule)
    return found


MANY = tuple(queued_job(n, 8, priority=n) for n in range(1, 3 * SEARCHES))


def test_no_cells_are_searched_where_no_node_is_ill(searched):
    decide_with_policy(KEEPS_WAITING, *MANY)

    assert searched == []


def test_cells_are_searched_for_the_first_few_that_their_policy_holds(searched):
    nodes = tuple(replace(node, healthy=False) for node in cluster_snapshot().nodes)

    result = decide_with_policy(KEEPS_WAITING, *MANY, nodes=nodes)

    last = MANY[-1].id
    told = [n for n, why in result.reasons.items() if why.code is ReasonCode.CELLS_UNHEALTHY]
    assert searched == list(range(last, last - SEARCHES, -1))
    assert sorted(told) == list(range(last - SEARCHES + 1, last + 1))


def test_fewer_are_searched_for_where_others_could_be_evicted(searched):
    nodes = tuple(
        replace(node, healthy=node.name != "node-3") for node in cluster_snapshot().nodes
    )
    able = [one for one in MANY if one.priority > 10]
    weaker = held_job(8, ran=1.0, at=1)
    searched.clear()

    decide_with_policy(KEEPS_WAITING, *able, nodes=nodes, holding=(weaker,))

    assert len(searched) == SEARCHES // EVICTION


def test_only_those_who_are_asked_about_are_judged():
    waiting = cluster_snapshot(queued_job(1, 16), queued_job(2, 16), vcs=(LANGUAGE, VISION_MINE))

    result = decide(waiting, make=making(KEEPS_WAITING), explain={2})

    assert result.reasons[1].code is ReasonCode.HELD_BY_POLICY
    assert result.reasons[2].code is ReasonCode.EXCEEDS_VC_MAX


@pytest.mark.parametrize("policy", ["tiresias", "tessera"])
def test_such_a_reason_has_a_certificate_that_holds(policy):
    nodes = tuple(replace(node, healthy=False) for node in cluster_snapshot().nodes)
    vc = replace(VISION, policy=policy)
    waiting = cluster_snapshot(
        queued_job(1, 16), queued_job(2, 8), queued_job(3, 4), vcs=(LANGUAGE, vc), nodes=nodes
    )
    result = decide(waiting)

    assert {why.code for why in result.reasons.values()} >= {
        ReasonCode.EXCEEDS_VC_MAX,
        ReasonCode.CELLS_UNHEALTHY,
    }
    for job_id in result.reasons:
        certificate = certify(job_id, waiting, result, sha256="0" * 64)
        assert check(certificate, waiting)
        assert not check(replace(certificate, code="held-by-policy", text="x"), waiting)
