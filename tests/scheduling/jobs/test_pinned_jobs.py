"""Jobs that name a pinned cell, through whole rounds: where they start, and what happens to it."""

from datetime import timedelta

import pytest

from scheduling.clusters.models import PinnedCell, VcQuota, VirtualCluster
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import JobEvent
from scheduling.jobs.validation import InvalidJobError
from scheduling.runs.models import Lease
from tests.factories.cluster import job_document, make_job
from tests.factories.scheduling import (
    NOW,
    change_vc,
    end,
    make_two_tenants,
    run_round,
    start,
    submit,
)

pytestmark = pytest.mark.django_db

LAB = "node-3/1"


@pytest.fixture(autouse=True)
def clusters():
    made = make_two_tenants()
    pin()
    return made


def pin(address=LAB):
    """Give vision-a a socket under the name lab; or take it away."""
    change_vc("vision-a", pinned=[{"name": "lab", "address": address}] if address else [])


def pinned(devices=1, **changes):
    return submit(devices=devices, worker={"pinned_cell": "lab"}, **changes)


def later(seconds):
    return NOW + timedelta(seconds=seconds)


def leases(job):
    return Lease.objects.filter(job=job, released_at=None)


def held(job):
    return set(leases(job).values_list("device__address", flat=True))


def virtual_cells(job):
    return set(leases(job).values_list("virtual_cell", flat=True))


def test_a_job_starts_on_exactly_the_devices_of_the_cell_that_it_names():
    job = pinned(devices=4)

    start(job)

    assert held(job) == {f"{LAB}/{rest}" for rest in ("2/4", "2/5", "3/6", "3/7")}
    assert all(virtual_cells(job))


def test_a_job_that_names_no_cell_never_gets_a_pinned_one():
    whole, single = submit(devices=8), submit(devices=1)

    start(whole)

    single.refresh_from_db()
    assert not any(address.startswith(LAB) for address in held(whole))
    assert (single.state, single.reason_code) == (JobState.QUEUED, "vc-guarantee-in-use")


def test_after_a_round_its_leases_report_the_same_and_the_cell_counts_as_used():
    first = pinned(devices=3)
    start(first)
    before = virtual_cells(first)
    second, third = pinned(devices=2), pinned(devices=1)

    quiet = run_round(later(10))

    second.refresh_from_db()
    assert quiet.rebound == ()
    assert virtual_cells(first) == before
    assert quiet.started == (third.pk,)
    assert second.reason_code == "vc-guarantee-in-use"
    assert "the pinned cell lab" in second.reason_text
    assert len(held(first) | held(third)) == 4
    end(first)
    assert run_round(later(20)).started == (second.pk,)


def test_who_borrows_the_cell_leaves_for_a_job_that_names_it():
    borrower = submit("bob", devices=8, **{"class": "opportunistic"})
    others = [submit("bob", devices=8, **{"class": "opportunistic"}) for _ in range(2)]
    start(borrower, *others)
    waiting = pinned(devices=4)

    outcome = run_round(later(10))

    waiting.refresh_from_db()
    (victim,) = outcome.preempted
    assert waiting.reason_code == "waiting-victim-checkpoint"
    assert any(address.startswith(LAB) for address in held(type(waiting)(pk=victim)))


def test_a_waiting_job_whose_cell_is_unpinned_says_so_and_starts_when_it_is_back():
    job = pinned(devices=4)
    pin(None)

    run_round()
    job.refresh_from_db()
    waiting = (job.state, job.reason_code, job.reason_text)
    pin()

    assert waiting == (
        JobState.QUEUED,
        "invalid-spec",
        "Virtual cluster vision-a has no pinned cell lab.",
    )
    assert run_round(later(10)).started == (job.pk,)


def test_a_running_job_whose_cell_is_unpinned_goes_on_and_is_guaranteed_when_it_is_back():
    job = pinned(devices=4)
    start(job)
    devices = held(job)

    pin(None)
    lost = run_round(later(10))
    borrowed = virtual_cells(job)
    pin()
    back = run_round(later(20))

    job.refresh_from_db()
    assert (lost.rebound, back.rebound) == ((job.pk,), (job.pk,))
    assert borrowed == {""}
    assert all(virtual_cells(job))
    assert (held(job), job.state) == (devices, JobState.RUNNING)
    kinds = JobEvent.objects.filter(job=job, kind__startswith="guarantee").order_by("id")
    assert [event.kind for event in kinds] == ["guarantee_lost", "guarantee_regained"]


def two_roles(**changes):
    roles = {
        "chief": {"command": "true", "devices": 8},
        "worker": {"command": "true", "devices": 4, "pinned_cell": "lab"},
    }
    return make_job("alice", job_document() | {"roles": roles} | changes)


def test_a_gang_may_be_in_and_outside_the_cell_and_starts_whole():
    job = two_roles()

    start(job)
    quiet = run_round(later(10))

    by_role = dict(leases(job).values_list("device__address", "member__role"))
    inside = {role for address, role in by_role.items() if address.startswith(LAB)}
    assert (len(by_role), inside) == (12, {"worker"})
    assert quiet.rebound == ()


def test_a_gang_that_cannot_be_whole_holds_nothing_of_the_round():
    job, other = two_roles(), submit(devices=8)
    pin(None)

    outcome = run_round()

    job.refresh_from_db()
    assert outcome.started == (other.pk,)
    assert job.reason_code == "invalid-spec"


@pytest.mark.parametrize("policy", ["fifo", "backfill", "capacity", "drf", "gavel", "srtf"])
def test_a_policy_serves_a_virtual_cluster_that_has_a_pinned_cell_only(policy):
    VcQuota.objects.filter(virtual_cluster__name="vision-a").delete()
    VirtualCluster.objects.unscoped().filter(name="vision-a").update(policy=policy)
    job = pinned(devices=4)

    start(job)

    assert {address[: len(LAB)] for address in held(job)} == {LAB}


def test_where_all_is_pinned_only_jobs_that_name_it_are_guaranteed():
    VcQuota.objects.filter(virtual_cluster__name="vision-a").delete()

    with pytest.raises(InvalidJobError) as refused:
        submit()

    assert [error.field for error in refused.value.errors] == ["class"]
    assert PinnedCell.objects.count() == 1
