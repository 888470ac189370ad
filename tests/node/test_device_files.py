"""A job gets the files of its own GPUs, in a recorded tree of the NVIDIA driver."""

from pathlib import Path

import pytest
from session import make_spec

from tessera import protocol
from tessera.node import driver
from tessera.node.gpus import Gpu, Reading
from tessera.node.plans import device_files
from tessera.protocol import ProtocolError, RunSpec

ADDRESSES = ("0000:07:00.0", "0000:0f:00.0")
COMMON = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two GPUs whose files are numbered against their addresses; the second has instances."""
    top = tmp_path / "machine"
    (top / "dev" / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        (top / "dev" / name).touch()
    for address, number in zip(ADDRESSES, (1, 0), strict=True):
        information = top / "proc/driver/nvidia/gpus" / address / "information"
        uuid = f"GPU UUID: \t GPU-{number}\n"
        put(information, f"Model: \t\t NVIDIA A100\n{uuid}Device Minor: \t {number}\n")
    capabilities = top / "proc/driver/nvidia/capabilities"
    grants = {
        "gpu0/mig/gi7/access": 66,
        "gpu0/mig/gi7/ci0/access": 67,
        "gpu0/mig/gi9/access": 84,
        "gpu0/mig/gi9/ci0/access": 85,
        "gpu0/mig/gi9/ci1/access": 86,
        "gpu1/mig/gi1/access": 147,
        "mig/config": 1,
        "mig/monitor": 2,
    }
    for place, number in grants.items():
        text = f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        put(capabilities / place, text)
        (top / "dev" / "nvidia-caps" / f"nvidia-cap{number}").touch()
    return top


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run_of(devices: list[int], gpus: list[str] | None = None, version: int = 3) -> RunSpec:
    return make_spec("true", devices=devices, gpus=gpus or [], protocol=version)


def caps(*numbers: int) -> list[str]:
    return [f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers]


def test_only_the_instances_of_the_assigned_gpu_are_shown(machine: Path, tmp_path: Path) -> None:
    first = device_files(str(tmp_path), run_of([0], ["GPU-1"]), str(machine))
    second = device_files(str(tmp_path), run_of([1], ["GPU-0"]), str(machine))

    assert first == ["/dev/nvidia1", *COMMON, *caps(147)]
    assert second == ["/dev/nvidia0", *COMMON, *caps(66, 67, 84, 85, 86)]


def test_a_capability_without_a_file_is_left_out(machine: Path, tmp_path: Path) -> None:
    (machine / "dev/nvidia-caps/nvidia-cap147").unlink()

    found = device_files(str(tmp_path), run_of([0], ["GPU-1"]), str(machine))

    assert found == ["/dev/nvidia1", *COMMON]


def test_nothing_is_shown_without_gpus_or_where_they_are_declared(
    machine: Path, tmp_path: Path
) -> None:
    assert device_files(str(tmp_path), run_of([0]), str(machine)) == []
    (tmp_path / "devices.json").touch()
    assert device_files(str(tmp_path), run_of([0], ["0"]), str(machine)) == []


def test_a_run_that_names_its_gpus_gets_their_files_whatever_its_numbers_are(
    machine: Path, tmp_path: Path
) -> None:
    found = device_files(str(tmp_path), run_of([7], ["GPU-1"]), str(machine))

    assert found == ["/dev/nvidia1", *COMMON, *caps(147)]


@pytest.mark.parametrize(
    "run", [run_of([7], ["0"]), run_of([0], version=2)], ids=["by-index", "version-2"]
)
def test_a_gpu_without_a_uuid_is_named_by_its_index(
    machine: Path, tmp_path: Path, run: RunSpec
) -> None:
    found = device_files(str(tmp_path), run, str(machine))

    assert found == ["/dev/nvidia1", *COMMON, *caps(147)]


def test_an_index_is_the_number_where_the_kernel_has_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia3").touch()

    assert device_files(str(tmp_path), run_of([1], ["3"]), str(tmp_path)) == ["/dev/nvidia3"]


def test_a_gpu_without_a_uuid_in_the_kernel_s_file_is_found_by_its_address(
    machine: Path, tmp_path: Path
) -> None:
    for address, uuid in zip(ADDRESSES, ("GPU UUID: \t GPU-????????-????\n", ""), strict=True):
        path = machine / "proc/driver/nvidia/gpus" / address / "information"
        number = path.read_text().split()[-1]
        path.write_text(f"{uuid}Device Minor: \t {number}\n")
    gpus = [Gpu(n, f"GPU-{1 - n}", "A100", address) for n, address in enumerate(ADDRESSES)]
    driver.store(str(tmp_path), driver.Answer("nvml", Reading(gpus)))

    found = device_files(str(tmp_path), run_of([0, 1], ["GPU-1", "GPU-0"]), str(machine))

    assert found[:2] == ["/dev/nvidia1", "/dev/nvidia0"]


def test_a_run_on_an_instance_gets_the_files_of_this_instance_only(
    machine: Path, tmp_path: Path
) -> None:
    gpus = [
        Gpu(2, "MIG-a", "A100", ADDRESSES[1], instance="9/1"),
        Gpu(3, "MIG-b", "A100", ADDRESSES[1], instance="7/0"),
    ]
    driver.store(str(tmp_path), driver.Answer("nvml", Reading(gpus)))

    one = device_files(str(tmp_path), run_of([0], ["MIG-a"]), str(machine))
    both = device_files(str(tmp_path), run_of([0, 1], ["MIG-a", "MIG-b"]), str(machine))

    assert one == ["/dev/nvidia0", *COMMON, *caps(84, 86)]
    assert both == ["/dev/nvidia0", *COMMON, *caps(84, 86, 66, 67)]


def test_a_gpu_that_is_gone_ends_the_start(machine: Path, tmp_path: Path) -> None:
    # The address of its place now has another GPU.
    gpus = [Gpu(0, "GPU-9", "A100", ADDRESSES[0])]
    driver.store(str(tmp_path), driver.Answer("nvml", Reading(gpus)))

    with pytest.raises(ProtocolError, match="GPU-9") as refused:
        device_files(str(tmp_path), run_of([0, 1], ["GPU-1", "GPU-9"]), str(machine))

    assert (refused.value.code, refused.value.failure) == ("gpu-missing", protocol.NODE)
