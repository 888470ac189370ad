"""How things stand: what may be left out when one more job is asked about."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.clusters.models import Node
from scheduling.core.round.decide import decide
from scheduling.core.round_result import RoundResult
from scheduling.core.values import QueuedJob
from scheduling.estimates.services.cached_decision import CachedDecision, standing_now
from tessera.reasons import ReasonCode
from tests.factories.cluster import NOW, make_cluster, make_virtual_cluster
from tests.factories.rounds import LANGUAGE, VISION, cluster_snapshot, jobs_started_by, queued_job
from tests.factories.scheduling import CONFIG


@st.composite
def jobs(draw: st.DrawFn, number: int) -> QueuedJob:
    return queued_job(
        number,
        devices=draw(st.sampled_from([1, 2, 4, 8])),
        count=draw(st.integers(1, 2)),
        vc=draw(st.sampled_from([VISION, LANGUAGE])),
        priority=draw(st.sampled_from([10, 100])),
        borrow=draw(st.booleans()),
        held=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[CachedDecision, QueuedJob]:
    """Some jobs run, some wait, and one more is asked about."""
    first = cluster_snapshot(
        *[draw(jobs(number)) for number in range(1, draw(st.integers(0, 5)) + 1)]
    )
    waiting = tuple(draw(jobs(number)) for number in range(10, 10 + draw(st.integers(0, 8))))
    strict = tuple(replace(vc, policy_args={"backfill": False}) for vc in first.vcs)
    now = replace(
        first,
        holding=jobs_started_by(first),
        queued=waiting,
        vcs=draw(st.sampled_from([first.vcs, strict])),
    )
    result = decide(now)
    moving = {start.job_id for start in result.starts}
    moving |= {
        number
        for number, reason in result.reasons.items()
        if reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    }
    return CachedDecision(now, result, frozenset(moving)), draw(jobs(99))


@settings(max_examples=100, deadline=None)
@given(world=worlds())
def test_bystanders_change_nothing_for_one_more_job(
    world: tuple[CachedDecision, QueuedJob],
) -> None:
    standing, more = world
    around = standing.without_bystanders(more)

    whole = decide(replace(standing.snapshot, queued=(*standing.snapshot.queued, more)))
    part = decide(replace(around, queued=(*around.queued, more)))

    def fate(result: RoundResult) -> object:
        started = [start for start in result.starts if start.job_id == more.id]
        reason = result.reasons.get(more.id)
        told = None if reason is None else (reason.code, reason.text, reason.blocked_by)
        return started, told

    assert fate(part) == fate(whole)


@pytest.mark.django_db
def test_a_node_that_tells_of_other_memory_is_read_anew() -> None:
    (node,) = make_cluster(1)
    make_virtual_cluster(policy="gavel")

    def memory_once_told(size: int) -> object:
        told = {"devices": [{"index": 0, "type": "a", "memory_bytes": size}]}
        Node.objects.filter(pk=node.pk).update(inventory=told)
        return standing_now(config=CONFIG, now=NOW).snapshot.device_memory

    first, second = memory_once_told(40 << 30), memory_once_told(80 << 30)

    assert (first, second) == ({"a": 40 << 30}, {"a": 80 << 30})
