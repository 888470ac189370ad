"""A job that has lost its guarantee counts as what it runs as: a borrower."""

from dataclasses import replace

from scheduling.core.cells import Quota, VcSpec
from scheduling.core.round.decide import decide
from scheduling.core.values import ClusterSnapshot
from tessera.reasons import ReasonCode
from tests.factories.rounds import (
    LANGUAGE,
    SPEC,
    VISION,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)

NOTHING_LEFT = replace(
    SPEC, virtual_clusters={**SPEC.virtual_clusters, "vision-a": VcSpec(quotas=())}
)
ROOM_AGAIN = replace(
    SPEC,
    virtual_clusters={
        **SPEC.virtual_clusters,
        "vision-a": VcSpec(quotas=(Quota(chain="a-node", level="a-node", count=1),)),
    },
)


def after_the_loss(*queued, spec=NOTHING_LEFT, **changes) -> ClusterSnapshot:
    """Vision's job of eight devices runs on; its guarantee has been taken away."""
    demoted = jobs_started_by(cluster_snapshot(queued_job(1, devices=8)))
    return cluster_snapshot(*queued, spec=spec, holding=demoted, **changes)


def test_it_counts_against_what_its_virtual_cluster_may_borrow():
    capped = replace(VISION, max_opportunistic_devices=8)
    wish = queued_job(2, devices=1, borrow=True)

    demoted = decide(after_the_loss(wish, vcs=(LANGUAGE, capped)))
    guaranteed = decide(after_the_loss(wish, spec=ROOM_AGAIN, vcs=(LANGUAGE, capped)))

    assert demoted.reasons[2].code is ReasonCode.OPPORTUNISTIC_CAP
    assert demoted.reasons[2].text.startswith("vision-a borrows 8 devices and may borrow 8;")
    assert [start.job_id for start in guaranteed.starts] == [2]


def test_its_tenant_comes_after_those_that_borrow_less():
    mine, theirs = (
        queued_job(2, devices=8, borrow=True),
        queued_job(3, devices=8, vc=LANGUAGE, borrow=True),
    )
    other = queued_job(4, devices=8, vc=LANGUAGE, borrow=True)

    result = decide(after_the_loss(mine, theirs, other))

    assert {start.job_id for start in result.starts} == {3, 4}


def test_a_guaranteed_job_costs_its_tenant_no_turn():
    mine, theirs = (
        queued_job(2, devices=8, borrow=True),
        queued_job(3, devices=8, vc=LANGUAGE, borrow=True),
    )
    other = queued_job(4, devices=8, vc=LANGUAGE, borrow=True)

    result = decide(after_the_loss(mine, theirs, other, spec=ROOM_AGAIN))

    assert {start.job_id for start in result.starts} == {2, 3}
