"""Conditions of GPUs disable devices and nodes by rules, apart from the marks of admins."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.conditions import condition_actions, condition_rows
from scheduling.clusters.services.cluster_rules import set_condition_actions
from scheduling.clusters.services.node_contact import contact_lost, record_probe
from scheduling.clusters.services.nodes import (
    cordon_node,
    declare_node_dead,
    set_device_health,
)
from scheduling.core.messages import sentence
from tenants.errors import ConflictError, ForbiddenError, InvalidError
from tenants.models import AuditEntry
from tessera import hardware
from tessera.hardware import Condition
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import ADMIN, NOW, make_two_tenants, make_viewer

pytestmark = pytest.mark.django_db

GPUS = [
    Found(index=i, type="a", path=[i // 4, i // 2], uuid=f"GPU-{i}", pci_address=f"0000:0{i}:00.0")
    for i in range(8)
]


@pytest.fixture
def node() -> Node:
    make_two_tenants()
    found = Node.objects.get(name="node-1")
    Node.objects.filter(pk=found.pk).update(contact="ready", state="ready")
    probe(found)
    return found


def probe(
    node: Node, *conditions: Condition, gpus: list[Found] = GPUS, now: datetime = NOW
) -> None:
    inventory = Inventory(
        devices=gpus,
        levels=["node", "socket", "pcie", "device"],
        cpus=32,
        memory_bytes=64 << 30,
        driver="550.54.15",
        cuda="12.4",
        conditions=list(conditions),
    )
    record_probe(
        node_id=node.pk,
        inventory=inventory.to_json(),
        has_docker=False,
        cpus=32.0,
        memory_bytes=64 << 30,
        now=now,
    )
    node.refresh_from_db()


def unhealthy(node: Node) -> dict[int, str]:
    rows = Device.objects.filter(node=node, healthy=False, retired_at=None)
    return dict(rows.values_list("index", "health_reason"))


def on(index: int, code: str) -> Condition:
    return Condition(code, uuid=f"GPU-{index}")


def test_a_condition_quarantines_its_device_until_it_ends(node: Node) -> None:
    probe(node, on(3, hardware.ECC_UNCORRECTABLE), on(4, hardware.PAGES_PENDING))

    assert unhealthy(node) == {3: sentence("condition-ecc-uncorrectable")}

    probe(node)

    assert unhealthy(node) == {}


def test_a_foreign_process_keeps_new_jobs_off_its_device_until_an_admin_agrees(
    node: Node,
) -> None:
    probe(node, on(3, hardware.FOREIGN_PROCESS))
    assert unhealthy(node) == {3: sentence("condition-foreign-process")}

    set_condition_actions(viewer=ADMIN, actions={hardware.FOREIGN_PROCESS: "note"}, now=NOW)
    probe(node, on(3, hardware.FOREIGN_PROCESS))

    assert unhealthy(node) == {}


def test_the_kernel_names_a_gpu_by_its_address(node: Node) -> None:
    probe(node, Condition(hardware.XID_HARDWARE, pci_address="0000:05:00.0"))

    assert unhealthy(node) == {5: sentence("condition-xid-hardware")}


def test_a_message_about_an_address_concerns_all_instances_there(node: Node) -> None:
    gpus = [replace(gpu, pci_address=f"0000:0{gpu.index // 2}:00.0") for gpu in GPUS]

    probe(node, Condition(hardware.XID_HARDWARE, pci_address="0000:02:00.0"), gpus=gpus)

    assert set(unhealthy(node)) == {4, 5}


def test_a_lost_gpu_shows_the_message_of_its_driver(node: Node) -> None:
    lost = Condition(hardware.LOST, pci_address="0000:03:00.0")

    probe(node, lost, gpus=[*GPUS[:3], *(replace(g, index=g.index - 1) for g in GPUS[4:])])

    assert unhealthy(node) == {3: sentence("condition-lost")}


def test_the_mark_of_an_admin_and_a_condition_do_not_end_each_other(node: Node) -> None:
    mark: dict[str, Any] = {"viewer": ADMIN, "node_id": node.pk, "index": 3, "now": NOW}
    set_device_health(**mark, healthy=False, reason="loud fan")
    probe(node, on(3, hardware.ECC_UNCORRECTABLE))
    probe(node)
    assert unhealthy(node) == {3: "loud fan"}

    probe(node, on(3, hardware.ECC_UNCORRECTABLE))
    set_device_health(**mark, healthy=True)

    assert unhealthy(node) == {3: sentence("condition-ecc-uncorrectable")}


def test_a_probe_stores_the_versions_and_the_least_memory_of_the_gpus(node: Node) -> None:
    sizes = [80 << 30, 40 << 30]
    gpus = [replace(gpu, memory_bytes=size) for gpu, size in zip(GPUS, sizes, strict=False)]

    probe(node, gpus=gpus)

    facts = (node.driver_version, node.cuda_version, node.gpu_memory_bytes)
    assert facts == ("550.54.15", "12.4", 40 << 30)


def test_a_node_whose_driver_hangs_is_suspect_until_it_responds(node: Node) -> None:
    for _ in range(2):
        probe(node, Condition(hardware.DRIVER_HUNG))

    assert (node.contact, node.contact_reason) == ("suspect", sentence("condition-driver-hung"))
    assert unhealthy(node) == {}

    probe(node)

    assert (node.contact, node.state) == ("ready", "ready")


def test_a_hung_driver_is_seen_again_after_the_session_has_returned(node: Node) -> None:
    probe(node, Condition(hardware.DRIVER_HUNG))
    Node.objects.filter(pk=node.pk).update(contact="ready", contact_reason="", state="ready")

    probe(node, Condition(hardware.DRIVER_HUNG))

    assert node.contact == "suspect"


def test_a_node_whose_driver_hangs_is_declared_dead_only_once_it_is_silent(node: Node) -> None:
    dead: dict[str, Any] = {"viewer": ADMIN, "node_id": node.pk, "reason": "off", "now": NOW}
    probe(node, Condition(hardware.DRIVER_HUNG))

    with pytest.raises(ConflictError, match="only its GPU driver hangs"):
        declare_node_dead(**dead)
    contact_lost(node_id=node.pk, reason="timed out", now=NOW)
    contact_lost(node_id=node.pk, reason=sentence("condition-driver-hung"), now=NOW)

    assert declare_node_dead(**dead).declared_dead_at == NOW


def test_a_condition_of_action_cordon_cordons_its_node_until_it_ends(node: Node) -> None:
    probe(node, on(0, hardware.FABRIC))
    assert (node.held, node.held_reason) == ("cordoned", sentence("condition-fabric-not-ready"))

    probe(node)

    assert (node.held, node.state) == ("", "ready")


def test_the_cordon_of_an_admin_outlasts_conditions(node: Node) -> None:
    cordon_node(viewer=ADMIN, node_id=node.pk, reason="new power supply", now=NOW)

    probe(node, on(0, hardware.FABRIC))
    probe(node)

    assert (node.held, node.held_reason) == ("cordoned", "new power supply")


def test_an_admin_chooses_the_action_of_a_condition(node: Node) -> None:
    probe(node, on(3, hardware.ECC_UNCORRECTABLE), on(4, hardware.HOT))

    set_condition_actions(
        viewer=ADMIN, actions={"ecc-uncorrectable": "note", "thermal-slowdown": "cordon"}, now=NOW
    )

    node.refresh_from_db()
    assert unhealthy(node) == {}
    assert node.held == "cordoned"
    assert condition_actions()["ecc-uncorrectable"] == "note"
    assert condition_actions()["lost"] == "quarantine"


@pytest.mark.parametrize("actions", [{"ecc": "note"}, {"lost": "ignore"}])
def test_an_unknown_condition_or_action_is_refused(actions: dict[str, str]) -> None:
    with pytest.raises(InvalidError) as caught:
        set_condition_actions(viewer=ADMIN, actions=actions, now=NOW)

    assert caught.value.errors[0].field == f"condition_actions.{next(iter(actions))}"


def test_only_admins_set_actions(node: Node) -> None:
    with pytest.raises(ForbiddenError):
        set_condition_actions(viewer=make_viewer("ada"), actions={}, now=NOW)


def test_a_condition_of_a_later_version_is_shown_by_its_code(node: Node) -> None:
    probe(node, on(1, "unknown-code"))

    (row,) = condition_rows([on(1, "unknown-code")], list(node.devices.all()))

    assert (row.device, row.text, row.action) == (1, "unknown-code", "note")


def test_each_condition_has_a_text() -> None:
    assert {code: sentence(f"condition-{code}") for code in hardware.DEFAULT_ACTIONS}


def test_a_quarantine_ends_with_the_first_probe_after_its_duration(node: Node) -> None:
    set_device_health(
        viewer=ADMIN, node_id=node.pk, index=3, healthy=False, reason="fan", hours=2, now=NOW
    )

    probe(node, now=NOW + timedelta(hours=2, seconds=-1))
    assert unhealthy(node) == {3: "fan"}
    probe(node, now=NOW + timedelta(hours=2))

    assert unhealthy(node) == {}
    entry = AuditEntry.objects.unscoped().filter(action="device.health").latest("pk")
    assert (entry.actor_name, entry.after) == ("quarantine-end", {"healthy": True, "reason": ""})


@pytest.mark.parametrize("hours", [0, -1, 366 * 24 + 1, float("nan")])
def test_a_quarantine_has_a_duration_within_its_limits(node: Node, hours: float) -> None:
    with pytest.raises(InvalidError) as refused:
        set_device_health(
            viewer=ADMIN, node_id=node.pk, index=3, healthy=False, reason="x", hours=hours, now=NOW
        )

    assert [error.field for error in refused.value.errors] == ["hours"]
    assert unhealthy(node) == {}
