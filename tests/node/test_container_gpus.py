"""Whether containers get the node's GPUs is tried, and a missing part is named."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tessera import hardware
from tessera.hardware import Condition
from tessera.inventory import BY_CDI_INDEX, BY_CDI_UUID, BY_DEVICE_REQUEST, Device
from tessera.node import driver, probe
from tessera.node.container_gpus import CLIENT, HOOK, NoGpuAccessError, cdi_names, gpu_access
from tessera.node.engine import DOCKER, PODMAN, Engine

GPUS = [Device(index, "A100", [0, 0], uuid) for index, uuid in enumerate(("GPU-aa", "GPU-bb"))]
YAML = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: "1"
  containerEdits: {}
- name: all
"""


def engine(kind: str = DOCKER, version: str = "24.0.7", **more: object) -> Engine:
    return Engine("/run/engine.sock", kind, version, rootless=False)._replace(**more)  # type: ignore[arg-type]


def specification(directory: Path, names: Sequence[str], kind: str = "nvidia.com/gpu") -> None:
    document = {"kind": kind, "devices": [{"name": name} for name in names]}
    (directory / f"{kind.replace('/', '-')}.json").write_text(json.dumps(document))


def program(directory: Path, name: str, script: str = "exit 0") -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which programs are found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def works(_command: Sequence[str]) -> str:
    return ""


def test_an_engine_with_the_runtime_of_the_toolkit_takes_device_requests(tools: Path) -> None:
    found = engine(runtimes=("runc", "nvidia"))

    assert gpu_access(found, GPUS, works, directories=[]) == BY_DEVICE_REQUEST


def test_the_hook_of_the_toolkit_is_enough(tools: Path) -> None:
    program(tools, HOOK)

    assert gpu_access(engine(), GPUS, works, directories=[]) == BY_DEVICE_REQUEST


def test_an_engine_without_the_toolkit_gives_no_gpus(tools: Path) -> None:
    with pytest.raises(NoGpuAccessError, match=HOOK):
        gpu_access(engine(), GPUS, works, directories=[])


def test_a_toolkit_that_fails_is_named_with_its_own_message(tools: Path) -> None:
    program(tools, CLIENT)
    message = "initialization error: driver rpc error: timed out"

    with pytest.raises(NoGpuAccessError, match=message):
        gpu_access(engine(runtimes=("nvidia",)), GPUS, lambda _command: message, directories=[])


def test_a_cdi_specification_names_gpus_by_uuid_or_by_index(tools: Path) -> None:
    podman = engine(PODMAN, "5.4.0")

    specification(tools, ["0", "1", "all"])
    assert gpu_access(podman, GPUS, works, directories=[str(tools)]) == BY_CDI_INDEX
    specification(tools, ["GPU-aa", "GPU-bb", "all"])
    assert gpu_access(podman, GPUS, works, directories=[str(tools)]) == BY_CDI_UUID


def test_a_specification_that_lacks_a_gpu_is_no_access(tools: Path) -> None:
    specification(tools, ["GPU-aa", "0"])

    with pytest.raises(NoGpuAccessError, match="names all GPUs"):
        gpu_access(engine(PODMAN, "5.4.0"), GPUS, works, directories=[str(tools)])


@pytest.mark.parametrize("version", ["4.3.1", "5.3.2", "unknown"])
def test_a_podman_that_ignores_gpu_requests_is_no_access(tools: Path, version: str) -> None:
    specification(tools, ["GPU-aa", "GPU-bb"])

    with pytest.raises(NoGpuAccessError, match=r"before 5\.4"):
        gpu_access(engine(PODMAN, version), GPUS, works, directories=[str(tools)])


def test_docker_with_cdi_prefers_it_and_falls_back_to_the_runtime(tools: Path) -> None:
    found = engine(runtimes=("nvidia",), has_cdi=True)

    assert gpu_access(found, GPUS, works, directories=[str(tools)]) == BY_DEVICE_REQUEST
    specification(tools, ["GPU-aa", "GPU-bb"])
    assert gpu_access(found, GPUS, works, directories=[str(tools)]) == BY_CDI_UUID


def test_names_are_read_from_json_and_yaml_of_the_right_kind(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(YAML)
    specification(tmp_path, ["intel0"], kind="intel.com/gpu")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "notes.txt").write_text('kind: nvidia.com/gpu\nname: "7"\n')

    assert cdi_names([str(tmp_path), str(tmp_path / "missing")]) == {"0", "1", "all"}


def test_the_tool_of_the_toolkit_is_not_run_while_the_driver_hangs(tools: Path) -> None:
    # Under the lock of the driver, whose descriptor it inherits.
    program(tools, CLIENT, f"/bin/ls -l /proc/self/fd >{tools}/ran; echo no driver; exit 1")
    docker, root = engine(runtimes=("nvidia",)), str(tools)
    found = probe.Found(GPUS, ["node", "device"])
    hung = found._replace(conditions=[Condition(hardware.DRIVER_HUNG)])

    first = probe.access_of_containers(root, docker, hung)
    has_run = (tools / "ran").exists()
    second = probe.access_of_containers(root, docker, found)
    held = driver.LOCK_FILE in (tools / "ran").read_text()
    (tools / "ran").unlink()
    third = probe.access_of_containers(root, docker, hung)

    assert first == (BY_DEVICE_REQUEST, "")
    assert second == third == ("", f"{CLIENT} info fails: no driver")
    assert (has_run, held, (tools / "ran").exists()) == (False, True, False)
