"""Recorded machines with GPUs, as the stand-ins of both readers report them.

The forms are those of ``nvidia-smi`` (drivers 470 to 570) and of NVIDIA's bindings of NVML. The
values are constructed.
"""

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LOST, RESET_REQUIRED, NOT_SUPPORTED, UNINITIALISED = 15, 16, 3, 1
TEXTS = {
    LOST: "GPU is lost",
    RESET_REQUIRED: "GPU requires reset",
    NOT_SUPPORTED: "Not Supported",
    UNINITIALISED: "Uninitialized",
}


@dataclass(frozen=True, kw_only=True)
class Board:
    """A GPU; None for what its driver does not support.

    Attributes:
        fault: error of NVML with which it answers; a lost one does not even have a handle.
        instances: its MIG instances; None if it is not in MIG mode.
        links: errors of its active NVLinks; empty without one.
        processes: pid and memory (MiB) of processes that compute on it.
        display: whether a screen shows its output.
    """

    uuid: str
    bus_id: str
    name: str = "NVIDIA A100-SXM4-80GB"
    serial: str | None = "1324220042"
    memory_mib: int = 81920
    used_mib: int = 1024
    busy: int | None = 50
    temperature: int | None = 41
    milliwatts: int | None = 67_250
    mode: int = 0
    ecc: int | None = 0
    remap: tuple[bool, bool] | None = (False, False)
    pages: bool | None = None
    reasons: int | None = 0
    links: tuple[int, ...] = ()
    processes: tuple[tuple[int, int | None], ...] = ()
    fault: int = 0
    instances: tuple["Instance", ...] | None = None
    display: bool = False


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A MIG instance with its identifiers, its slices and its memory."""

    uuid: str
    part: int
    slices: int
    memory_mib: int
    name: str = "NVIDIA A100-SXM4-80GB"
    processes: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine; ``near`` has the word of each pair of different GPUs.

    Attributes:
        linked: pairs that NVLink joins; with ``switched``, NVSwitches join all GPUs.
    """

    boards: tuple[Board, ...]
    driver: str = "535.104.05"
    cuda: int = 12020
    near: dict[tuple[int, int], str] = field(default_factory=dict)
    unknown_fields: tuple[str, ...] = ()
    linked: frozenset[tuple[int, int]] = frozenset()
    switched: bool = False

    def ends(self, one: int) -> list[int | None]:
        """The GPU at the end of each link; None for a switch."""
        if self.switched:
            return [None] * len(self.boards[one].links)
        pairs = [pair for pair in sorted(self.linked) if one in pair]
        return [pair[0] if pair[1] == one else pair[1] for pair in pairs]

    def word(self, one: int, other: int) -> str:
        return self.near.get((min(one, other), max(one, other)), "SYS")

    def change(self, place: int, **changes: Any) -> "Machine":
        boards = [
            replace(board, **changes) if index == place else board
            for index, board in enumerate(self.boards)
        ]
        return replace(self, boards=tuple(boards))


def boards(number: int, **facts: Any) -> tuple[Board, ...]:
    return tuple(
        Board(uuid=f"GPU-{index:08x}", bus_id=f"00000000:{7 + 8 * index:02X}:00.0", **facts)
        for index in range(number)
    )


SOCKETS = {
    (one, other): "PXB" if one // 2 == other // 2 else "NODE" if one // 4 == other // 4 else "SYS"
    for one in range(8)
    for other in range(one + 1, 8)
}
DGX_A100 = Machine(boards=boards(8, links=(0,) * 12), near=SOCKETS, switched=True)
A40_PAIRS = Machine(
    boards=boards(8, name="NVIDIA A40", memory_mib=46068, links=(0,)),
    near={
        (one, other): "NODE" if one // 4 == other // 4 else "SYS"
        for one in range(8)
        for other in range(one + 1, 8)
    },
    linked=frozenset({(0, 1), (2, 3), (4, 5), (6, 7)}),
)
CLOUD_T4 = Machine(
    boards=boards(4, name="Tesla T4", memory_mib=15360, remap=None, pages=False),
    near={(a, b): "PHB" for a in range(4) for b in range(a + 1, 4)},
    driver="470.57.02",
    cuda=11040,
)
DISPLAY = Machine(
    boards=(
        *boards(2, name="Tesla V100-DGXS-32GB", memory_mib=32768, remap=None, pages=False),
        Board(
            uuid="GPU-display",
            bus_id="00000000:81:00.0",
            name="NVIDIA DGX Display",
            serial=None,
            memory_mib=4096,
            busy=None,
            milliwatts=None,
            ecc=None,
            remap=None,
            reasons=None,
            display=True,
        ),
    ),
    near={(0, 1): "PHB", (0, 2): "PHB", (1, 2): "PHB"},
)
MACHINES = {
    "DGX A100": DGX_A100,
    "pairs of A40": A40_PAIRS,
    "4 x T4 in a VM": CLOUD_T4,
    "V100 with a display": DISPLAY,
}


