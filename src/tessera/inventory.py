"""Self-description of a node: identity, devices, memory and engines."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import List

from tessera import job_networks
from tessera.device_sharing import SHARING_MODES
from tessera.hardware import Condition
from tessera.isolation import LEVELS, IsolationProbe
from tessera.job_networks import NetworkProbe
from tessera.wire import Fields, Json

BY_DEVICE_REQUEST, BY_CDI_UUID, BY_CDI_INDEX = "device-request", "cdi-uuid", "cdi-index"
BY_FILES = "device-files"
GPU_ACCESSES = (BY_DEVICE_REQUEST, BY_CDI_UUID, BY_CDI_INDEX, BY_FILES)
"""Methods by which a container engine gives GPUs to a container: NVIDIA's hook or runtime, a CDI
specification (Container Device Interface) with devices by UUID or by index, or the device files
of GPUs and NPUs of other vendors."""
MAX_INTERFACES, MAX_ADAPTERS = 256, 64
"""Maximum number of network interfaces and InfiniBand adapters of an inventory."""


_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}/(?:3[0-2]|[12]?[0-9])")


@dataclass(frozen=True)
class NodeHello:
    """The reply to ``hello``.

    Attributes:
        root: absolute path of ``~/.tessera``.
        bundle: absolute path of the running code, for a job's PYTHONPATH.
        clock: the node's boot clock in seconds, the clock of leases.
        runs: number of run directories.
    """

    protocol: int
    pid: int
    boot_id: str
    hostname: str
    python: str
    home: str
    root: str
    bundle: str
    uid: int
    gid: int
    clock: float
    runs: int

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> NodeHello:
        """Read the reply; unknown fields are ignored."""
        take = Fields(data, "hello")
        return cls(
            protocol=take.integer("protocol", None, 0, 1 << 30),
            pid=take.integer("pid", None, 1, 1 << 31),
            boot_id=take.text("boot_id", None, 128),
            hostname=take.text("hostname", None, 255),
            python=take.text("python", None, 64),
            home=take.text("home", None, 4096),
            root=take.text("root", None, 4096),
            bundle=take.text("bundle", None, 4096),
            uid=take.integer("uid", None, 0, 1 << 32),
            gid=take.integer("gid", None, 0, 1 << 32),
            clock=take.number("clock", None, 0.0, 1e12),
            runs=take.integer("runs", None, 0, 1 << 31),
        )


@dataclass(frozen=True)
class Device:
    """One device of a node.

    Attributes:
        index: position in the node, by the driver or the declaration; may change at a reboot.
        type: for instance ``NVIDIA-H200`` or a declared name.
        path: ordinal, within the node, of its cell at each level between node and device.
        uuid: its identity; empty for a CPU slot, and if the driver does not report it.
        declared: True for a CPU slot from a file; it is never shown as a GPU.
        serial: serial number of the board, empty if unknown.
        pci_address: address on the bus as the kernel writes it, ``0000:3b:00.0``, or empty.
        sharing_modes: modes in which a trial has shown that jobs can share it, best first; empty
            if the node has tried none.
        display: a screen shows the output of the GPU.
        nvlink: number of its NVLink domain in the node; -1 if no link connects it with another.
    """

    index: int
    type: str
    path: List[int]
    uuid: str = ""
    memory_bytes: int = 0
    declared: bool = False
    serial: str = ""
    pci_address: str = ""
    sharing_modes: List[str] = field(default_factory=list)
    display: bool = False
    nvlink: int = -1


@dataclass(frozen=True)
class Interface:
    """A network interface of a node that is up and has an IPv4 address.

    Attributes:
        address: its first address with the length of the prefix, such as ``10.1.0.5/24``.
        speed: megabits per second; 0 if the driver does not report it.
    """

    name: str
    address: str
    speed: int = 0


@dataclass(frozen=True)
class Inventory:
    """Devices, memory and capabilities of a node.

    Attributes:
        levels: names of the levels from node to device, for instance node, socket, pcie, device.
        cpus, memory_bytes: capacity of the machine, or as declared.
        docker: version of the engine, empty without one; ``docker_socket`` its socket.
        engine: kind of the container engine, ``docker`` or ``podman``; empty without one.
        rootless: the engine runs without root, as the node's user.
        gpu_access: method by which the engine gives GPUs to containers, one of ``GPU_ACCESSES``;
            empty if none.
        firewall: the program that loads packet filter rules, ``iptables`` or ``nft``, or empty.
        warnings: texts about values that could not be read.
        isolation: the probe of each level; empty if none was probed.
        networks: probes of own networks of plain jobs, likewise.
        cuda: the highest version of CUDA that the driver supports, such as ``12.4``.
        reader: how the GPUs were read, such as ``nvml`` or ``rocm-smi``; empty without GPUs.
        conditions: of GPUs and the driver, see ``tessera.hardware``.
        job_network: the setting in the node's file, one of ``job_networks.SETTINGS``, or empty.
        interfaces: network interfaces, without loopback.
        infiniband: names of the InfiniBand adapters with an active port that programs can open.
    """

    devices: List[Device]
    levels: List[str]
    cpus: int
    memory_bytes: int
    driver: str = ""
    docker: str = ""
    docker_socket: str = ""
    engine: str = ""
    rootless: bool = False
    gpu_access: str = ""
    firewall: str = ""
    python: str = ""
    kernel: str = ""
    boot_id: str = ""
    hostname: str = ""
    cgroups: str = ""
    warnings: List[str] = field(default_factory=list)
    isolation: List[IsolationProbe] = field(default_factory=list)
    networks: List[NetworkProbe] = field(default_factory=list)
    job_network: str = ""
    cuda: str = ""
    reader: str = ""
    conditions: List[Condition] = field(default_factory=list)
    interfaces: List[Interface] = field(default_factory=list)
    infiniband: List[str] = field(default_factory=list)

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Inventory:
        """Read and check an inventory; unknown fields are ignored."""
        take = Fields(data, "inventory")
        levels = take.texts("levels", 16, 63)
        return cls(
            devices=[_device(item, len(levels) - 2) for item in take.items("devices", 4096)],
            levels=levels,
            cpus=take.integer("cpus", None, 1, 1 << 20),
            memory_bytes=take.integer("memory_bytes", None, 0, 1 << 60),
            driver=take.text("driver", "", 128),
            docker=take.text("docker", "", 128),
            docker_socket=take.text("docker_socket", "", 1024),
            engine=take.text("engine", "", 32),
            rootless=take.boolean("rootless", default=False),
            gpu_access=take.choice("gpu_access", "", ("", *GPU_ACCESSES)),
            firewall=take.text("firewall", "", 32),
            python=take.text("python", "", 64),
            kernel=take.text("kernel", "", 256),
            boot_id=take.text("boot_id", "", 128),
            hostname=take.text("hostname", "", 255),
            cgroups=take.text("cgroups", "", 16),
            warnings=take.texts("warnings", 100, 1000),
            isolation=_isolation(take),
            networks=[NetworkProbe.from_json(item) for item in take.items("networks", 8)],
            job_network=take.choice("job_network", "", ("", *job_networks.SETTINGS)),
            cuda=take.text("cuda", "", 32),
            reader=take.text("reader", "", 32),
            conditions=[Condition.from_json(item) for item in take.items("conditions", 4096)],
            interfaces=[_interface(item) for item in take.items("interfaces", MAX_INTERFACES)],
            infiniband=take.texts("infiniband", MAX_ADAPTERS, 63),
        )


def _interface(data: object) -> Interface:
    take = Fields(data, "interface")
    found = Interface(
        name=take.text("name", None, 15),
        address=take.text("address", None, 18),
        speed=take.integer("speed", 0, 0, 1 << 30),
    )
    if not _IPV4.fullmatch(found.address):
        raise take.refuse("address", "must be an IPv4 address with the length of its prefix")
    return found


def _isolation(take: Fields) -> List[IsolationProbe]:
    found = [IsolationProbe.from_json(item) for item in take.items("isolation", len(LEVELS))]
    if len({probe.level for probe in found}) < len(found):
        raise take.refuse("isolation", "must contain each level at most once")
    return found


def _device(data: object, depth: int) -> Device:
    take = Fields(data, "device")
    device = Device(
        index=take.integer("index", None, 0, 4095),
        type=take.text("type", None, 128),
        path=take.integers("path", 0, 4095),
        uuid=take.text("uuid", "", 128),
        memory_bytes=take.integer("memory_bytes", 0, 0, 1 << 60),
        declared=take.boolean("declared", default=False),
        serial=take.text("serial", "", 64),
        pci_address=take.text("pci_address", "", 32),
        sharing_modes=take.texts("sharing_modes", len(SHARING_MODES), 16),
        display=take.boolean("display", default=False),
        nvlink=take.integer("nvlink", -1, -1, 4095),
    )
    if not set(device.sharing_modes) <= set(SHARING_MODES):
        raise take.refuse("sharing_modes", f"must be some of {', '.join(SHARING_MODES)}")
    if len(device.path) != max(depth, 0):
        raise take.refuse("path", "needs one ordinal for each level between node and device")
    return device
