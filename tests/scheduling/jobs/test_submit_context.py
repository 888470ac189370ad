"""What jobs are checked against is what the rows say now."""

import random

import pytest

from scheduling.clusters.models import Device, PriorityClass, VcLimit
from scheduling.jobs.queries.submit_context import (
    LargestNodes,
    limits_of,
    priority_values,
    promises,
)
from tenants.models import Membership
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_priority_classes,
    make_virtual_cluster,
    pin_cell,
)

pytestmark = pytest.mark.django_db


def test_of_each_type_the_node_with_most_devices_in_use_counts():
    first, second, _ = make_cluster(3)
    of_first = first.devices.order_by("index")
    Device.objects.filter(pk__in=of_first.values("pk")[:3]).update(device_type="b")
    Device.objects.filter(node=second).update(retired_at=NOW)
    per_node = second.devices.count()

    assert LargestNodes() == {"a": per_node, "b": 3}

    Device.objects.exclude(node=first).update(retired_at=NOW)

    assert LargestNodes() == {"a": per_node - 3, "b": 3}


def test_a_node_that_is_large_enough_is_found_without_counting_all_devices():
    make_cluster(3)
    devices = list(Device.objects.order_by("id"))
    rng = random.Random(11)
    for _ in range(20):
        for device in devices:
            device.device_type = rng.choice("ab")
            device.retired_at = rng.choice([None, None, NOW])
        Device.objects.bulk_update(devices, ["device_type", "retired_at"])
        counted = dict(LargestNodes())
        for asked in range(10):
            several = LargestNodes()
            for device_type in ("", "a", "b", "c"):
                largest = max(counted.values()) if not device_type else counted.get(device_type, 0)

                assert LargestNodes().has(asked, device_type) is (0 < largest >= asked)
                assert several.has(asked, device_type) is (0 < largest >= asked)


def test_the_default_priority_is_that_of_the_class_which_is_marked():
    assert priority_values() == ({}, "")

    make_priority_classes()
    values, default = priority_values()

    rows = PriorityClass.objects.all()
    assert list(values.items()) == [(row.name, row.value) for row in rows]
    assert default == next(row.name for row in rows if row.is_default)


def test_a_promise_is_quota_or_a_pinned_cell():
    make_cluster()
    promised = make_virtual_cluster("vision-a", cells=2)
    node = Device.objects.order_by("id").values_list("node__name", flat=True).first()
    pinned = make_virtual_cluster("vision-b", promised.tenant, cells=0)
    pin_cell("vision-b", "bench", str(node))

    assert promises() == (frozenset({promised.pk}), {pinned.pk: ("bench",)})


def test_limits_are_those_of_one_person():
    make_cluster()
    cluster = make_virtual_cluster("vision-a", cells=1)
    membership = Membership.objects.unscoped().get(user__username="alice", tenant=cluster.tenant)

    assert limits_of(membership.user_id) == {}

    VcLimit.objects.create(membership=membership, virtual_cluster=cluster)

    assert limits_of(membership.user_id) == {cluster.tenant_id: frozenset({cluster.pk})}
    assert limits_of(membership.user_id + 1) == {}