# -- nvidia-smi ----------------------------------------------------------------------------------


def write_smi(machine: Machine, path: Path) -> None:
    """Write a stand-in ``nvidia-smi`` to ``path``, with the outputs of the machine beside it."""
    outputs = path.parent / f"{path.name}.outputs"
    outputs.mkdir(exist_ok=True)
    answers = {
        "remap": _remaps(machine),
        "links": _links(machine),
        "apps": _apps(machine),
        "topo": _topo(machine),
        "compute": f"\n==============NVSMI LOG==============\n\n"
        f"Driver Version                            : {machine.driver}\n"
        f"CUDA Version                              : {_cuda(machine)}\n",
    }
    for name, text in answers.items():
        (outputs / name).write_text(text)
    lines = ["#!/bin/sh", 'case "$1" in', "--query-gpu=*)"]
    for unknown in machine.unknown_fields:
        refused = f'Field "{unknown}" is not a valid field to query.'
        lines.append(f'case "$1" in *{unknown}*) echo {shlex.quote(refused)}; exit 2;; esac')
    lines.append("IFS=,; first=; ")
    for index, board in enumerate(machine.boards):
        if board.fault == LOST:
            lines += [
                f"echo 'Unable to determine the device handle for GPU{board.bus_id[4:]}: "
                "GPU is lost.  Reboot the system to recover this GPU' >&2",
                "code=15",
            ]
            continue
        lines.append("first=; for field in ${1#--query-gpu=}; do case $field in")
        for name, cell in _cells(machine, index, board).items():
            lines.append(f"{name}) cell={shlex.quote(cell)};;")
        lines.append(
            '*) cell="[N/A]";; esac; printf "%s%s" "$first" "$cell"; first=", "; done; echo'
        )
    lines += [
        "exit ${code:-0};;",
        f"--query-remapped-rows=*) cat {shlex.quote(str(outputs))}/remap;;",
        f"--query-compute-apps=*) cat {shlex.quote(str(outputs))}/apps;;",
        f"nvlink) cat {shlex.quote(str(outputs))}/links;;",
        f"topo) cat {shlex.quote(str(outputs))}/topo;;",
        f"-q) cat {shlex.quote(str(outputs))}/compute;;",
        "esac",
    ]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)


def _cells(machine: Machine, index: int, board: Board) -> dict[str, str]:
    names = {"index": str(index), "uuid": board.uuid, "name": board.name,
             "pci.bus_id": board.bus_id, "driver_version": machine.driver}  # fmt: skip
    if board.fault:
        bad = f"[{TEXTS[board.fault]}]"
        rest = ("serial", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu",
                "power.draw", "compute_mode", "ecc.errors.uncorrected.volatile.total",
                "retired_pages.pending", "clocks_throttle_reasons.active")  # fmt: skip
        return {**names, **dict.fromkeys(rest, bad)}
    modes = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
    return {
        **names,
        "serial": board.serial or "[N/A]",
        "memory.total": str(board.memory_mib),
        "memory.used": str(board.used_mib),
        "utilization.gpu": _cell(board.busy),
        "temperature.gpu": _cell(board.temperature),
        "power.draw": "[N/A]" if board.milliwatts is None else f"{board.milliwatts / 1000:.2f}",
        "compute_mode": modes[board.mode],
        "ecc.errors.uncorrected.volatile.total": _cell(board.ecc),
        "retired_pages.pending": {None: "[N/A]", True: "Yes", False: "No"}[board.pages],
        "display_active": "Enabled" if board.display else "Disabled",
        "clocks_throttle_reasons.active": "[N/A]"
        if board.reasons is None
        else f"0x{board.reasons:016x}",
    }


def _cell(value: int | None) -> str:
    return "[N/A]" if value is None else str(value)


def _cuda(machine: Machine) -> str:
    return f"{machine.cuda // 1000}.{machine.cuda % 1000 // 10}"


def _remaps(machine: Machine) -> str:
    words = {True: "Yes", False: "No"}
    return "".join(
        f"{board.uuid}, {words[board.remap[0]]}, {words[board.remap[1]]}\n"
        for board in machine.boards
        if board.remap is not None and not board.fault
    )


def _apps(machine: Machine) -> str:
    return "".join(
        f"{board.uuid}, {pid}, {'[N/A]' if used is None else used}\n"
        for board in machine.boards
        for pid, used in board.processes
        if not board.fault
    )


