"""Conditions follow from facts of the driver and from the kernel's log."""

from pathlib import Path

import pytest
from machines import DGX_A100, RESET_REQUIRED, Machine, Nvml

from tessera import hardware
from tessera.hardware import Condition, class_of_xid
from tessera.node import gpu_health, system
from tessera.node.gpu_health import Xid, kernel_xids
from tessera.node.gpus import Reading
from tessera.node.nvml import NvmlReader


def reading(machine: Machine) -> Reading:
    found = NvmlReader(Nvml(machine)).read(in_detail=True)
    assert found is not None
    return found


def codes(machine: Machine) -> dict[str, str]:
    found = gpu_health.conditions(reading(machine), [])
    assert {one.uuid for one in found} <= {DGX_A100.boards[2].uuid}
    return {one.code: one.detail for one in found}


def test_a_healthy_machine_has_no_condition() -> None:
    assert codes(DGX_A100) == {}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"ecc": 3}, {hardware.ECC_UNCORRECTABLE: "3 since the driver was loaded"}),
        ({"remap": (True, False)}, {hardware.REMAP_PENDING: ""}),
        ({"remap": (False, True)}, {hardware.REMAP_FAILED: ""}),
        ({"pages": True}, {hardware.PAGES_PENDING: ""}),
        ({"reasons": 0x48}, {hardware.HOT: "hardware thermal slowdown"}),
        ({"reasons": 0x88}, {hardware.POWER_BRAKE: "hardware power brake"}),
        ({"reasons": 0x08}, {hardware.SLOWDOWN: ""}),
        ({"reasons": 0x25}, {}),
        ({"links": (0, 2345)}, {hardware.NVLINK_ERRORS: "at least 1000"}),
        ({"mode": 2}, {hardware.COMPUTE_MODE: "Prohibited"}),
        ({"fault": RESET_REQUIRED}, {hardware.RESET_REQUIRED: ""}),
    ],
)
def test_a_fact_is_a_condition_of_its_gpu(
    facts: dict[str, object], expected: dict[str, str]
) -> None:
    assert codes(DGX_A100.change(2, **facts)) == expected


def test_a_gpu_whose_driver_has_lost_it_is_named_by_its_address() -> None:
    found = gpu_health.conditions(Reading(gpus=[], lost=["0000:3b:00.0"]), [])

    assert found == [Condition(hardware.LOST, pci_address="0000:3b:00.0")]


def test_the_newest_xid_of_a_class_is_a_condition() -> None:
    xids = [Xid(1, "0000:3b:00.0", 48, "old"), Xid(2, "0000:3b:00.0", 95, "pid=7, name=x")]

    found = gpu_health.conditions(reading(DGX_A100), xids)

    assert found == [
        Condition(hardware.XID_MEMORY, "Xid 95: pid=7, name=x", pci_address="0000:3b:00.0")
    ]


@pytest.mark.parametrize(
    ("number", "code"),
    [(13, "xid-application"), (31, "xid-application"), (43, "xid-application"),
     (48, "xid-memory"), (63, "xid-application"), (74, "xid-nvlink"), (79, "xid-hardware"),
     (119, "xid-driver"), (9999, "xid-application")],
)  # fmt: skip
def test_xids_have_classes(number: int, code: str) -> None:
    assert class_of_xid(number) == code
    assert code in hardware.DEFAULT_ACTIONS


def test_xids_of_the_last_day_are_read_from_the_kernel_log(tmp_path: Path) -> None:
    now = int(system.boot_clock() * 1e6)
    log = tmp_path / "kmsg"
    log.write_text(
        f"6,100,{now - int(2e5)},-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05\n"
        f"4,101,{now - int(1e5)},-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', "
        "name=<unknown>, GPU has fallen off the bus.\n"
        " SUBSYSTEM=pci\n"
        f"4,102,{now},-;NVRM: Xid (PCI:0000:86:00): 43, pid=4711, name=python, Ch 00000008\n"
        "4,x,y\n"
    )

    found = kernel_xids(str(log))

    assert [(one.pci_address, one.number) for one in found] == [
        ("0000:3b:00.0", 79),
        ("0000:86:00.0", 43),
    ]
    assert found[0].text.endswith("GPU has fallen off the bus.")


def test_a_log_that_is_not_readable_has_no_xid(tmp_path: Path) -> None:
    assert kernel_xids(str(tmp_path / "nothing")) == []


def test_old_xids_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off.\n")

    assert len(kernel_xids(str(log), now=gpu_health.XID_SECONDS)) == 1
    assert kernel_xids(str(log), now=gpu_health.XID_SECONDS + 2) == []
