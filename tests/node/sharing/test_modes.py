"""Sharing modes: what a node offers after its trials."""

import os
from pathlib import Path

import pytest

from tessera import protocol
from tessera.device_sharing import GuestPlace
from tessera.node.sharing import modes
from tessera.protocol import Device, RunSpec

GPU = Device(index=0, type="A100", path=[], uuid="GPU-1")
SLOT = Device(index=1, type="slot", path=[], declared=True)


def modes_of(device: Device, freezer: str, *, mps: bool = False) -> list[str]:
    found = modes.with_modes([device], can_freeze=lambda: freezer, has_mps=lambda: mps)
    return found[0].sharing_modes


def test_a_slot_can_be_shared_by_any_program() -> None:
    assert modes_of(SLOT, "v1") == ["slot", "cooperative", "time-slice"]


def test_a_gpu_can_be_shared_by_programs_with_gates() -> None:
    assert modes_of(GPU, "signal") == ["cooperative"]
    assert modes_of(GPU, "v2", mps=True) == ["mps", "cooperative"]


def test_a_node_that_cannot_freeze_a_program_shares_nothing() -> None:
    assert modes_of(GPU, "", mps=True) == []
    assert modes_of(SLOT, "") == []


def test_this_machine_freezes_and_thaws_a_child_and_leaves_nothing() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())

    assert modes.tried_freezer() in {"v1", "v2", "signal"}

    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_freezer_that_does_nothing_fails_the_trial() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            os.write(writing, b"." * 100)
    try:
        assert not modes._stands_and_works(reading, lambda _: True)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(("mode", "is_limited"), [("mps", True), ("cooperative", False)])
def test_the_limit_of_mps_cannot_be_lifted_by_the_environment_of_the_job(
    mode: str, is_limited: bool
) -> None:
    place = GuestPlace(0, "abcdef00.worker.0", 1, mode, 1 << 30, 2 << 30)
    spec = RunSpec(
        run_id="abcdef01.worker.0",
        job_id="1",
        job_name="guest",
        attempt="abcdef01",
        role="worker",
        rank=0,
        command="true",
        env={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=99999M"} if is_limited else {},
        devices=[0],
        beside=[place],
    )

    found = protocol.job_environment(spec, "/run", "bundle", "/checkpoints")

    expected = "0=2048M" if is_limited else None
    assert found.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == expected