def _links(machine: Machine) -> str:
    lines = []
    for index, board in enumerate(machine.boards):
        if board.fault:
            continue
        lines.append(f"GPU {index}: {board.name} (UUID: {board.uuid})")
        for link, errors in enumerate(board.links):
            counts = (("Replay", errors), ("Recovery", 0), ("CRC", 0))
            lines += [f"\t Link {link}: {kind} Errors: {number}" for kind, number in counts]
    return "\n".join(lines) + "\n"


def _word(machine: Machine, one: int, other: int) -> str:
    is_linked = machine.switched or (min(one, other), max(one, other)) in machine.linked
    return f"NV{len(machine.boards[one].links)}" if is_linked else machine.word(one, other)


def _topo(machine: Machine) -> str:
    here = [index for index, board in enumerate(machine.boards) if board.fault != LOST]
    head = "\t" + "\t".join(f"GPU{index}" for index in here) + "\tCPU Affinity\n"
    rows = (
        f"GPU{one}\t"
        + "\t".join(" X " if one == other else _word(machine, one, other) for other in here)
        + "\t0-63\n"
        for one in here
    )
    return head + "".join(rows) + "\nLegend:\n\n  X    = Self\n"


# -- NVML ----------------------------------------------------------------------------------------


class NvmlError(Exception):
    """An error of NVML with its code."""

    def __init__(self, value: int) -> None:
        super().__init__(TEXTS[value])
        self.value = value


class Nvml:
    """A stand-in for the module ``pynvml`` on a machine."""

    NVMLError = NvmlError
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = LOST, RESET_REQUIRED
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def nvmlInit(self) -> None:
        if not self.machine.boards:
            raise NvmlError(UNINITIALISED)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.machine.boards)

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.machine.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.machine.cuda

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.machine.boards[index].fault == LOST:
            raise NvmlError(LOST)
        return index

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        is_on = self.machine.boards[handle].instances is not None
        return [int(is_on), int(is_on)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> Instance:
        instances = self.machine.boards[handle].instances or ()
        if index >= len(instances):
            raise NvmlError(NOT_SUPPORTED)
        return instances[index]

    def nvmlDeviceGetGpuInstanceId(self, handle: Instance) -> int:
        return handle.part

    def nvmlDeviceGetComputeInstanceId(self, handle: Instance) -> int:
        return 0

    def nvmlDeviceGetAttributes_v2(self, handle: Instance) -> Any:
        return SimpleNamespace(memorySizeMB=handle.memory_mib, gpuInstanceSliceCount=handle.slices)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=self.machine.boards[handle].bus_id.encode())

    def nvmlDeviceGetUUID(self, handle: "int | Instance") -> str:
        return self._of(handle).uuid

    def nvmlDeviceGetName(self, handle: "int | Instance") -> bytes:
        return self._of(handle).name.encode()

    def _of(self, handle: "int | Instance") -> "Board | Instance":
        return handle if isinstance(handle, Instance) else self.machine.boards[handle]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        levels = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
        return levels[self.machine.word(one, other)]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: "int | Instance") -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if used is None else used << 20)
            for pid, used in self._of(handle).processes
        ]

    def nvmlDeviceGetSerial(self, handle: int) -> str:
        return self._fact(handle, "serial")

    def nvmlDeviceGetMemoryInfo(self, handle: "int | Instance") -> Any:
        if isinstance(handle, Instance):
            return SimpleNamespace(total=handle.memory_mib << 20, used=1 << 20)
        total, used = self._fact(handle, "memory_mib"), self._fact(handle, "used_mib")
        return SimpleNamespace(total=total << 20, used=used << 20)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self._fact(handle, "busy"))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == 0
        return self._fact(handle, "temperature")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._fact(handle, "milliwatts")

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        return self._fact(handle, "mode")

    def nvmlDeviceGetDisplayActive(self, handle: int) -> int:
        return int(self._fact(handle, "display"))

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0), "uncorrected, volatile"
        return self._fact(handle, "ecc")

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: int) -> int:
        return int(self._fact(handle, "pages"))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self._fact(handle, "reasons")

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        pending, failed = self._fact(handle, "remap")
        return 0, 0, int(pending), int(failed)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        board = self._fact(handle, "links")
        is_joined = self.machine.linked or self.machine.switched
        return int(link < len(self.machine.ends(handle) if is_joined else board))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if self.machine.ends(handle)[link] is None else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        end = self.machine.ends(handle)[link]
        assert end is not None
        return SimpleNamespace(busId=self.machine.boards[end].bus_id.encode())

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:
        return self._fact(handle, "links")[link] if counter == 0 else 0

    def _fact(self, handle: int, name: str) -> Any:
        board = self.machine.boards[handle]
        if board.fault:
            raise NvmlError(board.fault)
        value = getattr(board, name)
        if value is None:
            raise NvmlError(NOT_SUPPORTED)
        return value
