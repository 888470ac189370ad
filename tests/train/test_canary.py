"""The test of a job's GPUs finds faults, with stand-ins of the libraries of the driver."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tessera.node.gpus import LOST, Gpu, Health, Reading
from tessera.train.canary import (
    GpuFailedError,
    NotTestedError,
    check_counters,
    check_dcgm,
    own_gpus,
)

ROOT = Path(__file__).parents[2]
STUBS = {"libcuda.so.1": "cuda_stub.c", "libnvidia-ml.so.1": "nvml_stub.c"}
DISCOVERY = """2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:1B:00.0                                         |
|        | Device UUID: GPU-a                                                   |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:1C:00.0                                         |
|        | Device UUID: GPU-b                                                   |
+--------+----------------------------------------------------------------------+
"""
"""Constructed in the form of NVIDIA's user guide of DCGM."""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    place = tmp_path_factory.mktemp("stubs")
    for library, source in STUBS.items():
        path = ROOT / "tests" / "fixtures" / source
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", place / library, path], check=True)
    return place


def canary(stubs: Path, tmp_path: Path, **variables: str) -> tuple[int, str, dict[str, object]]:
    """The exit code, the last line and the report of the program."""
    reports = tmp_path / "reports"
    done = subprocess.run(
        [sys.executable, "-m", "tessera.train.canary", "--seconds", "60"],
        env={
            "PATH": f"{stubs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "LD_LIBRARY_PATH": str(stubs),
            "CUDA_VISIBLE_DEVICES": "GPU-stub-0",
            "TESSERA_JOB_REPORTS": str(reports),
            **variables,
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    (report,) = [json.loads(line) for line in reports.read_text().splitlines()]
    return done.returncode, done.stdout.splitlines()[-1], report


def test_all_memory_of_a_sound_gpu_is_tested_with_all_patterns(
    stubs: Path, tmp_path: Path
) -> None:
    code, line, report = canary(stubs, tmp_path, STUB_CUDA_FREE=str(1 << 20))

    assert (code, line) == (0, "canary: passed")
    assert (report["event"], report["result"], report["patterns"]) == ("canary", "passed", 4)
    tested = report["bytes"]
    assert isinstance(tested, int)
    assert 0.94 <= tested / (1 << 20) <= 0.951
    assert report["dcgm"] == "not installed"


def test_fragmented_memory_is_tested_in_smaller_parts(stubs: Path, tmp_path: Path) -> None:
    code, _, report = canary(stubs, tmp_path, STUB_CUDA_LEAST=str(100_000))

    assert code == 0
    tested = report["bytes"]
    assert isinstance(tested, int)
    assert 0.94 <= tested / (1 << 20) <= 0.951


SMALL = {"STUB_CUDA_LEAST": "100000"}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({**SMALL, "STUB_CUDA_STUCK": "0"}, "GPU GPU-stub-0: memory at 0x"),
        ({**SMALL, "STUB_CUDA_STUCK": "9"}, "GPU GPU-stub-0: memory at 0x"),
        ({**SMALL, "STUB_CUDA_ALIAS": "3"}, "GPU GPU-stub-0: memory at 0x"),
        ({**SMALL, "STUB_CUDA_BROKEN": "cuMemcpyDtoD_v2"}, "GPU GPU-stub-0: memory at 0x"),
        ({"STUB_CUDA_BROKEN": "cuInit"}, "cuInit fails with code 719: stand-in error"),
        ({"STUB_CUDA_BROKEN": "cuMemsetD32_v2"}, "GPU GPU-stub-0: cuMemsetD32_v2 fails with code"),
        ({"STUB_CUDA_GPUS": "0"}, "CUDA finds 0 of 1 GPUs"),
        ({"STUB_NVML_ERRORS": "1"}, "GPU GPU-stub-0: uncorrectable memory errors during the test"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-stub-1"}, "GPU GPU-stub-1: reset-required"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-9"}, "the driver does not find GPU GPU-9"),
    ],
)
def test_a_fault_is_found_and_named(
    stubs: Path, tmp_path: Path, fault: dict[str, str], cause: str
) -> None:
    code, line, report = canary(stubs, tmp_path, **fault)

    assert (code, report["result"]) == (1, "failed")
    assert line.startswith(f"canary: {cause}")
    assert report["cause"] == line.removeprefix("canary: ")


@pytest.mark.parametrize(
    ("missing", "cause"),
    [
        ({"STUB_CUDA_FREE": "0"}, "GPU 0 has no free memory"),
        ({"LD_LIBRARY_PATH": ""}, "neither NVML nor nvidia-smi finds a GPU"),
    ],
)
def test_a_test_that_could_not_run_is_no_failure(
    stubs: Path, tmp_path: Path, missing: dict[str, str], cause: str
) -> None:
    code, line, report = canary(stubs, tmp_path, **missing)

    assert (code, line, report["result"]) == (2, f"canary: {cause}", "untested")


def test_a_fault_that_was_there_before_is_no_failure_of_the_memory_test() -> None:
    old = Gpu(0, "GPU-a", "A100", "", health=Health(ecc_uncorrectable=2))

    check_counters([old], [old])
    with pytest.raises(GpuFailedError, match="during the test"):
        check_counters([old], [old._replace(health=Health(ecc_uncorrectable=3))])
    with pytest.raises(GpuFailedError, match="lost"):
        check_counters([old], [old._replace(health=Health(fault=LOST))])
    with pytest.raises(NotTestedError):
        own_gpus(None, [])
    assert own_gpus(Reading([old]), ["0"]) == [old]


class Dcgm:
    """A stand-in for ``dcgmi`` with the output of the diagnostics."""

    def __init__(self, code: int, text: str, discovery: tuple[int, str] = (0, DISCOVERY)) -> None:
        self._diagnostics, self._discovery = (code, text), discovery
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str]) -> tuple[int, str]:
        self.asked.append(" ".join(command))
        return self._discovery if command[1] == "discovery" else self._diagnostics


GPUS = [Gpu(1, "GPU-b", "H100", ""), Gpu(0, "GPU-a", "H100", "")]


def test_the_diagnostics_of_dcgm_run_on_the_gpus_of_the_job() -> None:
    dcgm = Dcgm(0, "| Software  | Pass - All |")

    assert check_dcgm(GPUS, dcgm) == "passed"
    assert dcgm.asked == ["dcgmi discovery -l", "dcgmi diag -r 1 -i 1,0"]


@pytest.mark.parametrize("code", [0, 226])
def test_a_failed_diagnostic_is_named(code: int) -> None:
    text = "| Denylist | Pass |\n| PCIe      | Fail - GPU: 1 |\n+------+\n"

    with pytest.raises(GpuFailedError, match=r"DCGM: PCIe \| Fail - GPU: 1"):
        check_dcgm(GPUS, Dcgm(code, text))


@pytest.mark.parametrize(
    ("discovery", "said"),
    [
        ((127, ""), "not installed"),
        ((245, "Error: unable to connect\n"), "not available: Error: unable to connect"),
        ((0, "0 GPUs found.\n"), "does not list the GPUs"),
    ],
)
def test_dcgm_that_cannot_run_is_no_failure(discovery: tuple[int, str], said: str) -> None:
    assert check_dcgm(GPUS, Dcgm(1, "", discovery)) == said
