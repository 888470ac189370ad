"""The questions of the recorded machines, answered by the GPUs of this machine."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.hardware import FOREIGN_PROCESS
from tessera.isolation import NAMESPACE, NONE
from tessera.node import driver, gpu_health, gpu_processes
from tessera.node.gpus import Gpu, Reading
from tessera.protocol import Inventory
from tests.gpu.conftest import Report

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

CUDA = Path(__file__).with_name("cuda_devices.py").read_text()
"""Program that prints the UUIDs of the GPUs that CUDA offers to it."""
IN_JOB = f"python3 - <<'END_OF_PROGRAM'\n{CUDA}\nEND_OF_PROGRAM\n"


def inventory_of(node: Session) -> Inventory:
    return Inventory.from_json(node.ask(protocol.PROBE)["inventory"])


def whole(gpus: list[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if not gpu.instance]


def test_both_readers_report_the_same_gpus(answer: driver.Answer, report: Report) -> None:
    found = {}
    for reader in driver.readers([]):
        began = time.monotonic()
        reading = reader.read(in_detail=True)
        report(f"Read by {reader.name}", f"{(time.monotonic() - began) * 1e3:.0f} ms")
        if reading is not None:
            found[reader.name] = [
                (gpu.uuid, gpu.name, gpu.pci_address, gpu.memory_bytes)
                for gpu in whole(reading.gpus)
            ]

    assert found, "no reader finds the driver"
    if len(found) < 2:
        pytest.skip(f"only {next(iter(found))} works on this machine")
    by_nvml, by_smi = found.values()
    assert [one[:3] for one in by_nvml] == [one[:3] for one in by_smi]
    for ours, theirs in zip(by_nvml, by_smi, strict=True):
        assert (ours[3] or 0) == pytest.approx(theirs[3] or 0, rel=0.02)


def test_each_gpu_has_its_facts(reading: Reading, report: Report) -> None:
    report("Driver", f"{reading.driver}, CUDA {reading.cuda}")
    assert reading.driver
    assert reading.cuda
    assert len({gpu.uuid for gpu in reading.gpus}) == len(reading.gpus)
    for gpu in reading.gpus:
        memory = (gpu.memory_bytes or 0) / 2**30
        report(f"GPU {gpu.position}", f"{gpu.name}, {memory:.0f} GiB, {gpu.temperature} °C")
        assert gpu.uuid.startswith(("GPU-", "MIG-"))
        assert gpu.memory_bytes
    assert all(gpu.temperature is not None for gpu in whole(reading.gpus))


def test_the_node_lists_its_gpus_by_uuid(node: Session, reading: Reading, report: Report) -> None:
    found = inventory_of(node)

    devices = [device for device in found.devices if not device.declared]
    report("Levels", " > ".join(found.levels))
    report("Isolation", {one.level: one.available or one.cause for one in found.isolation})
    report("GPUs of containers", found.gpu_access or "none")
    assert devices
    assert {device.uuid for device in devices} <= {gpu.uuid for gpu in reading.gpus}
    assert found.reader in {"nvml", "nvidia-smi"}


def test_faults_are_reported_as_conditions(reading: Reading, report: Report) -> None:
    found = gpu_health.conditions(reading, gpu_health.kernel_xids())

    report("Conditions", [f"{one.code} {one.uuid}" for one in found] or "none")
    assert {one.uuid for one in found} <= {gpu.uuid for gpu in reading.gpus} | {""}


def own_gpu(node: Session, level: str) -> str:
    """Run a job on the first GPU; returns the GPUs that CUDA offers to it."""
    found = inventory_of(node)
    first = next(device for device in found.devices if not device.declared)
    spec = make_spec(
        IN_JOB,
        devices=[first.index],
        gpus=[first.uuid],
        isolation=level,
        env={"CUDA_VISIBLE_DEVICES": first.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )
    node.start(spec)
    status = node.exit_of(spec, 120.0)
    shown = node.log(spec)
    assert status.exit is not None
    if status.exit.code == 77:
        pytest.skip(f"CUDA does not start in a job: {shown.strip()}")
    assert status.exit.code == 0, (status.exit.message, shown)
    assert json.loads(shown.splitlines()[-1]) == [first.uuid]
    return first.uuid


def test_a_plain_job_computes_on_its_own_gpu(node: Session, report: Report) -> None:
    report("Plain job without isolation", f"computes on {own_gpu(node, NONE)} only (not enforced)")


def test_an_isolated_job_computes_on_its_own_gpu(isolated: Session, report: Report) -> None:
    report("Isolated plain job", f"computes on {own_gpu(isolated, NAMESPACE)} only")


def test_another_gpu_is_out_of_reach_of_an_isolated_job(isolated: Session, report: Report) -> None:
    gpus = [device for device in inventory_of(isolated).devices if not device.declared]
    if len(gpus) < 2:
        pytest.skip("this machine has 1 GPU; the test needs 2")
    spec = make_spec(
        IN_JOB,
        devices=[gpus[0].index],
        gpus=[gpus[0].uuid],
        isolation=NAMESPACE,
        env={"CUDA_VISIBLE_DEVICES": gpus[1].uuid},
    )

    isolated.start(spec)
    status = isolated.exit_of(spec, 120.0)

    assert status.exit is not None
    if status.exit.code == 77:
        pytest.skip(f"CUDA does not start in a job: {isolated.log(spec).strip()}")
    assert json.loads(isolated.log(spec).splitlines()[-1]) == []
    report("Another GPU from an isolated job", "refused")


def test_each_rank_finds_all_gpus_of_the_instance(node: Session, report: Report) -> None:
    found = inventory_of(node)
    gpus = [device for device in found.devices if not device.declared]
    uuids = [device.uuid for device in gpus]
    spec = make_spec(
        IN_JOB,
        devices=[device.index for device in gpus],
        gpus=uuids,
        processes=len(gpus),
        env={
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
            "RANK": "0",
            "WORLD_SIZE": str(len(gpus)),
            "LOCAL_WORLD_SIZE": str(len(gpus)),
        },
    )

    node.start(spec)
    status = node.exit_of(spec, 120.0)

    assert status.exit is not None
    shown = node.log(spec)
    if status.exit.code == 77:
        pytest.skip(f"CUDA does not start in a job: {shown.strip()}")
    assert status.exit.code == 0, (status.exit.message, shown)
    lines = [line.partition("] ")[2] for line in shown.splitlines() if line.startswith("[rank")]
    assert [json.loads(line) for line in lines] == [uuids] * len(gpus)
    report("Processes per device", f"{len(gpus)} ranks see {len(gpus)} GPUs")


def test_a_process_of_no_run_is_found_on_its_gpu(
    reading: Reading, tmp_path: Path, report: Report
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", CUDA, "hold"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout
        if not program.stdout.readline():
            pytest.skip("CUDA does not start on this machine")

        def conditions() -> list[str]:
            found = driver.read(str(tmp_path), in_detail=True)
            processes = found.reading.processes if found else []
            seen = gpu_processes.foreign(str(tmp_path), processes, least_seconds=0.0)
            return [one.detail for one in seen if one.code == FOREIGN_PROCESS]

        if not gpu_processes._sees_all_processes():
            pytest.skip("in a PID namespace of its own, processes on GPUs cannot be identified")
        details = wait_until(conditions, "the process is reported")
        assert any(str(program.pid) in one for one in details), details
        report("Foreign process", details[0])
    finally:
        program.kill()
        program.wait(60)
        if program.stdout:
            program.stdout.close()
