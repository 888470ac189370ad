"""A device returns from quarantine by a canary job of the system tenant that runs on it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from scheduling.clusters.models import Device, Node
from scheduling.clusters.queries.nodes import node_detail
from scheduling.clusters.services.cluster_rules import set_canary, set_condition_actions
from scheduling.clusters.services.node_contact import record_probe
from scheduling.clusters.services.nodes import cordon_node, set_device_health
from scheduling.core import canaries as core
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from scheduling.maintenance.invariants import violations
from scheduling.rounds.services.canaries import (
    check_device,
    finish_ended,
    start_due,
    store_canary,
)
from scheduling.runs.models import Attempt, CanaryRun, Lease, Member
from scheduling.runs.services import attempts
from scheduling.runs.services.stopping import preempt_job
from tenants.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from tenants.models import AuditEntry, Tenant, User
from tessera import hardware, protocol
from tessera.hardware import Condition
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import (
    ADMIN,
    CONFIG,
    NOW,
    make_two_tenants,
    make_viewer,
    run_round,
    submit,
)

pytestmark = pytest.mark.django_db
DEVICE = 3


@pytest.fixture
def node() -> Node:
    make_two_tenants()
    Node.objects.update(contact="ready", state="ready", isolation_level="user")
    found = Node.objects.get(name="node-1")
    probe(found)
    return found


def probe(
    node: Node,
    *codes: str,
    reader: str = "nvml",
    missing: bool = False,
    swapped: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """A probe of a node on which a device has these conditions, or is missing."""
    gpus = [
        Found(index=i, type="a", path=[i // 4, i // 2], uuid=swapped.get(i, f"GPU-{node.pk}-{i}"))
        for i in range(8)
    ]
    inventory = Inventory(
        devices=[gpu for gpu in gpus if not missing or gpu.index != DEVICE],
        levels=["node", "socket", "pcie", "device"],
        cpus=32,
        memory_bytes=64 << 30,
        reader=reader,
        conditions=[Condition(code, uuid=gpus[DEVICE].uuid) for code in codes],
    )
    level = Node.objects.get(pk=node.pk).isolation_level
    record_probe(
        node_id=node.pk,
        inventory=inventory.to_json(),
        has_docker=False,
        cpus=32.0,
        memory_bytes=64 << 30,
        now=NOW,
    )
    Node.objects.filter(pk=node.pk).update(isolation_level=level)
    node.refresh_from_db()


def device(node: Node, index: int = DEVICE) -> Device:
    return Device.objects.get(node=node, index=index, retired_at=None)


def due(node: Node) -> Device:
    """A device whose condition has ended."""
    probe(node, hardware.XID_HARDWARE)
    probe(node)
    return device(node)


def started(node: Node, at: datetime = NOW) -> CanaryRun:
    """The running canary job that the portal has started."""
    assert start_due(config=CONFIG, now=at) == 1
    return running(CanaryRun.objects.get(ended_at=None), at)


def running(run: CanaryRun, at: datetime = NOW) -> CanaryRun:
    (member,) = Member.objects.filter(attempt__job=run.job)
    attempts.mark_preparing(member_ids=[member.pk], now=at)
    attempts.mark_prepared(member_id=member.pk, now=at)
    attempts.mark_running(member_id=member.pk, pid=100, boot_id="", started_at=at, now=at)
    return run


def ended(run: CanaryRun, code: int, at: datetime = NOW) -> CanaryRun:
    (member,) = Member.objects.filter(attempt__job=run.job, attempt__ended_at=None)
    record = protocol.ExitRecord(
        cause=protocol.CAUSE_EXITED,
        failure="" if code == 0 else protocol.USER,
        at=at.timestamp(),
        code=code,
    )
    attempts.mark_exited(member_id=member.pk, record=record, now=at)
    assert finish_ended(now=at) == 1
    run.refresh_from_db()
    return run


def test_a_device_returns_when_its_canary_job_has_passed(node: Node) -> None:
    waiting = due(node)
    assert (waiting.healthy, waiting.canary) == (False, "due")
    assert waiting.health_reason == sentence("device-awaits-canary")

    run = started(node)

    assert run.job is not None
    assert (run.job.tenant.name, run.job.job_class) == (core.SYSTEM_TENANT, "opportunistic")
    assert Lease.objects.get(job=run.job).device == waiting
    assert not device(node).healthy

    store_canary(job_id=run.job.pk, document={"bytes": 7, "cause": "passed", "odd": [1]})
    ended(run, 0)

    assert (run.result, run.cause, run.figures) == ("passed", "passed", {"bytes": 7})
    assert (device(node).healthy, device(node).canary) == (True, "")
    (shown,) = node_detail(ADMIN, node.pk).canaries
    assert (shown.device, shown.job, shown.result) == (DEVICE, run.job_id, "passed")
    assert node_detail(make_viewer("alice"), node.pk).canaries == ()
    entry = AuditEntry.objects.unscoped().filter(action="device.canary").latest("id")
    assert (entry.after["result"], entry.after["healthy"]) == ("passed", True)
    assert not violations()


def test_the_job_is_in_no_queue_and_rounds_leave_it_alone(node: Node) -> None:
    due(node)
    other = submit(devices=8)
    run = started(node)

    outcome = run_round()

    assert run.job is not None
    assert outcome.preempted == ()
    assert run.job_id is not None
    assert Job.objects.unscoped().get(pk=run.job_id).state == "running"
    assert Attempt.objects.get(job=run.job).opportunistic
    assert Member.objects.get(attempt__job=other).node.name != node.name


def test_a_device_that_fails_stays_out_until_an_admin_decides(node: Node) -> None:
    due(node)
    run = started(node)
    assert run.job is not None
    store_canary(job_id=run.job.pk, document={"cause": "memory at 0x10: wrote 0x0, read 0x10"})

    ended(run, core.FAILED_CODE)

    assert run.result == "failed"
    assert run.cause.startswith("memory at 0x10")
    assert device(node).health_reason == sentence("device-failed-canary")
    assert start_due(config=CONFIG, now=NOW + timedelta(days=1)) == 0
    probe(node)
    assert device(node).canary == "failed"

    set_device_health(viewer=ADMIN, node_id=node.pk, index=DEVICE, healthy=True, now=NOW)
    assert device(node).healthy


def test_a_test_that_could_not_run_is_tried_again_three_times(node: Node) -> None:
    due(node)
    at = NOW
    for _ in range(core.MOST_TRIALS):
        assert device(node).canary == "due"
        assert ended(started(node, at), 127, at).result == "untested"
        assert start_due(config=CONFIG, now=at + timedelta(seconds=1)) == 0
        at += timedelta(seconds=core.RETRY_SECONDS)

    assert device(node).canary == "failed"
    assert start_due(config=CONFIG, now=at) == 0


def test_a_canary_job_that_was_requeued_proves_nothing(node: Node) -> None:
    due(node)
    run = started(node)
    assert run.job is not None
    assert preempt_job(job_id=run.job.pk, for_job=0, rule="drain", now=NOW)
    (member,) = Member.objects.filter(attempt__job=run.job)
    record = protocol.ExitRecord(
        cause=protocol.CAUSE_STOPPED, failure="", at=NOW.timestamp(), code=0
    )
    attempts.mark_exited(member_id=member.pk, record=record, now=NOW)

    assert finish_ended(now=NOW) == 1

    run.refresh_from_db()
    assert run.result == "untested"
    assert run.job_id is not None
    assert Job.objects.unscoped().get(pk=run.job_id).state in ("stopped", "failed")
    assert not device(node).healthy


def test_a_new_condition_ends_the_wait_and_the_test_cannot_clear_it(node: Node) -> None:
    due(node)
    run = started(node)
    probe(node, hardware.XID_HARDWARE)

    ended(run, 0)

    assert device(node).health_reason == sentence("condition-xid-hardware")
    probe(node)
    assert device(node).canary == "due"


def test_a_harmless_condition_beside_the_ended_one_replaces_no_test(node: Node) -> None:
    probe(node, hardware.XID_HARDWARE, hardware.NVLINK_ERRORS)
    probe(node, hardware.NVLINK_ERRORS)

    assert (device(node).healthy, device(node).canary) == (False, "due")


def test_a_missing_device_is_not_tested_and_still_owes_its_test_when_it_is_back(
    node: Node,
) -> None:
    waiting = due(node)
    probe(node, missing=True)

    assert device(node) == waiting
    assert start_due(config=CONFIG, now=NOW) == 0
    with pytest.raises(ConflictError, match="did not find the device"):
        check_device(viewer=ADMIN, node_id=node.pk, index=DEVICE, config=CONFIG, now=NOW)

    probe(node, hardware.XID_HARDWARE)
    probe(node, missing=True)
    probe(node)
    assert (device(node).healthy, device(node).canary) == (False, "due")
    assert started(node).device == waiting


def test_a_board_in_another_place_keeps_its_quarantine_and_its_test(node: Node) -> None:
    set_device_health(
        viewer=ADMIN,
        node_id=node.pk,
        index=0,
        healthy=False,
        reason="loud fan",
        hours=2.0,
        now=NOW,
    )
    uuid = device(node, 0).uuid
    due(node)
    tested = device(node).uuid
    probe(node, swapped={0: "GPU-new-0", DEVICE: "GPU-new-3"})
    other = Node.objects.get(name="node-2")
    probe(other)
    probe(other, swapped={0: uuid, DEVICE: tested})

    moved = device(other, 0)
    assert (moved.uuid, moved.disabled_reason) == (uuid, "loud fan")
    assert moved.disabled_until == NOW + timedelta(hours=2)
    assert (device(other).uuid, device(other).canary) == (tested, "due")
    assert device(node).healthy


@pytest.mark.parametrize(
    "facts",
    [
        {"isolation_level": "none"},
        {"isolation_level": ""},
        {"reader": "amd-smi"},
        {"reader": ""},
        {"enabled": False},
    ],
)
def test_a_device_that_no_canary_job_can_test_returns_at_once(
    node: Node, facts: dict[str, Any]
) -> None:
    if "enabled" in facts:
        set_canary(viewer=ADMIN, settings=facts)
    elif "isolation_level" in facts:
        Node.objects.filter(pk=node.pk).update(**facts)
    reader = facts.get("reader", "nvml")
    probe(node, hardware.XID_HARDWARE, reader=reader)
    probe(node, reader=reader)

    assert device(node).healthy


@pytest.mark.parametrize("code", [hardware.FOREIGN_PROCESS, hardware.ECC_UNCORRECTABLE])
def test_neither_a_process_nor_a_changed_rule_needs_a_test(node: Node, code: str) -> None:
    probe(node, code)
    assert not device(node).healthy

    if code == hardware.FOREIGN_PROCESS:
        probe(node)
    else:
        set_condition_actions(viewer=ADMIN, actions={code: "note"}, now=NOW)

    assert device(node).healthy


def test_devices_of_nodes_out_of_service_and_in_use_wait(node: Node) -> None:
    busy = submit(devices=8)
    run_round()
    held = Member.objects.get(attempt__job=busy).node
    probe(held, hardware.XID_HARDWARE)
    probe(held)
    assert start_due(config=CONFIG, now=NOW) == 0

    other = Node.objects.exclude(pk=held.pk).order_by("pk").first()
    assert other is not None
    due(other)
    cordon_node(viewer=ADMIN, node_id=other.pk, reason="repair", now=NOW)
    assert start_due(config=CONFIG, now=NOW) == 0


def test_an_admin_ends_a_quarantine_by_a_test(node: Node) -> None:
    set_device_health(
        viewer=ADMIN, node_id=node.pk, index=DEVICE, healthy=False, reason="loud", now=NOW
    )
    assert start_due(config=CONFIG, now=NOW) == 0

    run = check_device(viewer=ADMIN, node_id=node.pk, index=DEVICE, config=CONFIG, now=NOW)
    with pytest.raises(ConflictError, match="uses the device"):
        check_device(viewer=ADMIN, node_id=node.pk, index=DEVICE, config=CONFIG, now=NOW)
    ended(running(run), 0)

    assert device(node).healthy
    assert run.requested_by == ADMIN.username


def test_a_quarantine_during_a_test_is_not_lifted_by_it(node: Node) -> None:
    mark: dict[str, Any] = {
        "viewer": ADMIN,
        "node_id": node.pk,
        "index": DEVICE,
        "healthy": False,
        "now": NOW,
    }
    set_device_health(**mark, reason="noisy fan")
    run = check_device(viewer=ADMIN, node_id=node.pk, index=DEVICE, config=CONFIG, now=NOW)
    set_device_health(**mark, reason="smoke")

    ended(running(run), 0)

    assert run.result == "passed"
    assert (device(node).healthy, device(node).disabled_reason) == (False, "smoke")


def test_a_person_with_the_name_of_the_account_gets_no_canary_jobs(node: Node) -> None:
    User.objects.create(username=core.SYSTEM_USER, last_login=NOW)
    due(node)

    assert start_due(config=CONFIG, now=NOW) == 0
    assert not Job.objects.unscoped().filter(owner__username=core.SYSTEM_USER).exists()
    set_device_health(
        viewer=ADMIN, node_id=node.pk, index=0, healthy=False, reason="noisy fan", now=NOW
    )
    with pytest.raises(ConflictError, match=core.SYSTEM_USER):
        check_device(viewer=ADMIN, node_id=node.pk, index=0, config=CONFIG, now=NOW)


def test_only_admins_test_devices_and_only_those_out_of_service(node: Node) -> None:
    def check(viewer: Any = ADMIN, index: int = 3) -> None:
        check_device(viewer=viewer, node_id=node.pk, index=index, config=CONFIG, now=NOW)

    with pytest.raises(ForbiddenError):
        check(make_viewer("alice"))
    with pytest.raises(NotFoundError):
        check(index=99)
    with pytest.raises(ConflictError, match="in service"):
        check()
    assert not CanaryRun.objects.exists()
    assert not Tenant.objects.unscoped().filter(name=core.SYSTEM_TENANT).exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"enabled": "yes"},
        {"seconds": 5},
        {"seconds": True},
        {"image": "no image!"},
        {"command": "x" * 5000},
        {"other": 1},
    ],
)
def test_invalid_settings_are_refused(node: Node, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        set_canary(viewer=ADMIN, settings=settings)


def test_checks_in_an_image_follow_the_test(node: Node) -> None:
    with pytest.raises(ForbiddenError):
        set_canary(viewer=make_viewer("alice"), settings={})
    rules = set_canary(
        viewer=ADMIN,
        settings={
            "image": "docker.io/pytorch/pytorch:2.4",
            "command": "all_reduce",
            "seconds": 30,
        },
    )
    document = core.document("A100", core.settings_of(rules.canary))

    assert document["roles"][core.ROLE]["image"] == "docker.io/pytorch/pytorch:2.4"
    command = document["roles"][core.ROLE]["command"]
    assert command.startswith("python3 -m tessera.train.canary --seconds 30 || exit\n")
    assert command.endswith("(\nall_reduce\n) || exit 1")


def test_forged_figures_are_bounded() -> None:
    found = core.figures_of(
        {"bytes": -1, "seconds": True, "patterns": 1e300, "dcgm": "x" * 900, "cause": 3}
    )

    assert found == {"dcgm": "x" * 300}
