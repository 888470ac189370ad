"""What a node says it has becomes devices and cells, and nothing held or promised vanishes."""

from dataclasses import replace
from typing import Any

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
GPUS = [
    replace(slot, declared=False, uuid=f"GPU-{name}", pci_address=f"0000:0{slot.index}:00.0")
    for slot, name in zip(EIGHT, "abcdefgh", strict=True)
]
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

    apply(node, inventory([replace(gpu, memory_bytes=80 << 30) for gpu in GPUS]))

    device = Device.objects.filter(node=node)[0]
    assert (device.is_gpu, device.uuid, device.memory_bytes) == (True, "GPU-a", 8 << 30)


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


def listed(gpus):
    """The GPUs as the driver lists them: counted without gaps."""
    return [replace(gpu, index=index) for index, gpu in enumerate(gpus)]


def rows(node):
    return {
        d.uuid: (d.index, d.driver_index, d.healthy, d.chain)
        for d in Device.objects.filter(node=node, retired_at=None)
    }


def test_a_lost_gpu_of_an_idle_node_changes_only_itself():
    VcQuota.objects.all().delete()
    node = node_one()
    apply(node, inventory(GPUS))

    applied = apply(node, inventory(listed(GPUS[:3] + GPUS[4:])))

    assert (applied.is_new_version, applied.missing, applied.warnings) == (False, (3,), ())
    found = rows(node)
    assert found["GPU-d"] == (3, 3, False, "a-node")
    assert found["GPU-e"] == (4, 3, True, "a-node")
    assert violations() == ()

    assert apply(node, inventory(GPUS)).missing == ()
    assert rows(node)["GPU-d"] == (3, 3, True, "a-node")


def test_a_new_board_in_the_place_of_a_bad_one_does_not_have_its_mark():
    node = node_one()
    apply(node, inventory(GPUS))
    mark: dict[str, Any] = {"viewer": ADMIN, "node_id": node.pk, "index": 3, "now": NOW}
    set_device_health(**mark, healthy=False, reason="ECC")

    applied = apply(node, inventory([*GPUS[:3], replace(GPUS[3], uuid="GPU-new"), *GPUS[4:]]))

    assert (applied.is_new_version, applied.added, applied.retired) == (False, (3,), (3,))
    assert rows(node)["GPU-new"] == (3, 3, True, "a-node")
    old = Device.objects.get(node=node, uuid="GPU-d")
    assert (old.retired_at, old.health_reason) == (NOW, "ECC")
    assert violations() == ()


def test_the_mark_of_a_bad_board_follows_it_to_another_node():
    first, second = node_one(), new_node()
    apply(first, inventory(GPUS))
    mark: dict[str, Any] = {"viewer": ADMIN, "node_id": first.pk, "index": 3, "now": NOW}
    set_device_health(**mark, healthy=False, reason="ECC")

    apply(second, inventory([replace(gpu, uuid=f"{gpu.uuid}2") for gpu in GPUS[:7]] + GPUS[3:4]))

    moved = Device.objects.get(node=second, uuid="GPU-d")
    assert (moved.healthy, moved.health_reason) == (False, "ECC")
    assert Device.objects.filter(node=second, healthy=False).count() == 1


def test_boards_that_change_sockets_take_their_rows_with_them():
    node = node_one()
    apply(node, inventory(GPUS))
    before = dict(Device.objects.filter(node=node).values_list("uuid", "pk"))
    swapped = [replace(GPUS[1], uuid="GPU-g"), replace(GPUS[6], uuid="GPU-b")]

    applied = apply(node, inventory([GPUS[0], swapped[0], *GPUS[2:6], swapped[1], GPUS[7]]))

    assert (applied.is_new_version, applied.added, applied.retired) == (False, (), ())
    assert dict(Device.objects.filter(node=node).values_list("uuid", "pk")) == before
    assert Device.objects.get(uuid="GPU-b").address == "node-1/1/3/6"
    assert Device.objects.get(uuid="GPU-g").address == "node-1/0/0/1"
    assert violations() == ()


def test_a_lost_gpu_leaves_running_jobs_their_devices():
    job = submit(devices=8)
    node = node_one()
    apply(node, inventory(GPUS))
    start(job)
    held = {(x.device_id, x.device.uuid) for x in Lease.objects.filter(released_at=None)}
    home = job.attempts.get().members.get().node
    if home != node:
        apply(home, inventory([replace(gpu, uuid=f"{gpu.uuid}2") for gpu in GPUS]))
        held = {(x.device_id, x.device.uuid) for x in Lease.objects.filter(released_at=None)}
    uuids = sorted(uuid for _, uuid in held)
    gpus = [replace(gpu, uuid=uuid) for gpu, uuid in zip(GPUS, uuids, strict=True)]
    news = [*gpus[:3], replace(gpus[3], uuid="GPU-new"), *gpus[4:]]

    applied = apply(home, inventory(news))

    assert {(x.device_id, x.device.uuid) for x in Lease.objects.filter(released_at=None)} == held
    assert applied.missing == (3,)
    assert "GPU-new" in applied.warnings[-1]


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
