"""The tenant and the virtual cluster that come with the first node."""

import pytest

from scheduling.clusters.models import Node, VcQuota, VirtualCluster
from scheduling.clusters.services.first_node import create_defaults
from scheduling.clusters.services.inventory import apply_inventory
from tenants.models import AuditEntry, Membership, Tenant
from tenants.services import create_tenant
from tenants.viewers import Viewer
from tessera.inventory import Device, Inventory
from tests.factories.cluster import NOW
from tests.factories.tenants import make_user

pytestmark = pytest.mark.django_db
EIGHT = [Device(index=i, type="A100", path=[i // 4, i // 2]) for i in range(8)]


def probed_node(name: str, devices: list[Device] = EIGHT) -> Node:
    node = Node.objects.create(name=name, host=name, state_since=NOW, created_at=NOW)
    levels = ["node", "socket", "pcie", "device"]
    found = Inventory(devices=devices, levels=levels, cpus=64, memory_bytes=1 << 40)
    apply_inventory(node_id=node.pk, inventory=found, now=NOW)
    return node


def test_the_first_node_is_the_guarantee_of_a_virtual_cluster_that_the_admins_lead() -> None:
    for name in ("root", "other"):
        make_user(name, is_cluster_admin=True)
    make_user("alice")
    node = probed_node("gpu-01")

    assert create_defaults(node_id=node.pk, now=NOW)

    quota = VcQuota.objects.get()
    vc = VirtualCluster.objects.unscoped().get()
    assert (vc.name, vc.tenant.name) == ("default", "default")
    assert (quota.level, quota.count) == ("A100-node", 1)
    members = Membership.objects.unscoped().values_list("user__username", "role")
    assert set(members) == {("root", "lead"), ("other", "lead")}
    actions = set(AuditEntry.objects.unscoped().values_list("action", flat=True))
    assert {"tenant.create", "member.add"} <= actions


def test_it_comes_once_and_not_with_the_second_node() -> None:
    make_user("root", is_cluster_admin=True)
    first, second = probed_node("gpu-01"), probed_node("gpu-02")

    assert create_defaults(node_id=first.pk, now=NOW)
    assert not create_defaults(node_id=second.pk, now=NOW)
    assert VcQuota.objects.get().count == 1


def test_an_installation_with_tenants_or_without_admin_or_devices_stays_as_it_is() -> None:
    empty = probed_node("gpu-00", [])
    node = probed_node("gpu-01")

    assert not create_defaults(node_id=node.pk, now=NOW)
    make_user("root", is_cluster_admin=True)
    assert not create_defaults(node_id=empty.pk, now=NOW)
    create_tenant(viewer=Viewer.system("tests"), name="vision")
    assert not create_defaults(node_id=node.pk, now=NOW)
    assert list(Tenant.objects.unscoped().values_list("name", flat=True)) == ["vision"]
