"""What a node has is read from a declaration or from the driver, and never invented."""

import json
import os
import stat
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera.node import probe
from tessera.protocol import Inventory, ProtocolError

DECLARATION = {
    "levels": ["node", "socket", "pcie", "device"],
    "cpus": 32,
    "memory_bytes": 64 << 30,
    "devices": [
        {"type": kind, "path": [socket, pcie]}
        for socket, kind in enumerate(("cpu-large", "cpu-small"))
        for pcie in range(2)
        for _ in range(2)
    ],
}

TOPO_NVLINK = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-31,64-95\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tSYS\t0-31,64-95\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t32-63,96-127\t1\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63,96-127\t1\t\tN/A
NIC0\tPXB\tSYS\tSYS\tSYS\t X

Legend:
  X    = Self
"""

TOPO_PLAIN = """
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity
GPU0\t X \tPIX\tPHB\tSYS\t0-7
GPU1\tPIX\t X \tPHB\tSYS\t0-7
GPU2\tPHB\tPHB\t X \tSYS\t0-7
GPU3\tSYS\tSYS\tSYS\t X \t8-15
"""


def declare(home: Path, declaration: object) -> None:
    root = home / ".tessera"
    root.mkdir(exist_ok=True)
    (root / "devices.json").write_text(json.dumps(declaration))


def test_declared_devices_keep_their_types_and_their_tree(home: Path) -> None:
    declare(home, DECLARATION)

    inventory = probe.inventory(str(home / ".tessera"))

    assert [device.path for device in inventory.devices] == [
        [0, 0], [0, 0], [0, 1], [0, 1], [1, 2], [1, 2], [1, 3], [1, 3],
    ]  # fmt: skip
    assert [device.index for device in inventory.devices] == list(range(8))
    assert {device.type for device in inventory.devices} == {"cpu-large", "cpu-small"}
    assert all(device.declared for device in inventory.devices)
    assert (inventory.cpus, inventory.memory_bytes) == (32, 64 << 30)
    assert Inventory.from_json(inventory.to_json()) == inventory


@pytest.mark.parametrize(
    ("declaration", "named"),
    [
        ([], "object"),
        ({"devices": [{"type": "a", "path": [0]}]}, r"devices\[0\]\.path"),
        ({"devices": [{"path": [0, 0]}]}, r"devices\[0\]\.type"),
        ({"devices": [{"type": "a", "path": [0, 0], "x": 1}]}, r"devices\[0\]\.x"),
        ({"levels": ["node"]}, "levels"),
        ({"levels": ["node", "node"]}, "levels"),
        ({"cpus": "many"}, "cpus"),
        ({"gpus": 8}, "gpus"),
    ],
)
def test_a_malformed_declaration_is_refused_by_field(declaration: object, named: str) -> None:
    with pytest.raises(ProtocolError, match=named):
        probe.read_declaration(declaration)


def test_a_node_with_a_malformed_declaration_has_no_devices_and_says_why(home: Path) -> None:
    declare(home, {"devices": [{"path": [0, 0]}]})

    inventory = probe.inventory(str(home / ".tessera"))

    assert inventory.devices == []
    assert "devices[0].type" in inventory.warnings[0]


def test_the_matrix_of_a_machine_with_nvlink_is_read() -> None:
    assert probe.read_topology(TOPO_NVLINK, 4) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_the_matrix_of_a_machine_with_switches_is_read() -> None:
    assert probe.read_topology(TOPO_PLAIN, 4) == [(0, 0), (0, 0), (0, 2), (3, 3)]


@pytest.mark.parametrize("text", ["", "GPU0 X", "No devices were found"])
def test_a_matrix_that_is_none_is_not_guessed(text: str) -> None:
    assert probe.read_topology(text, 2) is None


def test_gpus_are_what_the_driver_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = home / "nvidia-smi"
    rows = "0, GPU-aa, NVIDIA H200, 143771, 570.86.15, 00000000:FF:1F.0\n"
    rows += "1, GPU-bb, NVIDIA H200, 143771, 570.86.15, 00000000:FF:1F.1\n"
    topology = "GPU0\tX\tPIX\t0-7\t0\nGPU1\tPIX\tX\t0-7\t0\n"
    smi.write_text(
        '#!/bin/sh\ncase "$1" in\n'
        f"--query-gpu=*utilization*) echo '0, 50, 1024, 143771, 40, [N/A]';;\n"
        f"--query-gpu*) printf '{rows}';;\ntopo) printf '{topology}';;\nesac\n"
    )
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")

    inventory = probe.inventory(str(home))

    assert [device.type for device in inventory.devices] == ["NVIDIA-H200"] * 2
    assert [device.path for device in inventory.devices] == [[0, 0], [0, 0]]
    assert inventory.devices[0].memory_bytes == 143771 << 20
    assert inventory.devices[1].uuid == "GPU-bb"
    assert inventory.driver == "570.86.15"
    assert not inventory.devices[0].declared


def test_one_lost_gpu_takes_no_other_with_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # nvidia-smi lists the GPUs that answer, names the lost one, and exits with 15.
    smi = home / "nvidia-smi"
    lost = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost."
    row = "GPU-%s, NVIDIA A100-SXM4-80GB, 81920, 535.54, 00000000:FF:1F.0"
    rows = "\n".join(f"{index}, {row % name}" for index, name in ((0, "aa"), (2, "cc")))
    smi.write_text(
        f"#!/bin/sh\ncase \"$1\" in\n--query-gpu*) echo '{rows}'; echo '{lost}' >&2; exit 15;;\n"
        "*) exit 15;;\nesac\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")

    inventory = probe.inventory(str(home))

    assert [(one.index, one.uuid) for one in inventory.devices] == [(0, "GPU-aa"), (2, "GPU-cc")]
    assert f"nvidia-smi ends with code 15: {lost}" in inventory.warnings


def test_a_machine_with_nothing_has_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))

    inventory = probe.inventory(str(home))

    assert inventory.devices == []
    assert inventory.cpus >= 1
    assert inventory.memory_bytes > 0


def test_the_load_of_a_declared_device_is_that_of_its_runs(session: Session) -> None:
    session.ask("hello", protocol=1)
    declare(session.home, {**DECLARATION, "cpus": 8})
    spec = make_spec("while :; do :; done", devices=[3])
    session.start(spec)
    first = session.ask("telemetry")["telemetry"]
    assert {device["utilisation"] for device in first["devices"]} == {None}

    def busy() -> bool:
        devices = session.ask("telemetry")["telemetry"]["devices"]
        loads = [device["utilisation"] for device in devices]
        assert max(loads[:3] + loads[4:]) == 0.0
        return 0.05 < loads[3] <= 1.0 and devices[3]["memory_used_bytes"] > 0

    wait_until(busy, "load on device 3 alone")


def test_a_new_session_knows_the_memory_of_runs_at_once(home: Path, session: Session) -> None:
    session.ask("hello", protocol=1)
    declare(home, DECLARATION)
    session.start(make_spec("sleep 60", devices=[3]))

    after = Session(home)
    after.ask("hello", protocol=1)
    first = after.ask("telemetry")["telemetry"]["devices"]
    after.close()

    assert first[3]["memory_used_bytes"] > 0
    assert first[2]["memory_used_bytes"] == 0


def test_probe_goes_over_the_session(shared: Session) -> None:
    inventory = Inventory.from_json(shared.ask("probe")["inventory"])

    assert inventory.boot_id
    assert inventory.python
