"""Explanation of shares: limits of waiting jobs, fair shares, and sums over all tenants."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.explanations.shares import (
    COMPETING,
    Limit,
    explain_shares,
    mean_shares,
    water_level,
)
from scheduling.core.jobspec import Within
from scheduling.core.round.decide import decide
from tessera.isolation import CONTAINER
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    VISION,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)


def explained(*queued, **changes):
    snapshot = cluster_snapshot(*queued, **changes)
    return explain_shares(snapshot, decide(snapshot))


def test_an_empty_cluster_lends_nothing():
    moment = explained()

    assert (moment.totals.devices, moment.totals.idle) == (24, 24)
    assert (moment.vcs[1].guaranteed, moment.vcs[2].guaranteed) == (8, 16)
    assert moment.vcs[1].limit is None
    assert moment.totals.fair == 0


def test_a_tenant_alone_is_limited_by_idle_devices():
    """Vision borrows all 24 devices; the fourth job would not fit without other tenants either."""
    moment = explained(*(queued_job(n, 8, borrow=True) for n in range(1, 5)))

    vision = moment.vcs[1]
    assert (vision.borrowed, vision.waiting) == (24, {Limit.IDLE: 8})
    assert (moment.vcs[1].lent, moment.vcs[2].lent) == (8, 16)
    assert moment.tenants[1].fair == 24


def test_weights_limit_a_tenant_whose_share_others_request():
    """Weights 8 and 16: of 24 borrowable devices vision gets 8, although it requests 16."""
    moment = explained(
        *(queued_job(n, 8, borrow=True) for n in (1, 2)),
        *(queued_job(n, 8, borrow=True, vc=LANGUAGE) for n in (3, 4)),
    )

    vision, language = moment.tenants[1], moment.tenants[2]
    assert (vision.borrowed, language.borrowed) == (8, 16)
    assert (vision.fair, language.fair) == (8.0, 16.0)
    assert moment.vcs[1].waiting == {Limit.WEIGHT: 8}


def test_scattered_idle_devices_are_a_limit_of_shape():
    start = cluster_snapshot(*(queued_job(n, 7, borrow=True) for n in (1, 2, 3)))
    running = jobs_started_by(start)

    moment = explained(queued_job(9, 3, borrow=True), holding=running)

    assert moment.totals.idle == 3
    assert moment.vcs[1].waiting == {Limit.SHAPE: 3}


@pytest.mark.parametrize(
    ("job", "vc", "limit"),
    [
        (queued_job(1, 1, borrow=True, held=True), VISION, Limit.GATE),
        (
            queued_job(1, 8, borrow=True),
            replace(VISION, max_opportunistic_devices=4),
            Limit.QUOTA,
        ),
        (queued_job(1, 1, borrow=True), replace(VISION, least_isolation=CONTAINER), Limit.NODES),
    ],
)  # fmt: skip
def test_jobs_that_are_offered_no_devices_request_none(job, vc, limit):
    moment = explained(job, vcs=(LANGUAGE, vc))

    assert moment.vcs[1].waiting == {limit: job.demand.devices}
    assert moment.tenants[1].requested == 0


def test_the_decision_of_the_round_and_later_ends_count():
    snapshot = cluster_snapshot(queued_job(1, 4, borrow=True), queued_job(2, 8))
    result = decide(snapshot)

    before, after = explain_shares(snapshot), explain_shares(snapshot, result)
    later = explain_shares(snapshot, result, gone={1}, at=NOW + 60)

    assert (before.totals.borrowed, before.vcs[1].guaranteed_waiting) == (0, 8)
    assert (after.totals.borrowed, after.totals.used, after.totals.idle) == (4, 8, 12)
    assert (later.at, later.totals.borrowed, later.totals.idle) == (NOW + 60, 0, 16)


def test_devices_of_closed_nodes_are_unusable():
    base = cluster_snapshot()
    nodes = (replace(base.nodes[0], placeable=False), *base.nodes[1:])

    moment = explained(nodes=nodes, bad_devices=frozenset({("node-2", 0)}))

    assert (moment.totals.unusable, moment.totals.idle) == (9, 15)
    assert sum(vc.unusable for vc in moment.vcs.values()) == 9


jobs = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3, 4, 8]),
        st.integers(1, 2),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.sampled_from([Within.NODE, Within.SOCKET]),
    ),
    max_size=14,
)


@given(first=jobs, second=jobs, closed=st.booleans())
def test_sums_agree_with_weights_and_totals(first, second, closed):
    """Every device and every waiting job counts once, and fair shares fill the pool."""

    def queue(rows, start):
        return [
            queued_job(
                start + n,
                min(devices, 4) if within is Within.SOCKET else devices,
                count,
                vc=LANGUAGE if foreign else VISION,
                borrow=borrow,
                held=held,
                within=within,
            )
            for n, (devices, count, foreign, borrow, held, within) in enumerate(rows)
        ]

    running = jobs_started_by(cluster_snapshot(*queue(first, 1)))
    base = cluster_snapshot()
    nodes = tuple(
        replace(node, placeable=not closed or i > 0) for i, node in enumerate(base.nodes)
    )
    snapshot = cluster_snapshot(*queue(second, 100), holding=running, nodes=nodes)
    moment = explain_shares(snapshot, decide(snapshot))
    totals, tenants = moment.totals, moment.tenants.values()

    assert totals.used + totals.borrowed + totals.idle + totals.unusable == totals.devices == 24
    assert totals.lent <= totals.borrowed
    for vc in moment.vcs.values():
        assert vc.used + vc.lent + vc.unusable <= vc.guaranteed
    assert totals.weight == 24
    assert math.isclose(
        totals.fair, min(totals.borrowable, totals.requested), rel_tol=1e-9, abs_tol=1e-9
    )
    for tenant in tenants:
        vcs = [vc for vc in moment.vcs.values() if vc.tenant == tenant.tenant]
        competing = sum(vc.waiting.get(limit, 0) for vc in vcs for limit in COMPETING)
        assert tenant.requested == tenant.borrowed + competing
    assert sum(tenant.borrowed for tenant in tenants) == totals.borrowed


@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=8),
    pool=st.integers(0, 200),
)
def test_fair_shares_are_max_min(rows, pool):
    """Below its demand, no share per unit of weight is smaller than another one."""
    demands = {key: float(demand) for key, (demand, _) in enumerate(rows)}
    weights = {key: float(weight) for key, (_, weight) in enumerate(rows)}

    level = water_level(demands, weights, pool)
    shares = {key: min(demands[key], level * weights[key]) for key in demands}

    assert math.isclose(sum(shares.values()), min(pool, sum(demands.values())), abs_tol=1e-6)
    for key, share in shares.items():
        if share < demands[key] - 1e-9:
            per_weight = [shares[other] / weights[other] for other in shares]
            assert share / weights[key] >= max(per_weight) - 1e-9


def test_means_keep_all_sums():
    idle, busy = explained(), explained(*(queued_job(n, 8, borrow=True) for n in range(1, 5)))

    mean = mean_shares([idle, busy, busy, busy])

    assert (mean.vcs[1].borrowed, mean.vcs[1].waiting) == (18.0, {Limit.IDLE: 6.0})
    assert (mean.totals.idle, mean.totals.borrowed, mean.totals.weight) == (6.0, 18.0, 24.0)
    assert mean.tenants[1].requested == 18.0 + 6.0
    with pytest.raises(ValueError, match="no moments"):
        mean_shares([])
