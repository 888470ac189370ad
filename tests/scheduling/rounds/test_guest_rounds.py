"""Guests of devices on the database: start, orders, promotion, departure, and the off switch."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.models import ClusterRules, Device, Node, VirtualCluster
from scheduling.clusters.services.guest_limits import limit_guests
from scheduling.core.lifecycle import FailureClass, JobState
from scheduling.core.notices import NoticeEvent, event_of
from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.queries.why import why
from scheduling.maintenance.invariants import violations
from scheduling.rounds.services import rounds
from scheduling.rounds.services.guests import seats_now
from scheduling.rounds.snapshot.reading import RoundConfig, take_snapshot
from scheduling.runs.models import (
    Attempt,
    AttemptProgress,
    GuestDelay,
    Lease,
    Member,
    PairPace,
    SharedMinute,
)
from scheduling.runs.queries.node_members import DirectiveKind, directive_of
from scheduling.runs.queries.sharing import job_sharing
from scheduling.runs.services import attempts
from scheduling.runs.services.guests import set_sharing, stop_sharing
from scheduling.runs.services.progress import followed_attempts
from scheduling.usage.models import UsageJob
from scheduling.usage.queries.device_hours import hours_of_jobs
from scheduling.usage.services.usage import sum_usage
from tenants.errors import ForbiddenError, InvalidError, NotFoundError
from tenants.models import AuditEntry
from tenants.roles import Role
from tests.factories.attempts import members_of
from tests.factories.cluster import (
    NOW,
    job_document,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import end, run_round, start
from tests.factories.tenants import make_tenant, make_user, make_viewer
from workers.conf import WorkerSettings
from workers.services.device_orders import device_orders
from workers.services.dispatch import claim_directives
from workers.services.preparations import Preparations
from workers.services.shared_devices import keep_shared
from workers.transports.base import CompanyReading, DeviceReading, GuestReading

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=2)
SETTINGS = WorkerSettings(data_dir=Path("/nonexistent"), installation="here")
GUEST: dict[str, Any] = {"class": "opportunistic", "sharing": {"allowed": True, "memory": "1GiB"}}


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster(1)
    make_priority_classes()
    make_user("root", is_cluster_admin=True)
    make_virtual_cluster(tenant=make_tenant("vision", alice=Role.MEMBER, ada=Role.LEAD))
    Device.objects.update(sharing_modes=["slot"])
    switch(enabled=True)


def switch(*, enabled: bool) -> ClusterRules:
    return set_sharing(viewer=make_viewer("root"), enabled=enabled, now=NOW)


def make_holder(**changes: Any) -> Job:
    """A running job on all devices that allows guests of its tenant and reports steps."""
    changes.setdefault("sharing", {"guests": "same-tenant", "slowdown_percent": 7})
    job = make_job(worker={"devices": 8, "memory": "32GiB"}, **changes)
    start(job)
    AttemptProgress.objects.create(attempt=Attempt.objects.get(job=job), steps=100)
    return job


def make_guest() -> Job:
    """A running guest of the holder."""
    job = make_job(**GUEST)
    start(job, at=LATER)
    return job


def state_of(job: Job) -> str:
    return str(Job.objects.unscoped().get(pk=job.pk).state)


def lease_of(job: Job) -> Lease:
    return Lease.objects.get(job=job, released_at=None)


def test_a_job_becomes_the_guest_of_a_holder_that_allows_it():
    holder = make_holder()

    guest = make_guest()

    lease = lease_of(guest)
    (member,) = members_of(holder)
    assert (lease.kind, lease.slot, lease.mode) == ("guest", 1, "slot")
    assert lease.beside_id == member.pk
    assert (lease.floor, lease.most) == (1 << 30, 1 << 30)
    assert lease.virtual_cell == ""
    assert Attempt.objects.get(job=guest).is_guest
    assert violations() == ()


@pytest.mark.parametrize(
    "prevent",
    [
        lambda: switch(enabled=False),
        lambda: Device.objects.update(sharing_modes=[]),
        lambda: Device.objects.update(sharing_modes=["exclusive"]),
        lambda: AttemptProgress.objects.update(steps=49),
        lambda: VirtualCluster.objects.unscoped().update(max_guests=0),
        lambda: Device.objects.update(memory_bytes=5 << 30),
        lambda: Job.objects.unscoped().update(sharing_stopped_at=NOW),
        lambda: Device.objects.update(guests="none"),
        lambda: Node.objects.update(guests="none"),
        lambda: Node.objects.update(state="cordoned", held="cordoned"),
        lambda: Device.objects.update(healthy=False, disabled_reason="dirty"),
    ],
)
def test_what_prevents_a_guest(prevent):
    make_holder()
    prevent()
    job = make_job(**GUEST)

    run_round(LATER)

    assert state_of(job) == JobState.QUEUED
    assert not Lease.objects.filter(kind="guest").exists()


def test_a_holder_without_consent_has_guests_only_if_its_virtual_cluster_allows_them():
    make_holder(sharing={"slowdown_percent": 5})
    job = make_job(**GUEST)

    run_round(LATER)
    assert state_of(job) == JobState.QUEUED
    VirtualCluster.objects.unscoped().update(guests_default="same-tenant")
    run_round(LATER)

    assert state_of(job) == JobState.ADMITTED


def test_up_to_three_guests_share_a_device():
    holder = make_holder()
    VirtualCluster.objects.unscoped().update(max_guests=3)
    Device.objects.exclude(index=0).update(sharing_modes=[])
    Device.objects.update(memory_bytes=16 << 30)
    jobs = [make_job(**GUEST) for _ in range(4)]

    run_round(LATER)

    leases = Lease.objects.filter(kind="guest").order_by("slot")
    assert [lease.slot for lease in leases] == [1, 2, 3]
    assert [state_of(job) for job in jobs] == [*[JobState.ADMITTED] * 3, JobState.QUEUED]
    assert violations() == ()
    ((order,),) = device_orders([members_of(holder)[0].pk]).values()
    assert [guest.slot for guest in order.guests] == [1, 2, 3]


def test_the_coordinator_of_the_holder_gets_its_guests_with_the_slowdown():
    holder = make_holder()
    guest = make_guest()
    (member,) = members_of(holder)

    assert directive_of(member) is DirectiveKind.SHARE
    (order,) = device_orders([member.pk])[member.pk]

    (run,) = order.guests
    assert run.run_id == f"{Attempt.objects.get(job=guest).uid}.worker.0"
    assert (order.slowdown, order.drain, run.slot) == (0.07, False, 1)
    attempts.mark_shared(member_id=member.pk, version=member.share_version)
    assert directive_of(members_of(holder)[0]) is DirectiveKind.NOTHING


def test_a_guest_starts_only_after_the_coordinator_has_got_it():
    holder = make_holder()
    guest = make_job(**GUEST)
    run_round(LATER)
    (host,), (member,) = members_of(holder), members_of(guest)
    attempts.mark_preparing(member_ids=[member.pk], now=LATER)
    attempts.mark_prepared(member_id=member.pk, now=LATER)

    def kinds() -> set[str]:
        found = claim_directives(node_ids=[host.node_id], busy=[], settings=SETTINGS, now=LATER)
        return {one.kind for one in found}

    assert kinds() == {DirectiveKind.SHARE}
    attempts.mark_shared(member_id=host.pk, version=host.share_version)
    assert kinds() == {DirectiveKind.GO}


def test_the_run_of_a_guest_names_the_run_beside_which_it_may_start():
    holder = make_holder()
    guest = make_guest()
    (member,) = Member.objects.filter(attempt__job=guest).select_related(
        "node", "attempt__job__virtual_cluster__tenant", "attempt__job__owner"
    )

    run = Preparations([member], SETTINGS).of(member).run

    (place,) = run.beside
    assert place.holder_run_id == f"{Attempt.objects.get(job=holder).uid}.worker.0"
    assert (place.device, place.slot, place.mode) == (member.devices[0], 1, "slot")
    assert place.sees_phase
    assert run.memory_bytes == 1 << 30


def test_a_guest_leaves_after_at_most_5_seconds_of_notice_and_is_queued_again():
    holder = make_holder()
    guest = make_guest()

    left = stop_sharing(job=holder, viewer=make_viewer("alice"), now=LATER)

    assert (left, state_of(guest)) == (1, JobState.PREEMPTING)
    (node_id,) = {member.node_id for member in members_of(guest)}
    found = claim_directives(node_ids=[node_id], busy=[], settings=SETTINGS, now=LATER)
    stops = [one for one in found if one.kind is DirectiveKind.STOP]
    assert [one.grace_seconds for one in stops] == [5.0]
    (order,) = [one.devices[0] for one in found if one.kind is DirectiveKind.SHARE]
    assert order.drain
    end(guest, at=LATER)
    run_round(LATER)
    assert state_of(guest) in (JobState.QUEUED, JobState.SUCCEEDED)
    assert not Lease.objects.filter(kind="guest", released_at=None).exists()


def test_only_those_who_may_act_for_the_owner_stop_the_sharing_of_a_job():
    holder = make_holder()
    make_tenant("language", bob=Role.MEMBER)

    with pytest.raises(ForbiddenError):
        stop_sharing(job=holder, viewer=make_viewer("bob"), now=NOW)


def test_the_off_switch_orders_all_guests_to_leave():
    make_holder()
    guest = make_guest()

    switch(enabled=False)

    assert state_of(guest) == JobState.PREEMPTING
    assert Member.objects.get(attempt__job=guest).stop_asked_at is not None


def test_only_a_cluster_admin_turns_device_sharing_on_or_off():
    with pytest.raises(ForbiddenError):
        set_sharing(viewer=make_viewer("ada"), enabled=True, now=NOW)


def test_a_guest_gets_its_device_without_a_restart_when_the_holder_has_left():
    holder = make_holder()
    guest = make_guest()
    attempt = Attempt.objects.get(job=guest)
    end(holder, at=LATER)

    run_round(LATER + timedelta(seconds=10))

    lease = lease_of(guest)
    assert (lease.kind, lease.slot, lease.beside_id) == ("using", 0, None)
    assert Attempt.objects.get(job=guest, ended_at=None) == attempt
    assert state_of(guest) == JobState.RUNNING
    (event,) = JobEvent.objects.filter(job=guest, kind="promoted")
    assert event_of(event.kind, event.state) is NoticeEvent.JOB_PROMOTED
    assert directive_of(members_of(guest)[0]) is DirectiveKind.SHARE
    assert violations() == ()


def test_a_guest_is_charged_only_from_its_promotion_on():
    holder = make_holder()
    guest = make_guest()
    end(holder, at=LATER)
    promoted = LATER + timedelta(hours=1)
    run_round(promoted)

    now = promoted + timedelta(hours=2)
    hours = hours_of_jobs([guest.pk], now=now)[guest.pk]
    end(guest, at=now)

    assert hours.slot == pytest.approx(2.0)
    row = Job.objects.unscoped().get(pk=guest.pk)
    assert row.gpu_seconds == pytest.approx(7200)
    assert row.guest_seconds == pytest.approx(3600)


def test_the_daily_sums_have_the_hours_of_a_guest_apart_from_held_hours():
    holder = make_holder()
    guest = make_guest()
    end(holder, at=LATER)
    promoted = LATER + timedelta(hours=1)
    run_round(promoted)
    end(guest, at=promoted + timedelta(hours=2))

    sum_usage(now=promoted + timedelta(hours=3))

    row = UsageJob.objects.unscoped().get(job=guest.pk)
    assert [row.guest, row.borrowed] == pytest.approx([3600, 7200])
    assert row.guaranteed == 0


def test_a_guest_that_is_never_promoted_is_charged_nothing():
    make_holder()
    guest = make_guest()

    end(guest, at=LATER + timedelta(hours=1))

    row = Job.objects.unscoped().get(pk=guest.pk)
    assert row.gpu_seconds == 0
    assert row.guest_seconds == pytest.approx(3600)
    assert guest.pk not in hours_of_jobs([guest.pk], now=LATER)


def test_a_guest_that_its_node_refuses_is_retried_as_often_as_needed():
    make_holder()
    guest = make_job(**GUEST, retries={"platform": 0})
    run_round(LATER)
    (member,) = members_of(guest)
    attempts.mark_preparing(member_ids=[member.pk], now=LATER)

    attempts.mark_prepare_failed(
        member_id=member.pk,
        failure=FailureClass.PLATFORM,
        code="holder-gone",
        message="the holder of the device has left",
        now=LATER,
    )

    assert state_of(guest) == JobState.QUEUED


def test_a_new_holder_starts_only_after_the_guests_of_the_former_have_left():
    holder = make_holder()
    guest = make_guest()
    later = LATER + timedelta(seconds=10)
    waiting = make_job(worker={"devices": 8})
    end(holder, at=LATER)
    run_round(later)
    assert (state_of(guest), state_of(waiting)) == (JobState.PREEMPTING, JobState.ADMITTED)
    (member,) = members_of(waiting)
    attempts.mark_preparing(member_ids=[member.pk], now=later)
    attempts.mark_prepared(member_id=member.pk, now=later)

    def kinds() -> set[str]:
        found = claim_directives(node_ids=[member.node_id], busy=[], settings=SETTINGS, now=later)
        return {one.kind for one in found if one.rank.member_id == member.pk}

    assert kinds() == set()
    end(guest, at=later)
    assert kinds() == {DirectiveKind.GO}


@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ({"slot": 0}, "lease_guest_slot_is_in_range"),
        ({"slot": 4}, "lease_guest_slot_is_in_range"),
        ({"virtual_cell": "x"}, "lease_guest_is_opportunistic"),
        ({"beside": None}, "lease_guest_has_a_holder"),
        ({"floor": None}, "lease_guest_has_a_holder"),
    ],
)
def test_the_database_refuses_a_guest_against_the_rules(columns, constraint):
    make_holder()
    lease = lease_of(make_guest())

    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Lease.objects.filter(pk=lease.pk).update(**columns)


def test_a_guest_whose_holder_has_left_for_longer_than_a_round_is_a_violation():
    holder = make_holder()
    make_guest()
    Lease.objects.filter(job=holder).update(released_at=NOW)

    rules = {violation.rule for violation in violations()}

    assert "guest-without-holder" in rules


def test_a_cluster_that_does_not_share_reads_as_many_queries_as_before():
    holder = make_holder()
    switch(enabled=False)
    make_job(**GUEST)
    run_round(LATER)
    with CaptureQueriesContext(connection) as off:
        run_round(LATER)
    ClusterRules.objects.all().delete()
    with CaptureQueriesContext(connection) as without:
        run_round(LATER)

    assert len(off) == len(without)
    assert state_of(holder) == JobState.RUNNING


# -- limits of nodes and devices, and changes between snapshot and commit ------------------------


def test_a_device_whose_guests_an_admin_forbids_loses_its_guest_at_once():
    make_holder()
    guest = make_guest()
    device = lease_of(guest).device

    with pytest.raises(ForbiddenError):
        limit_guests(viewer=make_viewer("ada"), node_id=device.node_id, guests="none", now=LATER)
    assert state_of(guest) == JobState.RUNNING
    limit_guests(
        viewer=make_viewer("root"), node_id=device.node_id, device=device.index, guests="none",
        now=LATER,
    )  # fmt: skip

    assert state_of(guest) == JobState.PREEMPTING
    (entry,) = AuditEntry.objects.unscoped().filter(action="device.guests")
    assert entry.before == {"device": device.index, "guests": "any"}
    assert entry.after == {"device": device.index, "guests": "none"}


def test_a_node_for_guests_of_the_same_tenant_keeps_these_and_no_others():
    make_holder()
    guest = make_guest()
    node = lease_of(guest).device.node_id

    limit_guests(viewer=make_viewer("root"), node_id=node, guests="same-tenant", now=LATER)
    run_round(LATER)

    assert state_of(guest) == JobState.RUNNING
    assert violations() == ()


@pytest.mark.parametrize(("guests", "device"), [("some", None), ("none", 99)])
def test_a_limit_that_is_not_valid_changes_nothing(guests, device):
    node = Node.objects.get()

    with pytest.raises((InvalidError, NotFoundError)):
        limit_guests(
            viewer=make_viewer("root"), node_id=node.pk, guests=guests, device=device, now=NOW
        )

    assert set(Device.objects.values_list("guests", flat=True)) == {"any"}


@pytest.mark.parametrize(
    "change",
    [
        lambda: Device.objects.update(guests="none"),
        lambda: Node.objects.update(guests="none"),
        lambda: Node.objects.update(state="cordoned"),
        lambda: Device.objects.update(healthy=False, disabled_reason="dirty"),
        lambda: Device.objects.update(sharing_modes=["cooperative"]),
        lambda: VirtualCluster.objects.unscoped().update(max_guests=0),
        lambda: Job.objects.unscoped().filter(job_class="guaranteed").update(
            spec={"sharing": {"guests": "none"}}
        ),
        lambda: Job.objects.unscoped().filter(state="queued").update(guest_floor=None),
        lambda: Job.objects.unscoped().filter(state="queued").update(job_class="guaranteed"),
        lambda: ClusterRules.objects.update(sharing=False),
    ],
)  # fmt: skip
def test_a_change_between_snapshot_and_commit_prevents_the_start(change, monkeypatch):
    make_holder()
    job = make_job(**GUEST)
    seats = seats_now
    asked = []

    def after_the_change(guests, device_ids, *more):
        asked.extend(guests)
        change()
        return seats(guests, device_ids)

    monkeypatch.setattr(rounds, "seats_now", after_the_change)
    run_round(LATER)

    assert [guest.job_id for guest in asked] == [job.pk]
    assert state_of(job) == JobState.QUEUED
    assert not Lease.objects.filter(kind="guest").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda: Node.objects.update(isolation_level="none"),
        lambda: Device.objects.update(sharing_modes=["mps"]),
    ],
)
def test_jobs_of_two_tenants_part_where_the_node_separates_them_no_more(change):
    _, guest = two_tenants()
    assert state_of(guest) == JobState.RUNNING

    change()
    run_round(LATER)

    assert state_of(guest) == JobState.PREEMPTING


def two_tenants() -> tuple[Job, Job]:
    """A holder of one tenant, and its guest of another tenant."""
    VirtualCluster.objects.unscoped().update(guests_default="any")
    make_virtual_cluster("language-a", make_tenant("language", bob=Role.MEMBER), cells=0)
    Node.objects.update(isolation_level="user")
    holder = make_holder(sharing={"guests": "any"})
    guest = make_job("bob", job_document(virtual_cluster="language-a", **GUEST))
    start(guest, at=LATER)
    return holder, guest


def test_a_node_cannot_report_more_free_memory_than_a_device_has():
    holder = make_holder()
    VirtualCluster.objects.unscoped().update(max_guests=2)
    Device.objects.exclude(index=0).update(sharing_modes=[])
    guest = make_guest()
    size = lease_of(guest).device.memory_bytes
    read(guest, company(holder, memory_free=1 << 60))
    needs: dict[str, Any] = {"allowed": True, "memory": f"{(size >> 20) + 1}MiB"}
    job = make_job(**{**GUEST, "sharing": needs})

    run_round(LATER)

    assert state_of(job) == JobState.QUEUED


def test_delays_are_booked_once_a_member_and_at_most_the_time_that_has_passed():
    holder = make_holder()
    make_guest()
    guest = make_guest()
    device = lease_of(guest).device
    company_now = company(holder, delay_seconds=2.0)
    readings = [DeviceReading(index=index, company=company_now) for index in (0, 1)]

    for seconds in (0, 15):
        keep_shared(
            node_id=device.node_id, devices=readings, now=LATER + timedelta(seconds=seconds)
        )
    assert [row.seconds for row in GuestDelay.objects.all()] == [2.0]
    forged = DeviceReading(index=0, company=replace(company_now, delay_seconds=1e10))
    keep_shared(node_id=device.node_id, devices=[forged], now=LATER + timedelta(seconds=30))

    assert [row.seconds for row in GuestDelay.objects.all()] == [2.0 + 15.0]
    sum_usage(now=LATER + timedelta(hours=1))
    assert UsageJob.objects.unscoped().get(job=holder.pk).delay == 17.0


def test_the_history_of_a_device_has_one_row_a_minute_and_at_most_a_day():
    holder = make_holder()
    guest = make_guest()
    for seconds in (0, 15, 60):
        found = company(holder, loss=seconds / 1000)
        reading = DeviceReading(index=lease_of(guest).device.index, company=found)
        at = LATER + timedelta(seconds=seconds)
        keep_shared(node_id=lease_of(guest).device.node_id, devices=[reading], now=at)

    assert [row.loss for row in SharedMinute.objects.order_by("minute")] == [0.015, 0.06]
    tomorrow = LATER + timedelta(days=1)
    keep_shared(node_id=lease_of(guest).device.node_id, devices=[reading], now=tomorrow)
    assert [row.minute for row in SharedMinute.objects.order_by("minute")] == [
        (LATER + timedelta(seconds=60)).replace(second=0), tomorrow.replace(second=0),
    ]  # fmt: skip


def test_the_owner_is_told_once_a_day_of_ten_minutes_above_the_limit():
    holder = make_holder()
    lease = lease_of(make_guest())

    def report(minute: int, loss: float) -> None:
        reading = DeviceReading(index=lease.device.index, company=company(holder, loss=loss))
        at = LATER + timedelta(minutes=minute)
        keep_shared(node_id=lease.device.node_id, devices=[reading], now=at)

    for minute, loss in enumerate([*[0.09] * 5, 0.06, *[0.08] * 9]):
        report(minute, loss)
    events = JobEvent.objects.filter(job=holder, kind="slowed")
    assert not events.exists()
    for minute in range(15, 20):
        report(minute, 0.08)

    assert [event.text for event in events] == [
        "Guests slowed the job down by more than 7 % for 10 minutes; it has lost up to 8.0 %. "
        "To prevent this, stop sharing on its page."
    ]


def company(holder: Job, **changes: Any) -> CompanyReading:
    return CompanyReading(
        holder_run_id=f"{Attempt.objects.get(job=holder).uid}.worker.0",
        **{"account": 0.5, "loss": 0.03, "memory_free": 3 << 30, "open": 0.4, **changes},
    )


def read(guest: Job, found: CompanyReading) -> int:
    """Let the node of a guest report the state of the coordinator of its device."""
    device = lease_of(guest).device
    reading = DeviceReading(index=device.index, company=found)
    return keep_shared(node_id=device.node_id, devices=[reading], now=LATER)


def test_the_figures_of_a_device_are_of_its_holder_and_hide_jobs_of_other_tenants():
    holder, guest = two_tenants()
    run_id = f"{Attempt.objects.get(job=guest).uid}.worker.0"
    guests = (GuestReading(run_id=run_id, duty=0.3, memory=123), GuestReading(run_id="x.y.0"))

    assert read(guest, company(holder, guests=guests)) == 1
    assert read(guest, replace(company(holder), holder_run_id="f" * 32 + ".worker.0")) == 0

    (device,) = job_sharing(make_viewer("alice"), holder.pk).devices
    assert (device.loss, device.open, device.memory_limit) == (0.03, 0.4, "enforced")
    (other,) = device.others
    assert (other.job_id, other.name, other.slot) == (None, "", 1)
    assert (other.memory, other.duty) == (123, 0.3)
    seen = job_sharing(make_viewer("bob"), guest.pk)
    assert (seen.role, seen.devices[0].others[0].job_id) == ("guest", None)
    with pytest.raises(NotFoundError):
        job_sharing(make_viewer("bob"), holder.pk)


def test_measured_paces_of_a_pair_reach_the_next_round():
    holder = make_holder(max_duration="2h")
    guest = make_guest()
    run_id = f"{Attempt.objects.get(job=guest).uid}.worker.0"
    found = company(holder, loss=0.1, guests=(GuestReading(run_id=run_id, duty=0.9),))

    read(guest, found)
    read(guest, found)  # within a minute: not counted again

    (pair,) = PairPace.objects.all()
    assert (pair.holder_pace, pair.guest_pace, pair.observations) == (0.9, 0.9, 1.0)
    config = RoundConfig(round_seconds=10.0, images_required=False, using="default")
    snapshot = take_snapshot(number=99, now=LATER, config=config).snapshot
    host = next(host for host in snapshot.hosts if host.slots)
    (application,) = host.paces
    assert application == pair.guest
    assert host.pace < host.pace_of(application) < 0.9


def test_a_guest_that_comes_back_has_no_figures_of_its_former_attempt():
    holder = make_holder()
    guest = make_guest()
    run_id = f"{Attempt.objects.get(job=guest).uid}.worker.0"
    read(guest, company(holder, guests=(GuestReading(run_id=run_id, duty=0.3),)))

    switch(enabled=False)
    end(guest, code=1, at=LATER)
    switch(enabled=True)
    run_round(LATER + timedelta(minutes=1))

    (device,) = job_sharing(make_viewer("alice"), holder.pk).devices
    assert (device.loss, device.others[0].job_id, device.others[0].duty) == (0.03, guest.pk, None)


def test_a_device_whose_holder_has_an_empty_account_takes_no_further_guest():
    holder = make_holder()
    VirtualCluster.objects.unscoped().update(max_guests=2)
    Device.objects.exclude(index=0).update(sharing_modes=[])
    guest = make_guest()
    read(guest, company(holder, account=-0.1))
    second = make_job(**GUEST)

    run_round(LATER)
    assert state_of(second) == JobState.QUEUED
    read(guest, company(holder))
    run_round(LATER)

    assert state_of(second) == JobState.ADMITTED


def test_why_names_the_device_of_a_guest_and_the_time_in_which_it_may_work():
    holder = make_holder()
    guest = make_guest()

    before = why(make_viewer("alice"), guest.pk, now=LATER, round_seconds=10).text
    read(guest, company(holder, closings=12))
    after = why(make_viewer("alice"), guest.pk, now=LATER, round_seconds=10).text

    assert "guest on device" in before
    assert "open for 40% of the time, and has closed 12 times" in after


def test_the_memory_peak_of_jobs_is_followed_only_where_devices_are_shared():
    holder = make_holder()

    assert [one.attempt_id for one in followed_attempts()] == [Attempt.objects.get(job=holder).pk]
    guest = make_guest()
    assert followed_attempts() == []
    end(guest, at=LATER)
    switch(enabled=False)
    assert followed_attempts() == []
