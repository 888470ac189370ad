"""Inventory of a node: devices and their tree, memory, processors, driver, container engine.

Devices come from a declaration (``~/.tessera/devices.json``) if it exists, else from
``nvidia-smi``, otherwise the list is empty. A declaration is for machines without GPUs:

    {"levels": ["node", "socket", "pcie", "device"], "cpus": 16, "memory_bytes": 34359738368,
     "devices": [{"type": "cpu-small", "path": [0, 0]}, {"type": "cpu-small", "path": [0, 1]}]}
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Sequence, Tuple

from tessera import protocol
from tessera.node import cgroups, confinement, container_gpus, engine, firewall, networks, system
from tessera.node.container_gpus import NoGpuAccessError
from tessera.node.engine import Engine
from tessera.protocol import Device, Inventory, ProtocolError
from tessera.wire import Fields

GPU_LEVELS = ["node", "socket", "pcie", "device"]
SMI_SECONDS = 20.0
_QUERY = "index,uuid,name,memory.total,driver_version,pci.bus_id"
_NEAR = ("PIX", "PXB", "X")  # at most PCIe switches in between
_SAME_SOCKET = (*_NEAR, "PHB", "NODE")


def inventory(root: str) -> Inventory:
    """Return the inventory of this node."""
    warnings: List[str] = []
    declared = _declared(os.path.join(root, protocol.DEVICES_FILE), warnings)
    devices, levels, cpus, memory, driver = declared or _gpus(warnings)
    chosen = chosen_engine(warnings)
    description = chosen.description if chosen else ""
    access, gpu_fault = _access_of_containers(chosen, devices)
    if gpu_fault:
        chosen = None  # a job with an image would run without the GPUs that it was given
    return Inventory(
        devices=devices,
        levels=levels,
        cpus=cpus or len(os.sched_getaffinity(0)),
        memory_bytes=memory or memory_total(),
        driver=driver,
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
    )


def chosen_engine(warnings: List[str]) -> Optional[Engine]:
    """Choose the engine for containers, preferably rootless; warn of an open root socket."""
    engines = engine.find_engines(engine.sockets())
    if os.getuid() != 0 and not all(one.rootless for one in engines):
        warnings.append(protocol.ENGINE_SOCKET_OPEN)
    return next((one for one in engines if one.rootless), next(iter(engines), None))


def _access_of_containers(chosen: Optional[Engine], devices: Sequence[Device]) -> Tuple[str, str]:
    """Return how containers get the node's GPUs, or an empty text and the cause."""
    gpus = [device for device in devices if not device.declared]
    if chosen is None or not gpus:
        return "", ""
    try:
        return container_gpus.gpu_access(chosen, gpus, fault_of), ""
    except NoGpuAccessError as error:
        return "", str(error)


Found = Tuple[List[Device], List[str], int, int, str]


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
        return [], ["node", "device"], 0, 0, ""


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
    return _numbered(devices), levels, cpus, memory, ""


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
        numbered.append(
            Device(
                index=device.index,
                type=device.type,
                path=path,
                uuid=device.uuid,
                memory_bytes=device.memory_bytes,
                declared=device.declared,
            )
        )
    return numbered


# -- NVIDIA --------------------------------------------------------------------------------------


def run_smi(*arguments: str) -> Optional[str]:
    """Run ``nvidia-smi`` and return its output; None if it is missing, prints nothing or hangs.

    An exit code other than 0 does not discard the output: when one GPU is lost, ``nvidia-smi``
    lists the others and exits with 15.
    """
    done = _run_tool(["nvidia-smi", *arguments])
    return done[1] if done and (done[0] == 0 or done[1].strip()) else None


def fault_of(command: Sequence[str]) -> str:
    """Run a tool of the driver, and return an empty text, or why it failed."""
    done = _run_tool(command)
    if done is None:
        return f"no response within {SMI_SECONDS:g} s"
    lines = done[1].strip().splitlines()
    return "" if done[0] == 0 else (lines[-1][:300] if lines else f"exit code {done[0]}")


