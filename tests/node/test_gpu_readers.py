"""Both readers of GPUs report the same facts of the same machine."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from machines import (
    A40_PAIRS,
    CLOUD_T4,
    DGX_A100,
    DISPLAY,
    LOST,
    MACHINES,
    RESET_REQUIRED,
    Instance,
    Machine,
    Nvml,
    write_smi,
)

from tessera.node.gpus import GpuProcess, Reader, Reading
from tessera.node.nvml import NvmlReader
from tessera.node.smi import SmiReader

Open = Callable[[Machine], Reader]


@pytest.fixture(params=["nvml", "nvidia-smi"])
def reader_of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Open:
    """Each test runs with each reader."""

    def opened(machine: Machine) -> Reader:
        if request.param == "nvml":
            return NvmlReader(Nvml(machine))
        write_smi(machine, tmp_path / "nvidia-smi")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return SmiReader()

    return opened


def read(reader: Reader) -> Reading:
    reading = reader.read(in_detail=True)
    assert reading is not None
    return reading


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_gpu_has_the_facts_of_its_board(reader_of: Open, machine: Machine) -> None:
    reading = read(reader_of(machine))

    assert (reading.driver, reading.lost, reading.warnings) == (machine.driver, [], [])
    assert reading.cuda == f"{machine.cuda // 1000}.{machine.cuda % 1000 // 10}"
    for index, (gpu, board) in enumerate(zip(reading.gpus, machine.boards, strict=True)):
        assert (gpu.position, gpu.uuid, gpu.name) == (index, board.uuid, board.name)
        assert gpu.pci_address == board.bus_id[4:].lower()
        assert (gpu.serial, gpu.compute_mode) == (board.serial or "", "Default")
        assert (gpu.memory_bytes, gpu.memory_used_bytes) == (
            board.memory_mib << 20,
            board.used_mib << 20,
        )
        assert gpu.utilisation == (None if board.busy is None else board.busy / 100)
        assert gpu.temperature == board.temperature
        assert gpu.power == (None if board.milliwatts is None else board.milliwatts / 1000)
        health = gpu.health
        assert (health.fault, health.ecc_uncorrectable) == ("", board.ecc)
        assert (health.remap_pending, health.remap_failed) == (board.remap or (None, None))
        assert (health.pages_pending, health.throttle_reasons) == (board.pages, board.reasons)
        assert health.nvlink_errors == (sum(board.links) if board.links else None)


def test_bad_health_is_reported(reader_of: Open) -> None:
    machine = DGX_A100.change(
        2, ecc=3, remap=(True, True), pages=True, reasons=0x48, mode=3, links=(7, 0, 5)
    )

    found = read(reader_of(machine)).gpus[2]

    assert found.compute_mode == "Exclusive_Process"
    assert found.health.ecc_uncorrectable == 3
    assert (found.health.remap_pending, found.health.remap_failed) == (True, True)
    assert (found.health.pages_pending, found.health.throttle_reasons) == (True, 0x48)
    assert found.health.nvlink_errors == 12


def test_processes_are_reported_with_their_gpu_and_memory(reader_of: Open) -> None:
    machine = DGX_A100.change(2, processes=((4242, 3000), (4243, None))).change(
        5, processes=((4242, 512),)
    )

    assert read(reader_of(machine)).processes == [
        GpuProcess(DGX_A100.boards[2].uuid, 4242, 3000 << 20),
        GpuProcess(DGX_A100.boards[2].uuid, 4243, None),
        GpuProcess(DGX_A100.boards[5].uuid, 4242, 512 << 20),
    ]


def test_the_load_does_not_include_processes(reader_of: Open) -> None:
    reading = reader_of(DGX_A100.change(2, processes=((4242, 3000),))).read(in_detail=False)

    assert reading is not None
    assert reading.processes == []


def test_a_lost_gpu_hides_no_other(reader_of: Open) -> None:
    reading = read(reader_of(DGX_A100.change(3, fault=LOST)))

    uuids = [gpu.uuid for gpu in reading.gpus]
    assert uuids == [board.uuid for board in DGX_A100.boards if board != DGX_A100.boards[3]]
    assert any("lost" in warning for warning in reading.warnings)


def test_a_gpu_that_requires_a_reset_keeps_its_identity(reader_of: Open) -> None:
    found = read(reader_of(CLOUD_T4.change(1, fault=RESET_REQUIRED))).gpus[1]

    assert (found.uuid, found.health.fault) == (CLOUD_T4.boards[1].uuid, "reset-required")
    assert found.memory_bytes is None


def test_the_groups_of_gpus_are_those_of_their_buses(reader_of: Open) -> None:
    for machine, groups in (
        (
            replace(DGX_A100, switched=False),
            [(0, 0), (0, 0), (0, 2), (0, 2), (4, 4), (4, 4), (4, 6), (4, 6)],
        ),
        (DISPLAY, [(0, 0), (0, 1), (0, 2)]),
    ):
        reader = reader_of(machine)
        assert reader.closeness(read(reader).gpus) == groups


def test_nvlink_domains_are_bridged_pairs_or_all_gpus_of_the_switches(reader_of: Open) -> None:
    linked = frozenset({(0, 1), (1, 2)})
    chain = replace(A40_PAIRS.change(1, links=(0, 0)), linked=linked)
    for machine, expected in (
        (DGX_A100, [0] * 8),
        (A40_PAIRS, [0, 0, 2, 2, 4, 4, 6, 6]),
        (chain, [0, 0, 0, *[-1] * 5]),
        (CLOUD_T4, [-1] * 4),
    ):
        reader = reader_of(machine)
        assert reader.nvlink_domains(read(reader).gpus) == expected


def test_a_machine_without_a_driver_has_no_reading(reader_of: Open) -> None:
    assert reader_of(Machine(boards=())).read(in_detail=True) is None


def test_a_field_that_an_old_release_does_not_know_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = ("clocks_throttle_reasons.active", "retired_pages.pending")
    machine = Machine(boards=CLOUD_T4.boards, unknown_fields=unknown)
    write_smi(machine, tmp_path / "nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    found = read(SmiReader())

    assert len(found.gpus) == 4
    assert found.gpus[0].temperature == 41
    assert found.gpus[0].health.pages_pending is None


def test_the_address_of_a_lost_gpu_is_in_the_message_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_smi(DGX_A100.change(3, fault=LOST), tmp_path / "nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert read(SmiReader()).lost == [DGX_A100.boards[3].bus_id[4:].lower()]


def test_a_gpu_in_mig_mode_is_its_instances() -> None:
    # Constructed from the examples of NVIDIA's MIG user guide.
    large = Instance(uuid="MIG-large", part=1, slices=3, memory_mib=40192)
    small = Instance(
        uuid="MIG-small",
        part=9,
        slices=1,
        memory_mib=9728,
        name="NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        processes=((77, 100),),
    )
    machine = DGX_A100.change(2, instances=(large, small), ecc=3).change(5, instances=())

    reader = NvmlReader(Nvml(machine))
    reading = read(reader)

    whole = [gpu for gpu in reading.gpus if not gpu.instance]
    assert [gpu.position for gpu in whole] == [0, 1, 3, 4, 6, 7]
    first, second = [gpu for gpu in reading.gpus if gpu.instance]
    assert (first.uuid, first.instance, first.position) == ("MIG-large", "1/0", 8)
    assert (second.uuid, second.instance, second.position) == ("MIG-small", "9/0", 9)
    assert first.name == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert second.name == "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    assert (first.memory_bytes, first.utilisation) == (40192 << 20, None)
    assert first.pci_address == second.pci_address == DGX_A100.boards[2].bus_id[4:].lower()
    assert {first.health.ecc_uncorrectable, second.health.ecc_uncorrectable} == {3}
    assert reading.processes == [GpuProcess("MIG-small", 77, 100 << 20)]
    assert reading.warnings == ["GPU 5: it is in MIG mode and has no instances"]
    groups = reader.closeness([first, second, whole[2]])
    assert groups == [(0, 0), (0, 0), (0, 0)]
