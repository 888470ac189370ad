"""What a node says it has becomes devices and cells, and nothing held or promised vanishes."""

from dataclasses import replace

import pytest

from scheduling.clusters.models import Device, Node, Topology, VcQuota
from scheduling.clusters.services.inventory import MISSING, apply_inventory
from scheduling.clusters.services.node_contact import record_probe
from scheduling.clusters.services.nodes import set_device_health
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease
from scheduling.topology.current import current_topology
from tenants.models import AuditEntry
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import ADMIN, NOW, make_two_tenants, start, submit

pytestmark = pytest.mark.django_db

EIGHT = [Found(index=i, type="a", path=[i // 4, i // 2], declared=True) for i in range(8)]
LEVELS = ["node", "socket", "pcie", "device"]


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def inventory(devices=EIGHT, **changes):
    return Inventory(
        **{
            "devices": devices,
            "levels": LEVELS,
            "cpus": 32,
            "memory_bytes": 64 << 30,
            **changes,
        }
    )


def new_node(name="node-4"):
    return Node.objects.create(name=name, host=name, state_since=NOW, created_at=NOW)


def apply(node, found=None):
    return apply_inventory(node_id=node.pk, inventory=found or inventory(), now=NOW)


def node_one():
    return Node.objects.get(name="node-1")


def test_a_new_node_gets_a_cell_in_the_chain_of_its_shape_and_its_devices():
    node = new_node()

    applied = apply(node)

    assert (applied.version, applied.is_new_version, applied.added) == (2, True, tuple(range(8)))
    assert "node-4" in current_topology().cells.nodes
    assert list(current_topology().chains) == ["a-node"]
    device = Device.objects.get(node=node, index=5)
    assert (device.address, device.chain, device.device_type) == ("node-4/1/2/5", "a-node", "a")
    assert (device.cpus, device.memory_bytes, device.is_gpu) == (4.0, 8 << 30, False)
    assert violations() == ()


def test_the_same_inventory_twice_changes_nothing():
    node = new_node()
    apply(node)
    before = AuditEntry.objects.unscoped().count()

    applied = apply(node)

    assert (applied.version, applied.is_new_version, applied.added) == (2, False, ())
    assert AuditEntry.objects.unscoped().count() == before
    assert Topology.objects.count() == 2


def test_a_gpu_with_its_own_memory_keeps_the_share_of_the_host():
    node = new_node()
    gpus = [replace(found, declared=False, uuid="GPU-1", memory_bytes=80 << 30) for found in EIGHT]

    apply(node, inventory(gpus))

    device = Device.objects.filter(node=node)[0]
    assert (device.is_gpu, device.uuid, device.memory_bytes) == (True, "GPU-1", 8 << 30)


def test_what_is_declared_for_a_device_is_its_share():
    node = new_node()

    apply(node, inventory([replace(found, memory_bytes=1 << 30) for found in EIGHT]))

    assert Device.objects.filter(node=node, memory_bytes=1 << 30).count() == 8


def test_another_device_type_gets_a_chain_of_its_own():
    apply(new_node(), inventory([replace(found, type="b") for found in EIGHT]))

    assert list(current_topology().chains) == ["a-node", "b-node"]
    assert current_topology().chains["b-node"].device_type == "b"


def test_a_node_that_has_changed_is_reshaped_while_nobody_needs_the_old_shape():
    VcQuota.objects.all().delete()

    applied = apply(node_one(), inventory(EIGHT[:4]))

    assert applied.is_new_version
    assert applied.retired == (4, 5, 6, 7)
    assert current_topology().chains["a-2x2-node"].devices == 4
    assert Device.objects.filter(node=node_one(), retired_at=None).count() == 4
    assert violations() == ()


def test_a_device_that_comes_back_after_a_reshape_gets_a_row_of_its_own():
    VcQuota.objects.all().delete()
    apply(node_one(), inventory(EIGHT[:4]))

    applied = apply(node_one())

    assert applied.added == (4, 5, 6, 7)
    assert Device.objects.filter(node=node_one()).count() == 12
    assert violations() == ()


def test_while_jobs_hold_devices_the_missing_ones_are_unhealthy_and_nothing_vanishes():
    job = submit(devices=8)
    start(job)
    home = job.attempts.get().members.get().node

    applied = apply(home, inventory(EIGHT[:6]))

    assert not applied.is_new_version
    assert applied.missing == (6, 7)
    assert "while jobs hold devices" in applied.warnings[-1]
    bad = Device.objects.filter(node=home, healthy=False)
    assert {(d.index, d.health_reason) for d in bad} == {(6, MISSING), (7, MISSING)}
    assert Lease.objects.filter(released_at=None).count() == 8


def test_while_promises_need_the_shape_it_stays(clusters):
    VcQuota.objects.filter(virtual_cluster=clusters[0]).update(count=2)

    applied = apply(node_one(), inventory(EIGHT[:4]))

    assert not applied.is_new_version
    assert "a-node needs 3, has 2" in applied.warnings[0]
    assert Device.objects.filter(node=node_one(), healthy=False).count() == 4


def test_a_missing_device_heals_by_being_there_and_another_fault_does_not():
    set_device_health(
        viewer=ADMIN, node_id=node_one().pk, index=0, healthy=False, reason="ECC", now=NOW
    )
    start(submit(devices=8), submit("bob", devices=8))
    apply(node_one(), inventory(EIGHT[:6]))

    apply(node_one())

    bad = Device.objects.filter(node=node_one(), healthy=False)
    assert [(d.index, d.health_reason) for d in bad] == [(0, "ECC")]


def test_an_imported_node_inside_a_larger_cell_keeps_its_place():
    spec = Topology.objects.get().spec
    spec["cell_types"]["rack"] = {"child": "a-node", "count": 3, "node_level": False}
    spec["physical"] = [{"type": "rack", "address": "r1", "children": spec["physical"]}]
    for node in spec["physical"][0]["children"]:
        del node["type"]
    Topology.objects.create(version=2, spec=spec, created_at=NOW)
    VcQuota.objects.update(chain="rack")

    applied = apply(node_one(), inventory([*EIGHT, Found(index=8, type="a", path=[1, 3])]))

    assert not applied.is_new_version
    assert "does not have its devices 8" in applied.warnings[-1]
    assert Device.objects.get(node=node_one(), index=0).address == "r1/node-1/0/0/0"


def test_a_node_without_devices_loses_nothing():
    applied = apply(node_one(), inventory([]))

    assert applied.missing == tuple(range(8))
    assert Device.objects.filter(node=node_one(), healthy=False).count() == 8


def test_a_probe_is_kept_and_applied():
    node = new_node()

    for _ in range(2):
        record_probe(
            node_id=node.pk,
            inventory=inventory().to_json(),
            has_docker=True,
            cpus=32.0,
            memory_bytes=64 << 30,
            now=NOW,
        )

    node.refresh_from_db()
    assert (node.has_docker, node.inventory["cpus"], node.probed_at) == (True, 32, NOW)
    assert Device.objects.filter(node=node).count() == 8
    assert Topology.objects.count() == 2
