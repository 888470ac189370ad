"""A node with several device types offers all of them, each in a cell of its own."""

from dataclasses import replace
from typing import Any

import pytest

from scheduling.clusters.models import Device, Node, Topology, VcQuota
from scheduling.clusters.queries.cluster import node_views
from scheduling.clusters.queries.cluster_facts import cluster_facts
from scheduling.clusters.services.inventory import apply_inventory
from scheduling.clusters.services.node_contact import record_probe
from scheduling.clusters.services.nodes import remove_node
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease
from scheduling.topology.current import current_topology
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import ADMIN, NOW, make_two_tenants, start, submit

pytestmark = pytest.mark.django_db

GIB = 1 << 30
LEVELS = ["node", "socket", "pcie", "device"]


def gpu(index: int, kind: str, name: str, *, memory: int = 32, **facts: Any) -> Found:
    return Found(
        index=index,
        type=kind,
        path=[0, index],
        uuid=f"GPU-{name}",
        pci_address=f"0000:{index:02x}:00.0",
        memory_bytes=memory * GIB,
        **facts,
    )


STATION = [
    gpu(0, "V100", "a"),
    gpu(1, "T400", "screen", memory=4, display=True),
    gpu(2, "V100", "b"),
]
MIG = [gpu(i, f"A100-MIG-{kind}", f"m{i}", memory=size) for i, (kind, size) in enumerate(
    [("3g.40gb", 40), ("2g.20gb", 20), ("1g.10gb", 10), ("1g.10gb", 10)]
)]  # fmt: skip


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def inventory(devices: list[Found]) -> Inventory:
    return Inventory(devices=devices, levels=LEVELS, cpus=32, memory_bytes=64 * GIB)


def new_node(name: str = "station") -> Node:
    return Node.objects.create(name=name, host=name, state_since=NOW, created_at=NOW)


def apply(node: Node, devices: list[Found]):
    return apply_inventory(node_id=node.pk, inventory=inventory(devices), now=NOW)


def listed(gpus: list[Found]) -> list[Found]:
    """The GPUs as the driver lists them: counted without gaps."""
    return [replace(found, index=index) for index, found in enumerate(gpus)]


def rows(node: Node) -> dict[str, tuple[Any, ...]]:
    found = Device.objects.filter(node=node, retired_at=None)
    return {d.uuid: (d.address, d.device_type, d.healthy) for d in found}


def test_a_display_gpu_is_a_type_of_its_own_and_takes_no_share_of_the_machine() -> None:
    node = new_node()

    applied = apply(node, STATION)

    assert (applied.added, applied.warnings) == ((0, 1, 2), ())
    assert rows(node) == {
        "GPU-a": ("station/0", "V100", True),
        "GPU-b": ("station/2", "V100", True),
        "GPU-screen": ("T400-display/station/1", "T400-display", True),
    }
    assert {d.cpus for d in Device.objects.filter(node=node)} == {16.0}
    assert violations() == ()


def test_mig_instances_of_mixed_profiles_are_all_offered() -> None:
    node = new_node()

    apply(node, MIG)

    chains = current_topology().chains
    kinds = {view.device_type: view.devices for view in chains.values() if "MIG" in view.name}
    assert kinds == {"A100-MIG-3g.40gb": 1, "A100-MIG-2g.20gb": 1, "A100-MIG-1g.10gb": 2}


def test_a_lost_device_changes_neither_its_own_cell_nor_that_of_another_type() -> None:
    node = new_node()
    apply(node, STATION)
    before = rows(node)

    for lost in STATION:
        applied = apply(node, listed([one for one in STATION if one != lost]))
        found = rows(node)
        address, kind, _ = before[lost.uuid]
        assert found == {**before, lost.uuid: (address, kind, False)}
        assert (applied.is_new_version, len(applied.missing)) == (False, 1)

    apply(node, STATION)
    assert rows(node) == before


def test_a_second_type_joins_a_node_in_use_and_leaves_its_cell_and_leases() -> None:
    node = Node.objects.get(name="node-1")
    gpus = [replace(gpu(i, "a", f"g{i}"), path=[i // 4, i // 2]) for i in range(8)]
    for home in Node.objects.all():
        apply(home, [replace(one, uuid=f"{one.uuid}-{home.name}") for one in gpus])
    start(submit(devices=8))
    held = set(Lease.objects.filter(released_at=None).values_list("device_id", "virtual_cell"))
    home = Lease.objects.filter(released_at=None)[0].device.node
    own = [replace(one, uuid=f"{one.uuid}-{home.name}") for one in gpus]
    before, quotas = rows(home), list(VcQuota.objects.values_list("chain", "level", "count"))

    applied = apply(home, [*own, replace(gpu(8, "T4", "new", memory=16), path=[0, 9])])

    assert (applied.is_new_version, applied.added, applied.warnings) == (True, (8,), ())
    assert rows(home) == {**before, "GPU-new": (f"T4/{home.name}/8", "T4", True)}
    assert (
        set(Lease.objects.filter(released_at=None).values_list("device_id", "virtual_cell"))
        == held
    )
    assert list(VcQuota.objects.values_list("chain", "level", "count")) == quotas
    assert (node.pk, violations()) == (node.pk, ())


def test_a_job_that_names_no_type_gets_no_display_gpu() -> None:
    VcQuota.objects.all().delete()
    Topology.objects.all().delete()
    Device.objects.all().delete()
    node = new_node()
    apply(node, STATION)
    Node.objects.filter(pk=node.pk).update(state="ready", contact="ready")
    jobs = [submit(devices=1, **{"class": "opportunistic"}) for _ in range(3)]

    start(*jobs[:2])

    held = Lease.objects.filter(released_at=None).values_list("device__uuid", flat=True)
    assert sorted(held) == ["GPU-a", "GPU-b"]


def test_a_probe_stores_the_memory_of_each_type() -> None:
    node = new_node()

    for devices in (MIG, STATION[:1] + STATION[2:]):
        other = new_node(f"n{len(devices)}") if devices is not MIG else node
        record_probe(
            node_id=other.pk,
            inventory=inventory(devices).to_json(),
            has_docker=False,
            cpus=32.0,
            memory_bytes=64 * GIB,
            now=NOW,
        )
        other.refresh_from_db()
        assert other.type_memory == (
            {
                "A100-MIG-3g.40gb": 40 * GIB,
                "A100-MIG-2g.20gb": 20 * GIB,
                "A100-MIG-1g.10gb": 10 * GIB,
            }
            if devices is MIG
            else {}
        )


def test_a_removed_node_takes_all_its_cells_with_it() -> None:
    node = new_node()
    apply(node, STATION)

    remove_node(viewer=ADMIN, node_id=node.pk, now=NOW)

    assert "station" not in current_topology().cells.nodes
    assert not any("station" in cell.address for cell in current_topology().spec.physical)
    assert violations() == ()


def test_views_show_all_types_of_a_node() -> None:
    apply(new_node(), STATION)

    (view,) = (node for node in node_views(cluster_facts(), ADMIN) if node.name == "station")

    assert [(found.type, found.devices) for found in view.types] == [
        ("V100", 2), ("T400-display", 1),
    ]  # fmt: skip
    assert view.device_type == "V100"
