"""AntMan: quotas of guaranteed jobs, and turns of opportunistic ones."""

from typing import Any

from hypothesis import given

from scheduling.core.jobspec import JobClass
from scheduling.core.policies import make_policy
from scheduling.core.policy_interface import JobPhase, Snapshot, Tenant
from scheduling.core.round.decide import decide
from tests.factories.rounds import VISION, cluster_snapshot, jobs_started_by, queued_job
from tests.strategies.policy_views import NOW, make_job, make_view, views

BORROWS: dict[str, Any] = {"borrows": True}


def order_of(view: Snapshot, **args: object) -> tuple[int, ...]:
    plan, _ = make_policy("antman", args).plan(view, {})
    return plan.order


def test_guaranteed_jobs_come_before_opportunistic_ones_that_came_earlier() -> None:
    view = make_view(
        [make_job(1, 1, submitted=NOW - 90, **BORROWS), make_job(2, 2, submitted=NOW)], {"a": 4}
    )

    assert order_of(view) == (2, 1)


def test_running_opportunistic_jobs_do_not_use_a_quota() -> None:
    borrower = make_job(1, 4, phase=JobPhase.RUNNING, **BORROWS)
    view = make_view([borrower, make_job(2, 4)], {"a": 4})

    assert order_of(view) == (2,)


def test_the_queue_with_the_smallest_share_of_its_quota_is_first() -> None:
    tenants = (Tenant(id=1, guarantee=3.0), Tenant(id=2, guarantee=1.0))
    jobs = [
        make_job(1, 2, phase=JobPhase.RUNNING, tenant=1),
        make_job(2, 1, phase=JobPhase.RUNNING, tenant=2),
        make_job(3, 1, tenant=2, submitted=NOW - 50),
        make_job(4, 1, tenant=1, submitted=NOW - 10),
    ]

    assert order_of(make_view(jobs, {"a": 4}, tenants=tenants)) == (4,)


def test_a_blocked_head_blocks_only_its_own_queue_and_only_if_strict() -> None:
    tenants = (Tenant(id=1, guarantee=2.0), Tenant(id=2, guarantee=2.0))
    jobs = [
        make_job(1, 8, tenant=1, submitted=NOW - 90),
        make_job(2, 1, tenant=1, submitted=NOW - 80),
        make_job(3, 1, tenant=2, submitted=NOW - 70),
    ]
    view = make_view(jobs, {"a": 4}, tenants=tenants)

    assert set(order_of(view)) == {2, 3}
    assert set(order_of(view, strict=True)) == {3}


def test_opportunistic_queues_take_turns_by_their_devices() -> None:
    tenants = (Tenant(id=1, guarantee=1.0), Tenant(id=2, guarantee=1.0))
    jobs = [
        make_job(9, 1, phase=JobPhase.RUNNING, tenant=1, **BORROWS),
        *(make_job(n, 1, tenant=1, submitted=NOW - 90 + n, **BORROWS) for n in (1, 2)),
        *(make_job(n, 1, tenant=2, submitted=NOW - 50 + n, **BORROWS) for n in (3, 4)),
    ]

    assert order_of(make_view(jobs, {"a": 1}, tenants=tenants)) == (3, 1, 4, 2)


@given(view=views())
def test_each_opportunistic_job_is_offered_a_device_after_all_guaranteed_ones(view) -> None:
    plan, _ = make_policy("antman", {}).plan(view, {})

    waiting = {job.id: job for job in view.jobs if job.phase is JobPhase.QUEUED}
    classes = [waiting[job_id].job_class is JobClass.OPPORTUNISTIC for job_id in plan.order]
    assert classes == sorted(classes)
    assert sum(classes) == sum(job.job_class is JobClass.OPPORTUNISTIC for job in waiting.values())


def test_a_round_starts_a_guaranteed_job_on_devices_of_opportunistic_ones() -> None:
    vision = VISION.__class__(id=1, name="vision-a", tenant=1, policy="antman")
    first = cluster_snapshot(queued_job(1, 8, borrow=True), vcs=(vision,))
    holding = jobs_started_by(first)
    again = cluster_snapshot(queued_job(2, 8), vcs=(vision,), holding=holding)

    result = decide(again)

    assert [start.job_id for start in result.starts] == [2]
