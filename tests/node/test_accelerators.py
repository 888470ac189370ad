"""GPUs of AMD and NPUs of Ascend: the probe reads recorded outputs, and a job gets its own files.

``tests/fixtures/accelerators/README.md`` lists where each recorded output comes from.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from session import ALICE, ROOT, SUDO, make_spec, node

from tessera import hardware
from tessera.hardware import AMD, ASCEND, Condition, vendor_of
from tessera.inventory import BY_FILES, Device, Inventory
from tessera.isolation import NAMESPACE, USER
from tessera.node import accelerators, ascend, driver, gpu_health, probe
from tessera.node.amd import AmdSmiReader, RocmSmiReader
from tessera.node.ascend import NpuSmiReader
from tessera.node.container_gpus import NoGpuAccessError, gpu_access
from tessera.node.engine import DOCKER, PODMAN, Engine
from tessera.node.gpus import Gpu, GpuProcess, Reader, Reading
from tessera.node.plans import device_files
from tessera.node.sandbox_root import groups_of
from tessera.protocol import PROBE, ProtocolError

RECORDED = Path(__file__).parents[1] / "fixtures" / "accelerators"
ADDRESSES = ("0000:2f:00.0", "0000:32:00.0", "0000:b1:00.0", "0000:b6:00.0")
UUIDS = [
    "GPU-5c1d0e7a39b2f4e1",
    "GPU-5c1d0e7a39b2f4e2",
    "GPU-91f3a6c2d80b7755",
    "GPU-91f3a6c2d80b7756",
]
SCRIPTS = {
    "rocm-smi": """case "$*" in
*--showtopotype*) cat {0}/showtopotype.json;;
*) cat {0}/shown.json;;
esac""",
    "amd-smi": "cat {0}/$1.json",
    "npu-smi": """case "$*" in
"info") cat {0}/info.txt;;
"info -m") cat {0}/info-m.txt 2>/dev/null;;
"info -t topo") cat {0}/topo.txt 2>/dev/null;;
"info -t board -i "*" -c "*) cat {0}/board-$5-$7.txt 2>/dev/null;;
"info -t board -i "*) cat {0}/board-$5.txt 2>/dev/null;;
esac""",
}
READERS: dict[str, Callable[[], Reader]] = {
    "rocm-smi": RocmSmiReader,
    "amd-smi": AmdSmiReader,
    "npu-smi": NpuSmiReader,
}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory at the head of the path, for stand-ins of the tools."""
    place = tmp_path / "tools"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return place


def install(tools: Path, name: str, recorded: Path) -> Reader:
    program = tools / name
    program.write_text(f"#!/bin/sh\n{SCRIPTS[name].format(recorded)}\n")
    program.chmod(0o755)
    return READERS[name]()


def read(reader: Reader, *, in_detail: bool = True) -> Reading:
    reading = reader.read(in_detail=in_detail)
    assert reading is not None
    return reading


# -- AMD -----------------------------------------------------------------------------------------


@pytest.fixture(params=["rocm-smi", "amd-smi"])
def amd_tool(request: pytest.FixtureRequest, tools: Path) -> tuple[str, Reader]:
    name = str(request.param)
    return name, install(tools, name, RECORDED / f"mi250-{name}")


def test_both_tools_of_amd_report_the_same_facts(amd_tool: tuple[str, Reader]) -> None:
    name, reader = amd_tool
    reading = read(reader)

    assert [gpu.uuid for gpu in reading.gpus] == UUIDS
    assert tuple(gpu.pci_address for gpu in reading.gpus) == ADDRESSES
    assert [gpu.position for gpu in reading.gpus] == [0, 1, 2, 3]
    for number, gpu in enumerate(reading.gpus):
        assert (gpu.utilisation, gpu.temperature) == (number / 10, 35 + number)
        assert (gpu.power, gpu.memory_bytes) == (89 + number, 65520 << 20)
        assert gpu.memory_used_bytes is not None
        assert gpu.memory_used_bytes >> 20 == 10
        assert gpu.serial == f"PCB052715-006{number // 2}"
    assert "MI250" in reading.gpus[0].name
    assert reading.driver == {"rocm-smi": "6.2.4", "amd-smi": "6.8.5"}[name]
    assert reader.nvlink_domains(reading.gpus) == [0, 0, 2, 2]
    assert vendor_of(reader.name) == AMD


