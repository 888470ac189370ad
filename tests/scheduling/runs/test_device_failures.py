"""Failures by device: members of the node's last 30 days against those of all nodes."""

from datetime import timedelta

import pytest

from scheduling.runs.models import Member
from scheduling.runs.queries.device_failures import failures_of_node
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


def test_failures_are_those_of_distinct_jobs_and_tenants_on_the_device() -> None:
    first, second = ended("alice", 1), ended("bob", 1)
    Member.objects.filter(pk=second.pk).update(node=first.node_id, devices=first.devices)
    fine = ended("alice", 0)
    Member.objects.filter(pk=fine.pk).update(node=first.node_id, devices=first.devices)

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
