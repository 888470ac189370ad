"""The sandbox plan of a run: directories, device files, user, sizes and environment."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tessera import protocol
from tessera.isolation import SHARED_UID, USER
from tessera.node import accelerators, driver, networks, probe, system, visibility
from tessera.node.directories import names_in
from tessera.node.networks import NODE_NETWORK, Choice
from tessera.node.runs import Run
from tessera.node.sandbox_root import ACCOUNT, Bind, Plan
from tessera.node.sharing.requests import visible_pages
from tessera.protocol import ProtocolError, RunSpec

LEAST_BYTES = 64 << 20
NAMES_ALL_GPUS = 3
"""The version of the protocol since which a run names its GPUs wherever it has some."""
_SECRETS = f"{protocol.CONTAINER_ROOT}/{protocol.SECRETS_DIR}"
_SHARE_WITHOUT_LIMIT = 8  # a job without a memory limit gets 1/8 of the node's memory
_OF_ALL_GPUS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_GPUS = "/proc/driver/nvidia/gpus"
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_GPU_NUMBER = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_GPU_UUID = re.compile(r"^GPU UUID:\s*(GPU-[^\s?]+)\s*$", re.MULTILINE)
_FILE_NUMBER = re.compile(r"^DeviceFileMinor:\s*(\d+)", re.MULTILINE)
_GPU_INSTANCE, _COMPUTE_INSTANCE = re.compile(r"gi\d+"), re.compile(r"ci\d+")


def device_files(root: str, spec: RunSpec, machine: str = "") -> List[str]:
    """Return the device files of a run's GPUs; none on a node that declares its devices.

    Args:
        root: the node's directory ``~/.tessera``.
        spec: the run, which names its GPUs by UUID; where the driver reports none, by index in
            the order of their bus addresses. Before version 3, the numbers of its devices were
            taken for these indices.
        machine: root directory of the machine; ``/`` if empty.

    Raises:
        ProtocolError: the node has no longer one of the GPUs.
    """
    gpus = spec.gpus
    if not gpus and spec.protocol < NAMES_ALL_GPUS:
        gpus = [str(number) for number in spec.devices]
    if not gpus or os.path.lexists(os.path.join(root, protocol.DEVICES_FILE)):
        return []
    others = accelerators.files_of(root, gpus, machine)
    if others is not None:
        return others
    own = _numbers_of(root, gpus, machine)
    wanted = [f"/dev/nvidia{number}" for number, _ in own]
    wanted += _OF_ALL_GPUS
    for number, instance in own:
        wanted += _instance_files(machine, number, instance)
    return [path for path in dict.fromkeys(wanted) if os.path.exists(machine + path)]


def _numbers_of(root: str, gpus: Sequence[str], machine: str) -> List[Tuple[int, str]]:
    """Return the number of the device file of each GPU, and its MIG instance or an empty text.

    Where the kernel has no file of the GPUs, an index is the number. The last inventory has the
    PCI addresses of GPUs without a UUID in the kernel's file, and of MIG instances.
    """
    names, addresses = _gpu_numbers(machine)
    found = {name: (int(name), "") for name in gpus if name.isdigit()}
    found.update((name, (number, "")) for name, number in names.items())
    if not found.keys() >= set(gpus):
        last = driver.stored(root)
        for gpu in last.reading.gpus if last else []:
            known = addresses if gpu.instance else names
            if gpu.pci_address in known:
                found.setdefault(gpu.uuid, (known[gpu.pci_address], gpu.instance))
    missing = ", ".join(name for name in gpus if name not in found)
    if missing:
        raise ProtocolError("gpu-missing", f"the node has no GPU {missing}", protocol.NODE)
    return [found[name] for name in gpus]


def _gpu_numbers(machine: str) -> Tuple[Dict[str, int], Dict[str, int]]:
    """Return the number of each GPU's device file by name, and by PCI address.

    The names are the index, since the driver counts GPUs by their bus address, and the UUID. A GPU
    without a UUID in its file has its address as a name.
    """
    names: Dict[str, int] = {}
    addresses: Dict[str, int] = {}
    for index, address in enumerate(names_in(machine + _GPUS)):
        text = system.read_text(f"{machine}{_GPUS}/{address}/information")
        number, uuid = _GPU_NUMBER.search(text), _GPU_UUID.search(text)
        if number is not None:
            names[str(index)] = addresses[address.lower()] = int(number.group(1))
            names[address.lower() if uuid is None else uuid.group(1)] = int(number.group(1))
    return names, addresses


def _instance_files(machine: str, gpu: int, only: str) -> Iterator[str]:
    """Yield the files that grant access to the MIG instances of a GPU.

    Files for its configuration and monitoring are not included.

    Args:
        machine: root directory of the machine.
        gpu: number of its device file.
        only: the instance of the run; all instances if empty.
    """
    top = f"{machine}{_CAPABILITIES}/gpu{gpu}/mig"
    gpu_instance, _, compute_instance = only.partition("/")
    for instance in filter(_GPU_INSTANCE.fullmatch, names_in(top)):
        if only and instance != f"gi{gpu_instance}":
            continue
        parts = [
            part
            for part in filter(_COMPUTE_INSTANCE.fullmatch, names_in(f"{top}/{instance}"))
            if not only or part == f"ci{compute_instance}"
        ]
        for place in (instance, *(f"{instance}/{part}" for part in parts)):
            number = _FILE_NUMBER.search(system.read_text(f"{top}/{place}/access"))
            if number is not None:
                yield f"/dev/nvidia-caps/nvidia-cap{number.group(1)}"


def plan_for(
    run: Run,
    spec: RunSpec,
    level: str,
    bundle: str,
    granted: Dict[str, str],
    *,
    network: Choice = NODE_NETWORK,
    processes: int = 0,
) -> Tuple[Plan, List[str]]:
    """Return the sandbox of a run, and codes of warnings; creates its directories.

    ``bundle`` is on the job's PYTHONPATH, and ``granted`` is the part of the runner's environment
    that it inherits. ``processes`` limits those of the job's user; 0 if a control group limits
    them.

    Raises:
        OSError: a directory cannot be created.
        ProtocolError: a path was not declared or leads elsewhere, or the declaration is malformed.
    """
    uid, own = _uid(spec, level), _own_directories(run, spec, bundle)
    view = visibility.view_of(run.store.root, spec, with_system=True)
    pages = [Bind(*page, is_exact=True) for page in visible_pages(run.store.root, spec)]
    plan = Plan(
        uid=uid,
        binds=[*view.binds, *own.binds, *pages],
        hidden=view.covers,
        devices=device_files(run.store.root, spec),
        secrets=own.secrets,
        owned=own.writable if uid is not None else [],
        owners=[os.getuid(), SHARED_UID],
        group=os.getgid(),
        tmp_bytes=_share_of_memory(spec, 4),
        shm_bytes=_share_of_memory(spec, 2),
        file_bytes=spec.disk_bytes,
        home=protocol.CONTAINER_HOME,
        directory=os.path.join(protocol.CONTAINER_ROOT, protocol.WORK_DIR, spec.workdir),
        arguments=["/bin/sh", f"{protocol.CONTAINER_ROOT}/{protocol.COMMAND_FILE}"],
        environment=_environment(spec, granted),
        own_network=network.is_own,
        blocked=networks.blocked_by(network),
        resolver=networks.resolver_of(network),
        processes=processes,
    )
    return plan, view.warnings


def _share_of_memory(spec: RunSpec, part: int) -> int:
    """Return a part of the job's memory, for a file system in memory."""
    memory = spec.memory_bytes or probe.memory_total() // _SHARE_WITHOUT_LIMIT
    return max(LEAST_BYTES, memory // part)


class _OwnDirectories(NamedTuple):
    """The directories of a run and its job.

    Attributes:
        writable: directories on the node in which the job may write.
        secrets: (directory, place in the sandbox); None for no secrets.
    """

    binds: List[Bind]
    writable: List[str]
    secrets: Optional[Tuple[str, str]]


def _own_directories(run: Run, spec: RunSpec, bundle: str) -> _OwnDirectories:
    checkpoints = visibility.make_checkpoints(run, spec)
    os.makedirs(run.file(protocol.HOME_DIR), mode=0o700, exist_ok=True)
    path = os.path.realpath(run.path)
    mounts = protocol.container_mounts(path, bundle, checkpoints)
    inside = {target: source for source, target, _ in mounts}
    secrets = os.path.realpath(inside.pop(_SECRETS))
    writable = [source for target, source in inside.items() if target != protocol.CONTAINER_BUNDLE]
    binds = [
        Bind(source, target, source in writable, is_exact=source in writable)
        for target, source in inside.items()
    ]
    return _OwnDirectories(
        binds, writable, (secrets, _SECRETS) if os.path.isdir(secrets) else None
    )


def _uid(spec: RunSpec, level: str) -> Optional[int]:
    if level == USER:
        return spec.uid
    return SHARED_UID if os.getuid() == 0 else None


def _environment(spec: RunSpec, granted: Dict[str, str]) -> Dict[str, str]:
    environment = {name: value for name, value in granted.items() if name != "TMPDIR"}
    environment.update(HOME=protocol.CONTAINER_HOME, USER=ACCOUNT, LOGNAME=ACCOUNT)
    environment.update(
        protocol.job_environment(
            spec,
            protocol.CONTAINER_ROOT,
            protocol.CONTAINER_BUNDLE,
            protocol.CONTAINER_CHECKPOINTS,
        )
    )
    return {**environment, **accelerators.numbered_inside(environment)}
