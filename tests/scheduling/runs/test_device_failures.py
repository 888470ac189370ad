"""Failures by device: members of the node's last 30 days against those of all nodes."""

from datetime import timedelta
from uuid import uuid4

import pytest

from scheduling.clusters.models import Device
from scheduling.runs.models import Lease, Member
from scheduling.runs.queries.device_failures import failures_of_node
from scheduling.runs.services.exclusions import mark_suspect_devices
from tests.factories.cluster import NOW
from tests.factories.scheduling import end, make_two_tenants, start, submit

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clusters() -> None:
    make_two_tenants()


def ended(username: str, code: int) -> Member:
    """A member on one device that has ended now."""
    job = submit(username)
    start(job)
    end(job, code)
    return Member.objects.get(attempt__job=job)


def ended_on(device: Device, username: str, code: int) -> None:
    """A member that has ended now on a device."""
    member = ended(username, code)
    Lease.objects.filter(member=member).update(device=device)


def add_jobs_elsewhere(member: Member, count: int) -> None:
    """Copies of a member, each of a job of its own."""
    attempt = member.attempt
    job = attempt.job
    for _ in range(count):
        job.pk, attempt.pk, member.pk = None, None, None
        attempt.uid = uuid4().hex
        job.save(force_insert=True)
        attempt.job = job
        attempt.save(force_insert=True)
        member.attempt = attempt
        member.save(force_insert=True)


def test_failures_are_those_of_distinct_jobs_and_tenants_on_the_device() -> None:
    first = ended("alice", 1)
    used = Device.objects.get(leases__member=first)
    ended_on(used, "bob", 1)
    ended_on(used, "alice", 0)

    found = failures_of_node(first.node_id, now=NOW)

    (device,) = found.devices.values()
    assert list(found.devices) == first.devices
    assert (device.jobs, device.failed, device.tenants) == (3, 2, 2)
    assert (found.fleet_jobs, found.fleet_failed) == (3, 2)


def test_old_failures_memory_limits_and_stopped_members_do_not_count() -> None:
    members = [ended("alice", 1) for _ in range(3)]
    node = members[0].node_id
    Member.objects.filter(pk=members[0].pk).update(failure_class="resource-limit")
    Member.objects.filter(pk=members[1].pk).update(failure_class="")
    Member.objects.filter(pk=members[2].pk).update(exited_at=NOW - timedelta(days=31))

    assert failures_of_node(node, now=NOW).devices == {}


def test_a_device_that_replaced_another_one_does_not_inherit_its_failures() -> None:
    member = ended("alice", 1)
    old = Device.objects.get(leases__member=member)
    Device.objects.filter(pk=old.pk).update(retired_at=NOW, address="retired")
    Device.objects.create(
        node=old.node, index=old.index, address=old.address, chain=old.chain,
        device_type=old.device_type, uuid="GPU-new",
    )  # fmt: skip

    assert failures_of_node(member.node_id, now=NOW).devices == {}


def test_a_device_is_marked_after_failures_of_several_tenants_until_they_are_old() -> None:
    device = Device.objects.order_by("-pk")[0]
    add_jobs_elsewhere(ended("alice", 0), 120)
    for _ in range(3):
        ended_on(device, "alice", 1)
    assert mark_suspect_devices(now=NOW) == 0

    ended_on(device, "bob", 1)
    assert mark_suspect_devices(now=NOW) == 1
    assert mark_suspect_devices(now=NOW + timedelta(days=1)) == 1
    marked = Device.objects.get(suspect_since__isnull=False)
    assert (marked.pk, marked.suspect_since) == (device.pk, NOW)

    assert mark_suspect_devices(now=NOW + timedelta(days=31)) == 0
    assert not Device.objects.exclude(suspect_since=None).exists()