def test_amd_smi_reports_memory_errors_and_processes(tools: Path) -> None:
    reading = read(install(tools, "amd-smi", RECORDED / "mi250-amd-smi"))

    assert gpu_health.conditions(reading, []) == [
        Condition(
            hardware.ECC_UNCORRECTABLE, "2 since the driver was loaded", UUIDS[3], ADDRESSES[3]
        )
    ]
    assert reading.processes == [GpuProcess(UUIDS[1], 15910, 1 << 30)]


def test_a_name_of_two_gpus_identifies_neither(tools: Path, tmp_path: Path) -> None:
    own = tmp_path / "recorded"
    shutil.copytree(RECORDED / "mi250-rocm-smi", own)
    shown = own / "shown.json"
    shown.write_text(shown.read_text().replace("0x5c1d0e7a39b2f4e2", "0x5c1d0e7a39b2f4e1"))

    reading = read(install(tools, "rocm-smi", own))

    assert [gpu.uuid for gpu in reading.gpus] == ["", "", *UUIDS[2:]]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"gpu_data": 7}', '[{"gpu": "x"}, 3]', "no permission\n{"]
)
@pytest.mark.parametrize("name", ["rocm-smi", "amd-smi", "npu-smi"])
def test_a_tool_without_a_gpu_is_no_reader(
    tools: Path, tmp_path: Path, name: str, text: str
) -> None:
    own = tmp_path / "recorded"
    own.mkdir()
    for file in ("shown.json", "static.json", "info.txt", "info-m.txt"):
        (own / file).write_text(text)

    reader = install(tools, name, own)

    assert reader.read(in_detail=True) is None
    assert reader.nvlink_domains([]) in (None, [])


def test_values_of_other_forms_are_unknown(tools: Path, tmp_path: Path) -> None:
    own = tmp_path / "recorded"
    own.mkdir()
    (own / "static.json").write_text(
        json.dumps(
            [{"gpu": 0, "asic": "N/A", "bus": {"bdf": 3}, "board": {"product_serial": "0"}}]
        )
    )
    (own / "metric.json").write_text(
        json.dumps([{"gpu": 0, "usage": {"gfx_activity": "N/A"}, "ecc": [1], "power": {}}])
    )

    (gpu,) = read(install(tools, "amd-smi", own)).gpus

    assert gpu == Gpu(0, "", "AMD GPU", "")


# -- Ascend --------------------------------------------------------------------------------------


def test_npus_are_read_from_the_tables(tools: Path) -> None:
    reader = install(tools, "npu-smi", RECORDED / "ascend-910b")
    reading = read(reader)

    assert (reading.driver, vendor_of(reader.name)) == ("23.0.rc2", ASCEND)
    assert [gpu.name for gpu in reading.gpus] == ["Ascend 910B1"] * 8
    third = reading.gpus[2]
    assert third.uuid == "NPU-7d0c8202-206031f3-79d0cc64-14c48c0a-de1000da"
    assert (third.serial, third.pci_address, third.file_number) == (
        "1023A6004712",
        "0000:c2:00.0",
        2,
    )
    assert (third.utilisation, third.temperature, third.power) == (0.15, 46, 90.4)
    assert (third.memory_bytes, third.memory_used_bytes) == (65536 << 20, 4175 << 20)
    assert reader.nvlink_domains(reading.gpus) == [0] * 8
    assert reading.processes == [GpuProcess(third.uuid, 1443244, 3981 << 20)]
    found = gpu_health.conditions(reading, [])
    assert [(one.code, one.detail, one.uuid) for one in found] == [
        (hardware.DEVICE_WARNING, "Warning", reading.gpus[5].uuid),
        (hardware.DEVICE_ALARM, "Alarm", reading.gpus[6].uuid),
    ]


def test_memory_of_the_first_910_is_in_its_last_column(tools: Path) -> None:
    reading = read(install(tools, "npu-smi", RECORDED / "ascend-910"))

    assert [gpu.memory_bytes for gpu in reading.gpus] == [32768 << 20] * 4
    assert [gpu.uuid for gpu in reading.gpus] == [""] * 4
    assert [gpu.file_number for gpu in reading.gpus] == [0, 1, 2, 3]


def test_each_die_of_a_card_is_a_device_with_a_number_of_its_own(tools: Path) -> None:
    reading = read(install(tools, "npu-smi", RECORDED / "ascend-910c"))

    assert [gpu.name for gpu in reading.gpus] == ["Ascend910"] * 4
    assert [gpu.position for gpu in reading.gpus] == [0, 1, 2, 3]
    assert [gpu.file_number for gpu in reading.gpus] == [4, 5, 6, 7]


