"""Reader of GPUs by ``nvidia-smi``, for nodes whose NVML cannot be loaded."""

from __future__ import annotations

import re
import time
from typing import Dict, List, Optional, Sequence, Tuple

from tessera.node.gpus import (
    LOST,
    NEAR,
    RESET_REQUIRED,
    SAME_SOCKET,
    Gpu,
    GpuProcess,
    Health,
    Reader,
    Reading,
    domains,
    groups,
    kernel_address,
)

OPTIONAL_SECONDS, ALL_SECONDS = 8.0, 50.0
"""Limits of an optional call, and of all calls, which is less than the deadline of the driver."""
_FIELDS = (
    *("index", "uuid", "name", "pci.bus_id", "serial", "memory.total", "memory.used"),
    *("utilization.gpu", "temperature.gpu", "power.draw", "compute_mode", "driver_version"),
    *("ecc.errors.uncorrected.volatile.total", "retired_pages.pending"),
    *("clocks_throttle_reasons.active", "display_active"),
)
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_LOST = re.compile(r"device handle for GPU ?([0-9A-Fa-f:.]+): .*lost", re.IGNORECASE)
_CUDA = re.compile(r"^CUDA Version\s*:\s*(\d+\.\d+)", re.MULTILINE)
_GPU_OF_LINKS = re.compile(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_LINK_ERRORS = re.compile(r"^\s*Link \d+: (?:Replay|Recovery|CRC) Errors: (\d+)")
_ROWS = "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure"
_APPS = "--query-compute-apps=gpu_uuid,pid,used_memory"
_CSV = "--format=csv,noheader,nounits"


class SmiReader(Reader):
    """Calls ``nvidia-smi`` and parses its tables."""

    name = "nvidia-smi"

    def __init__(
        self, descriptors: Sequence[int] = (), *, optional_seconds: float = OPTIONAL_SECONDS
    ) -> None:
        """Create a reader.

        Args:
            descriptors: inherited by each call, so that a lock lives as long as it does.
            optional_seconds: limit of a call whose facts may be unknown.
        """
        self._descriptors = tuple(descriptors)
        self._optional_seconds = optional_seconds
        self._end = time.monotonic() + ALL_SECONDS
        self._topology: Optional[str] = None

    def read(self, *, in_detail: bool) -> Optional[Reading]:
        """Read all GPUs; None if ``nvidia-smi`` is missing or prints no GPU.

        The caller limits the call that reads the rows. A later one that does not end in time
        leaves its facts unknown. An exit code other than 0 does not discard the output: when one
        GPU is lost, ``nvidia-smi`` lists the others and exits with 15.
        """
        code, text, fields = self._query()
        rows = read_rows(text, fields)
        lost = [kernel_address(address) for address in _LOST.findall(text)]
        if not rows and not lost:
            return None
        remaps = self._remaps() if in_detail else {}
        links = self._link_errors() if in_detail else {}
        warnings = []
        if code != 0:
            others = [line.strip() for line in text.splitlines() if not read_rows(line, fields)]
            warnings.append(f"nvidia-smi ends with code {code}: {' '.join(others)[:300]}")
        return Reading(
            gpus=[_gpu(row, remaps, links) for row in rows],
            driver=next((row["driver_version"] for row in rows), ""),
            cuda=self._cuda() if in_detail else "",
            lost=lost,
            warnings=warnings,
            processes=self._processes() if in_detail else [],
        )

    def closeness(self, gpus: Sequence[Gpu]) -> Optional[List[Tuple[int, int]]]:
        """Parse the matrix of ``nvidia-smi topo -m``."""
        return read_topology(self._matrix(), len(gpus))

    def nvlink_domains(self, gpus: Sequence[Gpu]) -> Optional[List[int]]:
        """Return the domains by the links in the matrix of ``nvidia-smi topo -m``."""
        return read_links(self._matrix(), len(gpus))

    def _matrix(self) -> str:
        if self._topology is None:
            self._topology = self._text("topo", "-m")
        return self._topology

    def _query(self) -> Tuple[int, str, List[str]]:
        """Query the fields that the installed release knows."""
        fields = list(_FIELDS)
        while True:
            code, text = self._run(f"--query-gpu={','.join(fields)}", _CSV)
            unknown = _UNKNOWN_FIELD.search(text)
            if unknown is None or unknown.group(1) not in fields[1:]:
                return code, text, fields
            fields.remove(unknown.group(1))

    def _remaps(self) -> Dict[str, List[str]]:
        rows = (line.split(",") for line in self._text(_ROWS, _CSV).splitlines())
        return {
            row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if len(row) == 3
        }

    def _processes(self) -> List[GpuProcess]:
        rows = (line.split(",") for line in self._text(_APPS, _CSV).splitlines())
        cells = [[cell.strip() for cell in row] for row in rows if len(row) == 3]
        return [
            GpuProcess(uuid, int(pid), int(used) << 20 if used.isdigit() else None)
            for uuid, pid, used in cells
            if pid.isdigit()
        ]

    def _link_errors(self) -> Dict[str, int]:
        found: Dict[str, int] = {}
        uuid = ""
        for line in self._text("nvlink", "-e").splitlines():
            named, errors = _GPU_OF_LINKS.match(line), _LINK_ERRORS.match(line)
            if named:
                uuid = named.group(1)
            elif errors and uuid:
                found[uuid] = found.get(uuid, 0) + int(errors.group(1))
        return found

    def _cuda(self) -> str:
        found = _CUDA.search(self._text("-q", "-d", "COMPUTE"))
        return found.group(1) if found else ""

    def _text(self, *arguments: str) -> str:
        """Return the output of an optional call."""
        left = min(self._optional_seconds, self._end - time.monotonic())
        return self._run(*arguments, seconds=left)[1] if left > 0 else ""

    def _run(self, *arguments: str, seconds: Optional[float] = None) -> Tuple[int, str]:
        return run_tool(["nvidia-smi", *arguments], self._descriptors, seconds) or (0, "")


def run_tool(
    command: Sequence[str], descriptors: Sequence[int], seconds: Optional[float] = None
) -> Optional[Tuple[int, str]]:
    """Run a tool of the driver; return its exit code and output, or None without an answer."""
    import subprocess  # noqa: PLC0415 - costs start-up time that only this path needs

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
            pass_fds=descriptors,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.returncode, done.stdout.decode("utf-8", "replace")


def read_rows(text: str, fields: Sequence[str]) -> List[Dict[str, str]]:
    """Parse the rows of ``nvidia-smi --query-gpu``; other lines are left out."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        dict(zip(fields, row))  # noqa: B905 - strict came with Python 3.10
        for row in rows
        if len(row) == len(fields) and row[0].isdigit()
    ]


def _gpu(row: Dict[str, str], remaps: Dict[str, List[str]], links: Dict[str, int]) -> Gpu:
    uuid = row["uuid"] if row["uuid"].startswith("GPU-") else ""
    percent = _number(row.get("utilization.gpu"))
    total, used = _number(row.get("memory.total")), _number(row.get("memory.used"))
    serial = row.get("serial", "")
    remap = remaps.get(uuid, ["", ""])
    errors, reasons = _number(row.get("ecc.errors.uncorrected.volatile.total")), None
    if row.get("clocks_throttle_reasons.active", "").startswith("0x"):
        reasons = int(row["clocks_throttle_reasons.active"], 16)
    return Gpu(
        position=int(row["index"]),
        uuid=uuid,
        name=row["name"],
        pci_address=kernel_address(row.get("pci.bus_id", "")),
        serial=serial if serial.isalnum() and serial != "0" else "",
        memory_bytes=None if total is None else int(total) << 20,
        memory_used_bytes=None if used is None else int(used) << 20,
        utilisation=None if percent is None else min(1.0, percent / 100),
        temperature=_number(row.get("temperature.gpu")),
        power=_number(row.get("power.draw")),
        compute_mode="" if "[" in row.get("compute_mode", "[") else row["compute_mode"],
        display=row.get("display_active") == "Enabled",
        health=Health(
            fault=_fault(row),
            ecc_uncorrectable=None if errors is None else int(errors),
            remap_pending=_yes(remap[0]),
            remap_failed=_yes(remap[1]),
            pages_pending=_yes(row.get("retired_pages.pending", "")),
            throttle_reasons=reasons,
            nvlink_errors=links.get(uuid),
        ),
    )


def _fault(row: Dict[str, str]) -> str:
    """Return the fault that the driver writes into cells that it cannot read."""
    cells = " ".join(row.values()).lower()
    if "gpu is lost" in cells:
        return LOST
    return RESET_REQUIRED if "[gpu requires re" in cells else ""


def _yes(cell: str) -> Optional[bool]:
    return {"yes": True, "1": True, "no": False, "0": False}.get(cell.lower())


def _number(cell: Optional[str]) -> Optional[float]:
    """Parse a number; None for ``[N/A]`` and the like."""
    try:
        return float(cell or "")
    except ValueError:
        return None


def read_topology(text: str, gpus: int) -> Optional[List[Tuple[int, int]]]:
    """Parse socket and PCIe group of each GPU from the matrix of ``nvidia-smi topo -m``.

    For two GPUs joined by NVLink, the matrix contains only the link and not their PCIe groups. So
    each such GPU is a separate group, and the socket comes from the NUMA column.
    """
    rows, matrix = _rows_of(text, gpus)
    if len(matrix) != gpus or any(len(row) != gpus for row in matrix):
        return None
    sockets = groups(matrix, SAME_SOCKET)
    numa = [_numa_of(row, gpus) for row in rows if "X" in row]
    if all(value is not None for value in numa):
        sockets = [int(value or 0) for value in numa]
    return list(zip(sockets, groups(matrix, NEAR)))  # noqa: B905 - strict came with Python 3.10


def read_links(text: str, gpus: int) -> Optional[List[int]]:
    """Parse the NVLink domain of each GPU from the matrix of ``nvidia-smi topo -m``."""
    _, matrix = _rows_of(text, gpus)
    if len(matrix) != gpus or any(len(row) != gpus for row in matrix):
        return None
    linked = [
        (one, other)
        for one, row in enumerate(matrix)
        for other, word in enumerate(row)
        if re.fullmatch(r"NV\d+", word)
    ]
    return domains(gpus, linked)


def _rows_of(text: str, gpus: int) -> Tuple[List[List[str]], List[List[str]]]:
    """Return the rows of GPUs in a topology matrix, and their words for the other GPUs."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split() for line in plain.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    return rows, [row[1 : gpus + 1] for row in rows if "X" in row]


def _numa_of(row: Sequence[str], gpus: int) -> Optional[int]:
    """Return the NUMA affinity, which follows the CPU affinity (a range) in the last columns."""
    tail = row[gpus + 1 :]
    for index, word in enumerate(tail):
        if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", word) and index + 1 < len(tail):
            following = tail[index + 1]
            return int(following) if following.isdigit() else None
    return None