def _run_tool(command: Sequence[str]) -> Optional[Tuple[int, str]]:
    """Run a command; return its exit code and output, or None if it is missing or hangs."""
    import subprocess  # noqa: PLC0415 - costs start-up time that only this path needs

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _gpus(warnings: List[str]) -> Found:
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    code, text = _run_tool(command) or (0, "")
    rows = read_query(text)
    if not rows:
        if os.path.exists("/proc/driver/nvidia/version"):
            warnings.append("an NVIDIA driver is installed, but nvidia-smi does not respond")
        return [], list(GPU_LEVELS), 0, 0, ""
    if code != 0:
        others = [line.strip() for line in text.splitlines() if not read_query(line)]
        warnings.append(f"nvidia-smi ends with code {code}: {' '.join(others)[:300]}")
    paths = sysfs_paths([row[5] for row in rows])
    if paths is None:
        paths = read_topology(run_smi("topo", "-m") or "", len(rows))
    if paths is None:
        warnings.append("the topology of the GPUs could not be read")
        paths = [(0, 0)] * len(rows)
    devices = [
        Device(
            index=int(index),
            type=re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "GPU",
            path=list(path),
            uuid="" if uuid.startswith("[") else uuid,
            memory_bytes=int(float(memory)) << 20 if memory.replace(".", "").isdigit() else 0,
        )
        for (index, uuid, name, memory, _, _), path in zip(rows, paths)  # noqa: B905 - strict came with Python 3.10
    ]
    return _numbered(devices), list(GPU_LEVELS), 0, 0, rows[0][4]


def read_query(text: str) -> List[List[str]]:
    """Parse the rows of ``nvidia-smi --query-gpu``; other lines are left out."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == 6 and row[0].isdigit()]


def sysfs_paths(bus_ids: Sequence[str]) -> Optional[List[Tuple[int, int]]]:
    """Read socket and root bridge of each GPU from the kernel; None if unknown."""
    bridges: Dict[str, int] = {}
    paths = []
    for bus_id in bus_ids:
        place = os.path.realpath(f"/sys/bus/pci/devices/{_kernel_address(bus_id)}")
        found = re.search(r"/(pci[0-9a-f]+:[0-9a-f]+)/", place + "/")
        if found is None:
            return None
        node = system.read_text(f"{place}/numa_node").strip()
        socket = int(node) if node.isdigit() else 0
        paths.append((socket, bridges.setdefault(found.group(1), len(bridges))))
    return paths


def _kernel_address(bus_id: str) -> str:
    """Convert ``00000000:3B:00.0`` to ``0000:3b:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def read_topology(text: str, count: int) -> Optional[List[Tuple[int, int]]]:
    """Parse socket and PCIe group of each GPU from the matrix of ``nvidia-smi topo -m``.

    For two GPUs joined by NVLink the matrix has only that and not their PCIe groups, so each
    such GPU is a group of its own and the socket comes from the NUMA column.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split() for line in plain.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    matrix = [row[1 : count + 1] for row in rows if "X" in row]
    if len(matrix) != count or any(len(row) != count for row in matrix):
        return None
    sockets = _classes(matrix, _SAME_SOCKET)
    groups = _classes(matrix, _NEAR)
    numa = [_numa_of(row, count) for row in rows if "X" in row]
    if all(value is not None for value in numa):
        sockets = [int(value or 0) for value in numa]
    return list(zip(sockets, groups))  # noqa: B905 - strict came with Python 3.10


def _classes(matrix: Sequence[Sequence[str]], joined: Sequence[str]) -> List[int]:
    """Return for each GPU the number of the first GPU with which it is joined."""
    return [
        next(other for other, word in enumerate(row) if word in joined or other == index)
        for index, row in enumerate(matrix)
    ]


def _numa_of(row: Sequence[str], count: int) -> Optional[int]:
    """Return the NUMA affinity, which follows the CPU affinity (a range) in the last columns."""
    tail = row[count + 1 :]
    for index, word in enumerate(tail):
        if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", word) and index + 1 < len(tail):
            following = tail[index + 1]
            return int(following) if following.isdigit() else None
    return None