@pytest.mark.parametrize("text", ["", "NPU0 X HCCS\n", "NPU0 X HCCS\nNPU1 HCCS\n"])
def test_an_incomplete_matrix_is_not_guessed(text: str) -> None:
    assert ascend.read_links(text, 2) is None


def test_a_short_reading_has_the_names_of_the_last_detailed_one(home: Path, tools: Path) -> None:
    install(tools, "npu-smi", RECORDED / "ascend-910b")
    detailed = driver.read(str(home), in_detail=True)
    assert detailed is not None
    driver.store(str(home), detailed)

    short = driver.read(str(home), in_detail=False)

    assert short is not None
    assert [gpu.uuid for gpu in short.reading.gpus] == [gpu.uuid for gpu in detailed.reading.gpus]


# -- the probe -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "kind", "levels"),
    [
        ("mi250-amd-smi", "AMD-Instinct-MI250", ["node", "nvlink", "device"]),
        ("ascend-910b", "Ascend-910B1", ["node", "device"]),
    ],
)
def test_the_inventory_has_the_devices_of_the_vendor(
    home: Path, tools: Path, recorded: str, kind: str, levels: list[str]
) -> None:
    tool = "amd-smi" if recorded.startswith("mi250") else "npu-smi"
    install(tools, tool, RECORDED / recorded)

    inventory = probe.inventory(str(home))

    assert {device.type for device in inventory.devices} == {kind}
    assert (inventory.reader, inventory.cuda) == (tool, "")
    assert [level for level in inventory.levels if level not in ("socket", "pcie")] == levels
    assert all(device.uuid and not device.sharing_modes for device in inventory.devices)
    assert Inventory.from_json(inventory.to_json()) == inventory


# -- the files of a job --------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The files of four dies of MI250, numbered against their addresses, and of two NPUs."""
    top = tmp_path / "machine"
    for number, address in enumerate(ADDRESSES):
        (top / f"sys/bus/pci/devices/{address}/drm/card{number}").mkdir(parents=True)
        (top / f"sys/bus/pci/devices/{address}/drm/renderD{131 - number}").mkdir()
    (top / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "davinci4", "davinci5", "davinci_manager", "devmm_svm"):
        (top / "dev" / name).touch()
    return top


def store(root: Path, reader: str, gpus: list[Gpu]) -> None:
    driver.store(str(root), driver.Answer(reader, Reading(gpus)))


def test_a_job_gets_the_render_nodes_of_its_gpus_only(machine: Path, tmp_path: Path) -> None:
    gpus = [Gpu(n, UUIDS[n], "MI250", ADDRESSES[n]) for n in range(4)]
    store(tmp_path, "amd-smi", gpus)

    def files(*names: str) -> list[str]:
        spec = make_spec("true", devices=list(range(len(names))), gpus=list(names))
        return device_files(str(tmp_path), spec, str(machine))

    assert files(UUIDS[2]) == ["/dev/kfd", "/dev/dri/renderD129"]
    assert files("3", UUIDS[0]) == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD131"]
    assert files() == []
    with pytest.raises(ProtocolError, match="GPU-9") as refused:
        files("GPU-9")
    assert refused.value.code == "gpu-missing"
    (machine / f"sys/bus/pci/devices/{ADDRESSES[2]}/drm/renderD129").rmdir()
    with pytest.raises(ProtocolError, match="no render node"):
        files(UUIDS[2])


def test_a_job_gets_the_files_of_its_npus_and_those_of_the_driver(
    machine: Path, tmp_path: Path
) -> None:
    npus = [Gpu(n, f"NPU-{n}", "Ascend 910B1", "", file_number=n + 4) for n in range(2)]
    store(tmp_path, "npu-smi", npus)
    spec = make_spec("true", devices=[0], gpus=["NPU-1"])

    found = device_files(str(tmp_path), spec, str(machine))

    assert found == ["/dev/davinci5", "/dev/davinci_manager", "/dev/devmm_svm"]
    assert accelerators.files_of(str(tmp_path), [], str(machine)) == []
    store(tmp_path, "nvml", npus)
    assert accelerators.files_of(str(tmp_path), [], str(machine)) is None


