"""Preemptions that take several rounds: what was claimed stays so, and nobody goes in vain."""

import json
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.jobspec import JobClass
from scheduling.core.policies.base import rigid_alloc
from scheduling.core.policy_interface import Plan, Snapshot
from scheduling.core.round.claims import read_claims
from scheduling.core.round.decide import decide
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot, HoldingJob, QueuedJob
from tessera.reasons import ReasonCode
from tests.factories.policies import making
from tests.factories.rounds import (
    LANGUAGE,
    VISION,
    cluster_snapshot,
    elastic_facts,
    jobs_started_by,
    queued_job,
)

MINE = replace(VISION, policy="mine")
LATEST = queued_job(3, devices=8, priority=120)
RIVAL = queued_job(4, devices=4)


def latest_first(view: Snapshot) -> Plan:
    """Whoever came last is tried first, whatever its priority."""
    waiting = [one for one in view.jobs if one.phase == "queued"]
    waiting.sort(key=lambda one: -one.submitted)
    allocs = {one.id: one.alloc or rigid_alloc(one) for one in view.jobs if one.phase != "leaving"}
    return Plan(allocs=allocs, order=tuple(one.id for one in waiting), offer=True)


def decided(*queued: QueuedJob, **changes: Any) -> RoundResult:
    changes.setdefault("vcs", (LANGUAGE, MINE))
    return decide(cluster_snapshot(*queued, **changes), make=making(latest_first))


def full_node() -> tuple[ClusterSnapshot, tuple[HoldingJob, ...]]:
    """Two jobs of low priority on the one node of the virtual cluster."""
    first = cluster_snapshot(queued_job(1, devices=4), queued_job(2, devices=4))
    return first, jobs_started_by(first)


def remembered(waiting: QueuedJob, result: RoundResult) -> QueuedJob:
    """The waiting job as the next round reads it: its claims went through the database."""
    claims = result.reasons[waiting.id].claims
    return replace(waiting, claims=json.loads(json.dumps(claims)))


def half_gone(first: ClusterSnapshot) -> tuple[HoldingJob, ...]:
    """Job 1 has left, job 2 is saving its work."""
    return tuple(one for one in jobs_started_by(first, leaving=frozenset({1, 2})) if one.id != 1)


def test_what_one_victim_has_left_is_kept_while_the_other_saves_its_work():
    first, holding = full_node()
    ordered = decided(LATEST, holding=holding)
    waiting = remembered(LATEST, ordered)

    result = decided(waiting, RIVAL, holding=half_gone(first))

    assert {p.job_id for p in ordered.preemptions} == {1, 2}
    assert result.starts == ()
    assert result.preemptions == ()
    assert result.reasons[3].code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    assert result.reasons[3].blocked_by == (2,)
    assert result.reasons[3].claims == waiting.claims


def test_without_a_claim_the_same_round_gives_the_place_away():
    first, _ = full_node()

    result = decided(LATEST, RIVAL, holding=half_gone(first))

    assert [start.job_id for start in result.starts] == [4]


def test_the_preemptor_starts_on_what_it_has_claimed_when_all_victims_are_gone():
    _, holding = full_node()
    waiting = remembered(LATEST, decided(LATEST, holding=holding))

    result = decided(waiting, RIVAL)

    (start,) = result.starts
    assert waiting.claims is not None
    claimed = {
        leaf for part in waiting.claims["parts"] for _, leaves, _ in part for leaf in leaves
    }
    assert start.job_id == 3
    assert {leaf.address for member in start.members for leaf in member.leaves} == claimed
    assert all(leaf.virtual for member in start.members for leaf in member.leaves)


def test_victims_stay_the_same_though_others_would_be_cheaper_by_now():
    first, holding = full_node()
    small = queued_job(3, devices=4, priority=120)
    (victim,) = decided(small, holding=holding).preemptions
    waiting = remembered(small, decided(small, holding=holding))
    longer = tuple(
        replace(one, since=one.since - 1000.0 * (one.id != victim.job_id))
        for one in jobs_started_by(first)
    )

    result = decided(waiting, holding=longer)

    assert [p.job_id for p in result.preemptions] == [victim.job_id]
    assert result.reasons[3].blocked_by == (victim.job_id,)


