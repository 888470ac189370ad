"""What a node has is read from a declaration or from the driver, and never invented."""

import json
import os
from pathlib import Path

import pytest
from machines import A40_PAIRS, CLOUD_T4, LOST, write_smi
from session import Session, make_spec, wait_until

from tessera import hardware
from tessera.hardware import Condition
from tessera.node import gpu_topology, probe
from tessera.node.smi import read_topology
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
    assert read_topology(TOPO_NVLINK, 4) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def test_the_matrix_of_a_machine_with_switches_is_read() -> None:
    assert read_topology(TOPO_PLAIN, 4) == [(0, 0), (0, 0), (0, 2), (3, 3)]


@pytest.mark.parametrize("text", ["", "GPU0 X", "No devices were found"])
def test_a_matrix_that_is_none_is_not_guessed(text: str) -> None:
    assert read_topology(text, 2) is None


@pytest.fixture
def smi(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a stand-in ``nvidia-smi``, which is the only reader."""
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    return home / "nvidia-smi"


def test_gpus_are_what_the_driver_says(home: Path, smi: Path) -> None:
    write_smi(CLOUD_T4, smi)

    inventory = probe.inventory(str(home))

    assert [device.type for device in inventory.devices] == ["Tesla-T4"] * 4
    assert [device.path for device in inventory.devices] == [[0, 0], [0, 1], [0, 2], [0, 3]]
    first, second = inventory.devices[:2]
    assert (first.memory_bytes, second.uuid, first.declared) == (
        15360 << 20,
        CLOUD_T4.boards[1].uuid,
        False,
    )
    assert (first.serial, first.pci_address) == ("1324220042", "0000:07:00.0")
    assert (inventory.driver, inventory.cuda, inventory.reader) == (
        "470.57.02",
        "11.4",
        "nvidia-smi",
    )
    assert Inventory.from_json(inventory.to_json()) == inventory


def test_one_lost_gpu_takes_no_other_with_it(home: Path, smi: Path) -> None:
    # nvidia-smi lists the GPUs that answer, names the lost one, and exits with 15.
    write_smi(CLOUD_T4.change(1, fault=LOST), smi)

    inventory = probe.inventory(str(home))

    lost = CLOUD_T4.boards[1].bus_id[4:]
    assert [one.uuid for one in inventory.devices] == [
        board.uuid for board in CLOUD_T4.boards if board != CLOUD_T4.boards[1]
    ]
    assert f"ends with code 15: Unable to determine the device handle for GPU{lost}" in str(
        inventory.warnings
    )
    assert inventory.conditions == [Condition(hardware.LOST, pci_address=lost.lower())]


def test_the_numa_nodes_of_one_package_are_one_socket(tmp_path: Path) -> None:
    # A DGX A100 in NPS4: each of two packages has four NUMA nodes, two of them with GPUs.
    system = tmp_path / "sys/devices/system"
    addresses = []
    for package, node in ((0, 1), (0, 3), (1, 5), (1, 7)):
        (system / f"node/node{node}").mkdir(parents=True)
        (system / f"node/node{node}/cpulist").write_text(f"{node * 16}-{node * 16 + 15},200\n")
        topology = system / f"cpu/cpu{node * 16}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        address = f"0000:{node:02x}:00.0"
        device = tmp_path / f"sys/devices/pci0000:{node:02x}/0000:{node:02x}:01.0" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        bus = tmp_path / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / address).symlink_to(device)
        addresses.append(address)

    assert probe.sysfs_paths(addresses, str(tmp_path)) == [(0, 0), (0, 1), (1, 2), (1, 3)]


NO_LINK = [-1] * 8
PAIRS = [0, 0, 2, 2, 4, 4, 6, 6]
IN_SOCKETS = [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("pcie", "numa", "nvlink", "levels"),
    [
        # A DGX A100 in NPS1 and in NPS4: the switches are one domain, the node.
        (PAIRS, IN_SOCKETS, [0] * 8, ["socket", "pcie"]),
        (PAIRS, [3, 3, 1, 1, 7, 7, 5, 5], [0] * 8, ["socket", "pcie"]),
        # NUMA nodes that are neither sockets nor PCIe groups.
        (list(range(8)), PAIRS, NO_LINK, ["socket", "numa", "pcie"]),
        # Bridged pairs: of one switch, of two switches, and across switches.
        (PAIRS, IN_SOCKETS, PAIRS, ["socket", "nvlink+pcie"]),
        (list(range(8)), IN_SOCKETS, PAIRS, ["socket", "nvlink", "pcie"]),
        (PAIRS, IN_SOCKETS, [0, 1, 0, 1, 4, 5, 4, 5], ["socket", "nvlink"]),
        # Islands of the sockets, and domains that cross sockets.
        (PAIRS, IN_SOCKETS, IN_SOCKETS, ["socket+nvlink", "pcie"]),
        (list(range(8)), None, [0, 1, 2, 3] * 2, ["nvlink", "pcie"]),
    ],
)
def test_nvlink_and_numa_are_levels_where_they_divide_the_gpus(
    pcie: list[int],
    numa: list[int] | None,
    nvlink: list[int],
    levels: list[str],
) -> None:
    pairs = list(zip(IN_SOCKETS, pcie, strict=True))

    found, paths = gpu_topology.nested_levels(pairs, numa, nvlink)

    assert found == levels
    assert [len(path) for path in paths] == [len(levels)] * 8
    for above, below in zip(range(len(levels)), range(1, len(levels)), strict=False):
        cells = {path[below]: path[above] for path in paths}
        assert all(cells[path[below]] == path[above] for path in paths)
    assert len({path[-1] for path in paths}) == len({*_labels(found[-1], pcie, numa, nvlink)})


def _labels(level: str, pcie: list[int], numa: list[int] | None, nvlink: list[int]) -> list[int]:
    return nvlink if "nvlink" in level else pcie if level == "pcie" else numa or []


def test_gpus_of_one_root_bridge_are_divided_by_their_switches(tmp_path: Path) -> None:
    # One root bridge with two switches of two GPUs each, and one GPU at a port of its own.
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    addresses = []
    for number, port in enumerate([1, 1, 2, 2]):
        address = f"0000:{port}{number}:00.0"
        switch = f"0000:00:0{port}.0/0000:{port}0:00.0/0000:{port}1:0{number}.0"
        device = tmp_path / f"sys/devices/pci0000:00/{switch}/{address}"
        device.mkdir(parents=True)
        (bus / address).symlink_to(device)
        addresses.append(address)
    direct = tmp_path / "sys/devices/pci0000:00/0000:00:03.0/0000:30:00.0"
    direct.mkdir(parents=True)
    (bus / "0000:30:00.0").symlink_to(direct)

    found = gpu_topology.switch_groups([*addresses, "0000:30:00.0"], str(tmp_path))

    assert found == [0, 0, 2, 2, 4]
    assert gpu_topology.switch_groups(["0000:30:00.0", addresses[0]], str(tmp_path)) is None
    pairs, alone = [(0, 0)] * 4, [-1] * 4
    levels, paths = gpu_topology.nested_levels(pairs, None, alone, switches=[0, 0, 2, 2])
    assert levels == ["socket", "pcie", "switch"]
    assert [path[2] for path in paths] == [0, 0, 2, 2]
    linked, _ = gpu_topology.nested_levels(pairs, None, [0, 0, 2, 2], switches=[0, 0, 2, 2])
    assert linked == ["socket", "pcie", "nvlink+switch"]


def test_bridged_pairs_are_cells_of_the_inventory(home: Path, smi: Path) -> None:
    write_smi(A40_PAIRS, smi)

    inventory = probe.inventory(str(home))

    assert inventory.levels == ["node", "socket", "nvlink", "pcie", "device"]
    assert [device.nvlink for device in inventory.devices] == PAIRS
    assert [device.path[1] for device in inventory.devices] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert Inventory.from_json(inventory.to_json()) == inventory


def test_domains_that_cannot_be_read_are_those_of_the_last_reading(home: Path, smi: Path) -> None:
    write_smi(A40_PAIRS, smi)
    probe.inventory(str(home))
    (smi.parent / f"{smi.name}.outputs" / "topo").write_text("Failed to read the topology")

    inventory = probe.inventory(str(home))

    assert [device.nvlink for device in inventory.devices] == PAIRS


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
