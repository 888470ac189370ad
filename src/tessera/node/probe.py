"""Inventory of a node: devices and their tree, memory, processors, driver, container engine.

Devices come from a declaration (``~/.tessera/devices.json``) if it exists, else from the
driver of the GPUs, otherwise the list is empty. A declaration is for machines without GPUs:

    {"levels": ["node", "socket", "pcie", "device"], "cpus": 16, "memory_bytes": 34359738368,
     "devices": [{"type": "cpu-small", "path": [0, 0]}, {"type": "cpu-small", "path": [0, 1]}]}
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from tessera import hardware, protocol
from tessera.hardware import Condition
from tessera.node import (
    cgroups,
    confinement,
    container_gpus,
    driver,
    engine,
    firewall,
    gpu_health,
    gpu_processes,
    gpu_topology,
    interfaces,
    networks,
    system,
)
from tessera.node.container_gpus import NoGpuAccessError
from tessera.node.engine import Engine
from tessera.node.sharing import modes
from tessera.protocol import Device, Inventory, ProtocolError
from tessera.wire import Fields

GPU_LEVELS = ["node", "socket", "pcie", "device"]


def inventory(root: str, *, driver_seconds: Optional[float] = None) -> Inventory:
    """Return the inventory of this node.

    Args:
        root: the node's directory ``~/.tessera``.
        driver_seconds: deadline for the driver of the GPUs; the usual one if None.

    Raises:
        ProtocolError: another read of the GPUs lasts, and none has ended yet.
    """
    warnings: List[str] = []
    declared = _declared(os.path.join(root, protocol.DEVICES_FILE), warnings)
    found = declared or _gpus(root, driver_seconds, warnings)
    devices = found.devices
    chosen = chosen_engine(warnings)
    description = chosen.description if chosen else ""
    access, gpu_fault = access_of_containers(root, chosen, found)
    if gpu_fault:
        chosen = None  # jobs with an image would run without their GPUs
    return Inventory(
        devices=modes.with_modes(devices) if _is_shareable(found) else devices,
        levels=found.levels,
        cpus=found.cpus or len(os.sched_getaffinity(0)),
        memory_bytes=found.memory_bytes or memory_total(),
        driver=found.driver,
        cuda=found.cuda,
        reader=found.reader,
        conditions=found.conditions,
        docker=chosen.version if chosen else "",
        docker_socket=chosen.socket if chosen else "",
        engine=chosen.kind if chosen else "",
        rootless=chosen is not None and chosen.rootless,
        gpu_access=access,
        firewall=firewall.tool(),
        python=system.python_version(),
        kernel=os.uname().release,
        boot_id=system.boot_id(),
        hostname=system.hostname(),
        cgroups=cgroups.version(),
        warnings=warnings,
        isolation=confinement.probe(root, description, gpu_fault),
        networks=networks.probe(),
        job_network=networks.setting_of(root),
        interfaces=interfaces.found(),
        infiniband=interfaces.infiniband(),
    )


def _is_shareable(found: Found) -> bool:
    """Return whether jobs may share devices; nobody has tried it on those of other vendors."""
    return hardware.vendor_of(found.reader) == hardware.NVIDIA


def chosen_engine(warnings: List[str]) -> Optional[Engine]:
    """Choose the engine for containers, preferably rootless; warn of an open root socket."""
    engines = engine.find_engines(engine.sockets())
    if os.getuid() != 0 and not all(one.rootless for one in engines):
        warnings.append(protocol.ENGINE_SOCKET_OPEN)
    return next((one for one in engines if one.rootless), next(iter(engines), None))


def access_of_containers(root: str, chosen: Optional[Engine], found: Found) -> Tuple[str, str]:
    """Return how containers get the node's GPUs, or an empty text and the cause.

    While the driver hangs, tools that use it are not run, and the last result applies.
    """
    gpus = [device for device in found.devices if not device.declared]
    if chosen is None or not gpus:
        return "", ""
    is_hung = Condition(hardware.DRIVER_HUNG) in found.conditions

    def fault_of(command: Sequence[str]) -> str:
        return driver.stored_tool_fault(root) if is_hung else driver.tool_fault(root, command)

    try:
        vendor = hardware.vendor_of(found.reader)
        return container_gpus.gpu_access(chosen, gpus, fault_of, vendor=vendor), ""
    except NoGpuAccessError as error:
        return "", str(error)


class Found(NamedTuple):
    """Devices from a declaration or a driver, with the capacity that a declaration may give."""

    devices: List[Device]
    levels: List[str]
    cpus: int = 0
    memory_bytes: int = 0
    driver: str = ""
    cuda: str = ""
    reader: str = ""
    conditions: List[Condition] = []  # noqa: RUF012 - a default that nothing changes


def memory_figures() -> Dict[str, int]:
    """Parse the kernel's figures on memory, in bytes."""
    figures = {}
    for line in system.read_text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            figures[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return figures


def memory_total() -> int:
    """Return the machine's memory in bytes."""
    return memory_figures().get("MemTotal", 0)


# -- declared ------------------------------------------------------------------------------------


def _declared(path: str, warnings: List[str]) -> Optional[Found]:
    if not os.path.exists(path):
        return None
    try:
        return read_declaration(system.read_json(path, any_owner=True))
    except ProtocolError as error:
        warnings.append(f"{protocol.DEVICES_FILE}: {error.message}")
        return Found([], ["node", "device"])


def read_declaration(data: object) -> Found:
    """Parse a declaration of devices.

    Raises:
        ProtocolError: the declaration is malformed; the message names the field.
    """
    take = Fields(data, "declaration")
    levels = take.texts("levels", 16, 63) or list(GPU_LEVELS)
    if len(levels) < 2 or len(set(levels)) != len(levels):
        raise take.refuse("levels", "needs node, ..., device, each once")
    devices = []
    for index, item in enumerate(take.items("devices", 4096)):
        one = Fields(item, f"declaration.devices[{index}]")
        device = Device(
            index=index,
            type=one.text("type", None, 128),
            path=one.integers("path", 0, 4095),
            memory_bytes=one.integer("memory_bytes", 0, 0, 1 << 60),
            declared=True,
        )
        if len(device.path) != len(levels) - 2:
            raise one.refuse("path", "needs one number for each level between node and device")
        one.finish()
        devices.append(device)
    cpus = take.integer("cpus", 0, 0, 1 << 20)
    memory = take.integer("memory_bytes", 0, 0, 1 << 60)
    take.finish()
    return Found(_numbered(devices), levels, cpus, memory)


def _numbered(devices: Sequence[Device]) -> List[Device]:
    """Number the cells of each level through the node, for local and global paths."""
    seen: List[Dict[Tuple[int, ...], int]] = []
    numbered = []
    for device in devices:
        path = []
        for depth in range(len(device.path)):
            if depth == len(seen):
                seen.append({})
            prefix = tuple(device.path[: depth + 1])
            path.append(seen[depth].setdefault(prefix, len(seen[depth])))
        numbered.append(replace(device, path=path))
    return numbered


# -- GPUs ----------------------------------------------------------------------------------------


def _gpus(root: str, seconds: Optional[float], warnings: List[str]) -> Found:
    """Read the GPUs; while the driver hangs or is being read, return the last result."""
    nothing = Found([], list(GPU_LEVELS))
    if not driver.has_driver():
        return nothing
    try:
        answer = driver.read(root, in_detail=True, seconds=seconds)
    except driver.DriverHungError:
        last = driver.stored(root)
        found = nothing if last is None else _found(last, warnings)
        return found._replace(conditions=[Condition(hardware.DRIVER_HUNG)])
    except driver.DriverBusyError:
        answer = driver.stored(root)
        if answer is None:
            message = "another read of the GPUs has not ended"
            raise ProtocolError("driver-busy", message, protocol.NODE) from None
    if answer is None:
        for path in filter(os.path.exists, driver.FILES):
            name = driver.FILES[path]
            warnings.append(f"the driver of {name} is installed, but does not respond")
        return nothing
    answer = _with_known_links(answer, driver.stored(root))
    driver.store(root, answer)
    warnings += answer.reading.warnings
    found = _found(answer, warnings)
    xids = gpu_health.kernel_xids()
    return found._replace(
        conditions=[
            *gpu_health.conditions(answer.reading, xids),
            *gpu_processes.foreign(root, answer.reading.processes),
        ]
    )


def _with_known_links(answer: driver.Answer, last: Optional[driver.Answer]) -> driver.Answer:
    """Return the answer with the NVLink domains of the last one if they could not be read.

    Otherwise one failed call would dissolve the cells of the domains.
    """
    if answer.nvlink is not None or last is None or last.nvlink is None:
        return answer
    known = dict(zip((gpu.uuid for gpu in last.reading.gpus), last.nvlink))  # noqa: B905
    return answer._replace(nvlink=[known.get(gpu.uuid, -1) for gpu in answer.reading.gpus])


def _found(answer: driver.Answer, warnings: List[str]) -> Found:
    gpus = answer.reading.gpus
    addresses = [gpu.pci_address for gpu in gpus]
    pairs = sysfs_paths(addresses) or answer.closeness
    if pairs is None:
        warnings.append("the topology of the GPUs could not be read")
        pairs = [(0, 0)] * len(gpus)
    nvlink = answer.nvlink or [-1] * len(gpus)
    numa, switches = gpu_topology.numa_nodes(addresses), gpu_topology.switch_groups(addresses)
    levels, paths = gpu_topology.nested_levels(pairs, numa, nvlink, switches=switches)
    devices = [
        Device(
            index=gpu.position,
            type=re.sub(r"[^A-Za-z0-9._-]+", "-", gpu.name).strip("-") or "GPU",
            path=path,
            uuid=gpu.uuid,
            memory_bytes=gpu.memory_bytes or 0,
            serial=gpu.serial,
            pci_address=gpu.pci_address,
            display=gpu.display,
            nvlink=domain,
        )
        for gpu, path, domain in zip(gpus, paths, nvlink)  # noqa: B905 - strict came with 3.10
    ]
    return Found(
        _numbered(devices),
        ["node", *levels, "device"],
        driver=answer.reading.driver,
        cuda=answer.reading.cuda,
        reader=answer.reader,
    )


def sysfs_paths(addresses: Sequence[str], machine: str = "") -> Optional[List[Tuple[int, int]]]:
    """Read socket and root bridge of each GPU from the kernel; None if unknown.

    Args:
        addresses: PCI addresses of the GPUs.
        machine: root directory of the machine; ``/`` if empty.
    """
    bridges: Dict[str, int] = {}
    paths = []
    for address in addresses:
        place = os.path.realpath(f"{machine}/sys/bus/pci/devices/{address}")
        found = re.search(r"/(pci[0-9a-f]+:[0-9a-f]+)/", place + "/")
        if found is None:
            return None
        node = system.read_text(f"{place}/numa_node").strip()
        socket = _socket(node, machine) if node.isdigit() else 0
        paths.append((socket, bridges.setdefault(found.group(1), len(bridges))))
    return paths


def _socket(node: str, machine: str) -> int:
    """Return the processor package of a NUMA node: a package can have several (NPS4)."""
    top = f"{machine}/sys/devices/system"
    first = re.match(r"\d+", system.read_text(f"{top}/node/node{node}/cpulist"))
    package = ""
    if first is not None:
        path = f"{top}/cpu/cpu{first.group()}/topology/physical_package_id"
        package = system.read_text(path).strip()
    return int(package) if package.isdigit() else int(node)