def test_a_claim_ends_with_the_wish_for_it():
    _, holding = full_node()
    waiting = remembered(LATEST, decided(LATEST, holding=holding))

    held = decided(replace(waiting, held=True), RIVAL)
    smaller = decided(replace(waiting, demand=queued_job(3, devices=4).demand), RIVAL)
    borrowing = decided(
        replace(waiting, job_class=JobClass.OPPORTUNISTIC, priority=-1), RIVAL, holding=holding[:1]
    )

    assert [start.job_id for start in held.starts] == [4]
    assert {start.job_id for start in smaller.starts} == {3, 4}
    assert 4 in {start.job_id for start in borrowing.starts}


def test_a_claim_for_more_than_another_start_leaves_of_a_cap_is_given_up():
    _, holding = full_node()
    mine = queued_job(3, devices=4, priority=120)
    waiting = remembered(mine, decided(mine, holding=holding))
    capped = replace(MINE, max_devices_per_user=5)
    known = {3: elastic_facts(1, 4, 4)}

    result = decided(waiting, queued_job(5, devices=2), vcs=(LANGUAGE, capped), known=known)

    sizes = {start.job_id: len(start.members[0].leaves) for start in result.starts}
    assert sizes == {5: 2, 3: 3}


def test_a_claim_on_a_node_that_takes_nothing_new_is_given_up():
    _, holding = full_node()
    waiting = remembered(LATEST, decided(LATEST, holding=holding))
    assert waiting.claims is not None
    claimed = waiting.claims["parts"][0][0][1][0].partition("/")[0]
    base = cluster_snapshot()
    nodes = tuple(replace(node, placeable=node.name != claimed) for node in base.nodes)

    result = decided(waiting, nodes=nodes)

    (start,) = result.starts
    assert {member.node for member in start.members}.isdisjoint({claimed})


def test_a_higher_priority_starts_at_once_on_a_claim_whose_victims_have_left():
    _, holding = full_node()
    waiting = remembered(LATEST, decided(LATEST, holding=holding))

    result = decided(waiting, queued_job(5, devices=8, priority=900))

    assert [start.job_id for start in result.starts] == [5]
    assert result.preemptions == ()
    assert result.reasons[3].code is not ReasonCode.WAITING_VICTIM_CHECKPOINT
    assert result.reasons[3].claims is None


def test_a_higher_priority_takes_a_claim_and_the_first_preemptor_decides_anew():
    first, holding = full_node()
    waiting = remembered(LATEST, decided(LATEST, holding=holding))
    higher = queued_job(5, devices=8, priority=500)

    result = decided(waiting, higher, holding=half_gone(first))

    assert result.reasons[5].code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    assert result.reasons[5].claims is not None
    assert result.reasons[3].code is ReasonCode.VC_GUARANTEE_IN_USE
    assert result.reasons[3].claims is None


def test_claims_of_cells_that_are_gone_are_forgotten():
    _, holding = full_node()
    waiting = remembered(LATEST, decided(LATEST, holding=holding))
    assert waiting.claims is not None
    gone = {**waiting.claims, "parts": [[[0, ["gone/0"], ["vision-a/0/0"]]]]}

    result = decided(replace(waiting, claims=gone))

    assert [start.job_id for start in result.starts] == [3]


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        "claims",
        {},
        {"demand": {}, "parts": []},
        {"demand": None, "parts": [[]]},
        {"parts": [[[0, ["a"]]]], "demand": {"members": []}},
        {"parts": 3, "demand": {"members": []}},
    ],
)
def test_a_stored_claim_that_cannot_be_read_is_none(found: Any) -> None:
    assert read_claims(found) is None


def test_a_stored_claim_is_read_as_it_was_written() -> None:
    _, holding = full_node()
    claims = remembered(LATEST, decided(LATEST, holding=holding)).claims

    assert claims is not None
    assert read_claims(claims) == claims
    assert read_claims({**claims, "parts": []}) is None