def test_only_files_that_are_not_open_to_all_need_their_group(machine: Path) -> None:
    (machine / "dev/kfd").chmod(0o660)
    (machine / "dev/davinci4").chmod(0o666)
    os.chown(machine / "dev/kfd", -1, 71_500 if os.getuid() == 0 else os.getgid())
    group = (machine / "dev/kfd").stat().st_gid

    assert groups_of(["/dev/kfd", "/dev/davinci4", "/dev/none"], str(machine)) == [group]


def test_indices_count_from_0_where_only_the_files_of_the_job_are() -> None:
    found = accelerators.numbered_inside(
        {"ASCEND_RT_VISIBLE_DEVICES": "4,6", "ROCR_VISIBLE_DEVICES": UUIDS[0], "OTHER": "7"}
    )

    assert found == {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    assert accelerators.numbered_inside({"ASCEND_RT_VISIBLE_DEVICES": ""}) == {}


def test_engines_with_root_rights_give_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Device(0, "AMD-Instinct-MI250", [0, 0], UUIDS[0])]

    def access(engine: Engine, vendor: str = AMD) -> str:
        return gpu_access(engine, devices, lambda _command: "", vendor=vendor)

    rootful = Engine("/run/engine.sock", PODMAN, "4.3.1", rootless=False)
    rootless = Engine("/run/engine.sock", DOCKER, "24.0.7", rootless=True)
    assert (access(rootful), access(rootful, ASCEND)) == (BY_FILES, BY_FILES)
    monkeypatch.setattr("tessera.node.container_gpus.groups_of", lambda _files: [109])
    with pytest.raises(NoGpuAccessError, match="/dev/kfd"):
        access(rootless)
    monkeypatch.setattr("tessera.node.container_gpus.groups_of", lambda _files: [])
    assert access(rootless) == BY_FILES


# -- a job on such a machine ---------------------------------------------------------------------

RENDER = 71_500
MACHINE = """
set -e
mount -t tmpfs -o mode=0755 devices {top}
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx {top}
mkdir {top}/dri {top}/pts
mkdir -m 1777 {top}/shm
for file in kfd dri/renderD128 dri/renderD129 dri/renderD130 dri/renderD131 dri/card0; do
    mknod -m 660 {top}/$file c 1 3
    chgrp {render} {top}/$file
done
mount --bind {top} /dev
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=0755 sysfs /sys/bus/pci/devices
number=128
for address in {addresses}; do
    mkdir -p /sys/bus/pci/devices/$address/drm/renderD$number
    number=$((number + 1))
done
PATH={tools}:$PATH exec "$@"
"""
LOOK = """
ls -d /dev/kfd /dev/dri/* /dev/davinci* 2>/dev/null
for file in /dev/kfd /dev/dri/*; do (: >$file) 2>/dev/null && echo opens $file; done
echo visible $ROCR_VISIBLE_DEVICES
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can create device files")
@pytest.mark.parametrize(
    ("level", "account", "opens"),
    [(USER, ROOT, True), (NAMESPACE, ROOT, True), (USER, SUDO, False)],
)
def test_a_job_sees_and_opens_the_files_of_its_own_gpus(
    tmp_path: Path, tools: Path, level: str, account: str, opens: bool
) -> None:
    install(tools, "amd-smi", RECORDED / "mi250-amd-smi")
    above = Path(tempfile.gettempdir())
    for path in (tmp_path, tools, *(one for one in tmp_path.parents if above in one.parents)):
        path.chmod(path.stat().st_mode | 0o055)
    top = tmp_path / "dev"
    top.mkdir()
    script = MACHINE.format(top=top, tools=tools, render=RENDER, addresses=" ".join(ADDRESSES))
    machine = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    own = ["/dev/dri/renderD129", "/dev/kfd"]

    with node(level, account, machine=machine) as session:
        session.ask(PROBE)
        end, log = session.run(
            LOOK,
            devices=[1],
            gpus=[UUIDS[1]],
            env={"ROCR_VISIBLE_DEVICES": UUIDS[1]},
            uid=ALICE,
        )

    assert end.exit is not None
    assert end.exit.code == 0, log
    lines = log.splitlines()
    assert sorted(line for line in lines if line.startswith("/dev/")) == own
    # An account outside of the group cannot give its jobs what it has not.
    assert sorted(line[6:] for line in lines if line.startswith("opens")) == (own if opens else [])
    assert f"visible {UUIDS[1]}" in lines
