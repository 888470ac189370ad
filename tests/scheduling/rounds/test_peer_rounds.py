"""Jobs that share a device as equals on the database: seats, orders, charges and ends."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from scheduling.clusters.models import ClusterRules, Device, VirtualCluster
from scheduling.jobs.models import Job
from scheduling.maintenance.invariants import violations
from scheduling.rounds.snapshot.reading import take_snapshot
from scheduling.runs.models import Attempt, Lease, Member, PairPace
from scheduling.runs.services.guests import set_sharing, stop_sharing
from scheduling.usage.models import UsageJob
from scheduling.usage.queries.device_hours import hours_of_jobs, use_by_person, use_by_tenant
from scheduling.usage.services.usage import sum_usage
from tenants.roles import Role
from tests.factories.attempts import members_of
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.peers import plan_of
from tests.factories.policies import making
from tests.factories.scheduling import CONFIG, end, run_round, start
from tests.factories.tenants import make_tenant, make_user, make_viewer
from workers.services.device_orders import device_orders, guest_places
from workers.services.shared_devices import keep_shared
from workers.transports.base import (
    NEVER_SUSPENDED,
    CompanyReading,
    DeviceReading,
    GuestReading,
    SuspensionReading,
)

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(seconds=90)
SMALL: dict[str, Any] = {
    "worker": {"devices": 1, "memory": "2GiB"},
    "sharing": {"guests": "same-tenant"},
}


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster(1)
    make_priority_classes()
    make_user("root", is_cluster_admin=True)
    make_tenant("language", bob=Role.MEMBER)
    make_virtual_cluster(
        tenant=make_tenant("vision", alice=Role.MEMBER, ada=Role.LEAD), policy="mine"
    )
    Device.objects.update(sharing_modes=["slot"])
    set_sharing(viewer=make_viewer("root"), enabled=True, now=NOW)


def pair(*jobs: Job, turn_seconds: float = 0.0) -> Any:
    """A policy that always runs some jobs on one device."""
    return making(
        lambda view: plan_of(
            tuple(job.pk for job in jobs if job.pk in {one.id for one in view.jobs}),
            turn_seconds=turn_seconds,
        )
    )


def running_pair(turn_seconds: float = 0.0, **changes: Any) -> tuple[Job, Job]:
    """Two running jobs on one device, the second since ``LATER``."""
    first = make_job(**SMALL)
    start(first, make=pair(first))
    second = make_job(**{**SMALL, **changes})
    start(second, at=LATER, make=pair(first, second, turn_seconds=turn_seconds))
    return first, second


def test_the_second_job_of_a_pair_starts_on_the_device_of_the_first():
    first, second = running_pair(turn_seconds=60.0)

    lease, holds = Lease.objects.get(job=second), Lease.objects.get(job=first)
    (member,) = members_of(first)
    assert (lease.kind, lease.slot, lease.is_peer, lease.turn_seconds) == ("guest", 1, True, 60.0)
    assert lease.device_id == holds.device_id
    assert (lease.beside_id, lease.virtual_cell) == (member.pk, "")
    attempt = Attempt.objects.get(job=second)
    assert (attempt.is_guest, attempt.is_peer, attempt.opportunistic) == (True, True, False)
    assert violations() == ()


def test_the_coordinator_learns_that_the_jobs_take_turns():
    first, second = running_pair(turn_seconds=60.0)
    (holder,), (beside,) = members_of(first), members_of(second)

    (order,) = device_orders([holder.pk])[holder.pk]
    (place,) = guest_places([beside])[beside.pk]

    assert (order.slowdown, order.turn_seconds, len(order.guests)) == (0.5, 60.0, 1)
    assert place.leave_seconds == 30.0
    assert order.from_json(order.to_json()) == order


@pytest.mark.parametrize(
    "prevent",
    [
        lambda: ClusterRules.objects.update(sharing=False),
        lambda: VirtualCluster.objects.unscoped().update(max_guests=0),
        lambda: Device.objects.update(guests="none"),
        lambda: Device.objects.update(sharing_modes=[]),
        lambda: Job.objects.unscoped().update(sharing_stopped_at=NOW),
    ],
)
def test_what_forbids_pairs_is_never_offered_to_the_policy(prevent):
    first, second = make_job(**SMALL), make_job(**SMALL)
    assert needs() == {first.pk: 2 << 30, second.pk: 2 << 30}

    prevent()

    assert needs() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"sharing": {"guests": "none"}},
        {"sharing": {}},
        {"worker": {"devices": 2, "memory": "2GiB"}},
        {"class": "opportunistic", "sharing": {"allowed": True, "memory": "1GiB"}},
    ],
)
def test_jobs_without_consent_or_with_several_devices_are_not_paired(changes):
    make_job(**{**SMALL, **changes})

    assert needs() == {}


def needs() -> dict[int, int]:
    snapshot = take_snapshot(number=9, now=LATER, config=CONFIG).snapshot
    return {job_id: need.floor for job_id, need in snapshot.peer_needs.items()}


def test_both_jobs_are_charged_half_of_the_time_in_which_they_share_the_device():
    first, second = running_pair()
    started = {job.pk: members_of(job)[0].started_at for job in (first, second)}
    until = started[second.pk] + timedelta(minutes=10)

    end(second, at=until)
    end(first, at=until)
    sum_usage(now=until + timedelta(hours=1))

    alone = (started[second.pk] - started[first.pk]).total_seconds()
    charged = {row.job: row.guaranteed for row in UsageJob.objects.unscoped()}
    assert charged == {
        first.pk: pytest.approx(alone + 300.0),
        second.pk: pytest.approx(300.0),
    }
    assert {job.pk: job.gpu_seconds for job in Job.objects.unscoped()} == {
        pk: pytest.approx(seconds) for pk, seconds in charged.items()
    }
    hours = hours_of_jobs([first.pk, second.pk], now=until)
    assert {pk: one.slot * 3600 for pk, one in hours.items()} == {
        pk: pytest.approx(seconds) for pk, seconds in charged.items()
    }
    assert Job.objects.unscoped().get(pk=second.pk).guest_seconds == 0.0


def use_of_people(job: Job, now: Any) -> dict[int, float]:
    found = use_by_person(make_viewer("root"), job.tenant_id, now=now)
    return {person: use.hours.slot * 3600 for person, use in found.items()}


def test_use_since_the_last_daily_sum_is_divided_between_holder_and_equal():
    first, second = running_pair()
    second.owner = make_user("carol")
    second.save()
    started = {job.pk: members_of(job)[0].started_at for job in (first, second)}
    summed = started[second.pk] + timedelta(minutes=4)
    later = started[second.pk] + timedelta(minutes=10)
    alone = (started[second.pk] - started[first.pk]).total_seconds()

    before = use_of_people(first, later)
    sum_usage(now=summed)
    after = use_of_people(first, later)

    expected = {
        first.owner_id: pytest.approx(alone + 300.0),
        second.owner_id: pytest.approx(300.0),
    }
    assert before == expected
    assert after == expected
    both = use_by_tenant(make_viewer("root"), now=later)[first.tenant_id]
    assert both.hours.slot * 3600 == pytest.approx(alone + 600.0)
    assert use_by_tenant(make_viewer("bob"), now=later) == {}


def test_the_second_job_gets_the_device_and_its_guarantee_when_the_first_ends():
    first, second = running_pair()

    end(first, at=LATER + timedelta(minutes=2))
    run_round(LATER + timedelta(minutes=3), make=pair(second))
    run_round(LATER + timedelta(minutes=4), make=pair(second))

    lease = Lease.objects.get(job=second, released_at=None)
    assert (lease.kind, lease.slot, lease.is_peer) == ("using", 0, False)
    assert lease.virtual_cell
    assert Member.objects.get(attempt__job=second).stop_asked_at is None


def test_the_second_job_leaves_when_the_owner_of_the_first_stops_sharing():
    first, second = running_pair()

    stop_sharing(job=first, viewer=make_viewer("alice"), now=LATER)

    assert Member.objects.get(attempt__job=second).stop_asked_at is not None


def test_the_paces_of_a_pair_are_known_after_two_minutes():
    first, second = running_pair()
    report(first, second)

    early = take_snapshot(number=9, now=LATER + timedelta(seconds=100), config=CONFIG).snapshot
    late = take_snapshot(number=9, now=LATER + timedelta(seconds=170), config=CONFIG).snapshot

    assert [peer.paces for peer in early.peers] == [None]
    (peer,) = late.peers
    assert peer.paces is not None
    assert peer.paces.holder == pytest.approx(0.8)
    assert peer.paces.guest == pytest.approx(0.6)
    assert PairPace.objects.count() == 1
    assert list(late.pair_paces) == [f"{first.tenant_id}:name:{first.name}"]


def report(first: Job, second: Job, suspension: Any = NEVER_SUSPENDED) -> None:
    """Let the node report the state of the coordinator of the device."""
    lease = Lease.objects.select_related("device", "attempt", "member").get(job=second)
    uid = Attempt.objects.get(job=first).uid
    beside = GuestReading(
        run_id=f"{lease.attempt.uid}.worker.0",
        duty=0.6,
        suspension=replace(suspension, tier=suspension.tier and "T0"),
    )
    company = CompanyReading(
        holder_run_id=f"{uid}.worker.0", loss=0.2, guests=(beside,), suspension=suspension
    )
    reading = DeviceReading(index=lease.device.index, company=company)
    keep_shared(node_id=lease.device.node_id, devices=[reading], now=LATER + timedelta(seconds=60))


def test_how_jobs_in_turns_were_suspended_is_kept_with_their_attempts():
    first, second = running_pair(turn_seconds=60.0)

    report(first, second, SuspensionReading(tier="T1", number=3, seconds=180.0))

    rows = Attempt.objects.values_list("job_id", "suspended_by", "suspensions")
    assert set(rows) == {(first.pk, "T1", 3), (second.pk, "T0", 3)}


def test_only_guests_are_equals_of_holders():
    first, second = running_pair()

    with pytest.raises(IntegrityError), transaction.atomic():
        Lease.objects.filter(job=first).update(is_peer=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        Lease.objects.filter(job=second).update(is_peer=False, turn_seconds=3.0)
