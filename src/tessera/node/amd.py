"""Readers of AMD's GPUs by ``amd-smi``, or by ``rocm-smi`` of earlier releases of ROCm."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from tessera.node import smi, system
from tessera.node.gpus import Gpu, GpuProcess, Health, Reader, Reading, domains

DRIVER = "/dev/kfd"
PLACES = ("/opt/rocm/bin",)
_STATIC = ("static", "--asic", "--bus", "--board", "--vram", "--driver")
_METRIC = ("metric", "--usage", "--mem-usage", "--power", "--temperature", "--ecc")
_SHOWN = (
    *("--showproductname", "--showuniqueid", "--showserial", "--showbus", "--showdriverversion"),
    *("--showmeminfo", "vram", "--showuse", "--showtemp", "--showpower"),
)
_LINK = re.compile(r"Link type between DRM devices (\d+) and (\d+)$")
_UNIQUE_ID = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_POWERS = ("socket_power", "current_socket_power", "average_socket_power")
_CARD = re.compile(r"card(\d+)")

Table = Dict[str, Any]


class _Tool:
    """Calls a tool of ROCm, and parses its JSON; other lines before it are left out."""

    def __init__(self, name: str, descriptors: Sequence[int], optional_seconds: float) -> None:
        places = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *PLACES]
        self._path = system.which(name, places)
        self._descriptors = tuple(descriptors)
        self._optional_seconds = optional_seconds

    def json(self, *arguments: str, is_optional: bool = False) -> Any:
        """Return the output of a call; None without an answer.

        The caller limits calls that are not optional.
        """
        if not self._path:
            return None
        seconds = self._optional_seconds if is_optional else None
        done = smi.run_tool([self._path, *arguments, "--json"], self._descriptors, seconds)
        text = "" if done is None else done[1]
        for start in (found.start() for found in re.finditer(r"^[\[{]", text, re.MULTILINE)):
            try:
                return json.JSONDecoder().raw_decode(text[start:])[0]
            except ValueError:
                continue
        return None


class AmdSmiReader(Reader):
    """Calls ``amd-smi``."""

    name = "amd-smi"

    def __init__(
        self, descriptors: Sequence[int] = (), *, optional_seconds: float = smi.OPTIONAL_SECONDS
    ) -> None:
        """Args: as those of ``SmiReader``."""
        self._tool = _Tool("amd-smi", descriptors, optional_seconds)

    def read(self, *, in_detail: bool) -> Optional[Reading]:
        """Read all GPUs; None if ``amd-smi`` is missing or prints no GPU."""
        static = _by_number(self._tool.json(*_STATIC))
        if not static:
            return None
        metrics = _by_number(self._tool.json(*_METRIC))
        gpus = [_gpu(number, row, metrics.get(number, {})) for number, row in static.items()]
        gpus = _with_own_names(gpus)
        return Reading(
            gpus=gpus,
            driver=next((_words(_at(row, "driver", "version")) for row in static.values()), ""),
            processes=self._processes(gpus) if in_detail else [],
        )

    def closeness(self, gpus: Sequence[Gpu]) -> Optional[List[Tuple[int, int]]]:
        """Return None: the kernel reports the PCIe tree."""
        return None

    def nvlink_domains(self, gpus: Sequence[Gpu]) -> Optional[List[int]]:
        """Return the domains by XGMI links, which AMD also names Infinity Fabric."""
        rows = _by_number(self._tool.json("topology", is_optional=True))
        if not rows:
            return None
        return _linked(
            gpus,
            (
                (number, link.get("gpu"))
                for number, row in rows.items()
                for link in _tables(row.get("links"))
                if link.get("link_type") == "XGMI"
            ),
        )

    def _processes(self, gpus: Sequence[Gpu]) -> List[GpuProcess]:
        rows = _by_number(self._tool.json("process", is_optional=True))
        return [
            GpuProcess(gpu.uuid, found["pid"], _bytes(_at(found, "memory_usage", "vram_mem")))
            for gpu in gpus
            for one in _tables(rows.get(gpu.position, {}).get("process_list"))
            if isinstance(found := one.get("process_info"), dict) and _is_pid(found.get("pid"))
        ]


class RocmSmiReader(Reader):
    """Calls ``rocm-smi``, which reports neither memory errors nor the GPUs of a process."""

    name = "rocm-smi"

    def __init__(
        self, descriptors: Sequence[int] = (), *, optional_seconds: float = smi.OPTIONAL_SECONDS
    ) -> None:
        """Args: as those of ``SmiReader``."""
        self._tool = _Tool("rocm-smi", descriptors, optional_seconds)

    def read(self, *, in_detail: bool) -> Optional[Reading]:
        """Read all GPUs; None if ``rocm-smi`` is missing or prints no GPU."""
        found = self._tool.json(*_SHOWN)
        if not isinstance(found, dict):
            return None
        cards = {
            int(named.group(1)): row
            for name, row in found.items()
            if (named := _CARD.fullmatch(name)) and isinstance(row, dict)
        }
        if not cards:
            return None
        gpus = [_card(number, cards[number]) for number in sorted(cards)]
        driver = _words(_at(found, "system", "Driver version"))
        return Reading(gpus=_with_own_names(gpus), driver=driver)

    def closeness(self, gpus: Sequence[Gpu]) -> Optional[List[Tuple[int, int]]]:
        """Return None: the kernel reports the PCIe tree."""
        return None

    def nvlink_domains(self, gpus: Sequence[Gpu]) -> Optional[List[int]]:
        """Return the domains by XGMI links."""
        found = self._tool.json("--showtopotype", is_optional=True)
        system_rows = found.get("system") if isinstance(found, dict) else None
        if not isinstance(system_rows, dict):
            return None
        return _linked(
            gpus,
            (
                (int(pair.group(1)), int(pair.group(2)))
                for name, word in system_rows.items()
                if word == "XGMI" and (pair := _LINK.search(name))
            ),
        )


# -- GPUs ----------------------------------------------------------------------------------------


def _gpu(number: int, static: Table, metric: Table) -> Gpu:
    usage, memory = metric.get("usage"), metric.get("mem_usage")
    heat = [_number(_at(metric, "temperature", sensor)) for sensor in ("hotspot", "edge")]
    powers = [_number(_at(metric, "power", name)) for name in _POWERS]
    errors = _number(_at(metric, "ecc", "total_uncorrectable_count"))
    percent = _number(_at(usage, "gfx_activity"))
    return Gpu(
        position=number,
        uuid=_uuid(_at(static, "asic", "asic_serial")),
        name=_words(_at(static, "asic", "market_name")) or "AMD GPU",
        pci_address=_words(_at(static, "bus", "bdf")).lower(),
        serial=_serial(_at(static, "board", "product_serial")),
        memory_bytes=_bytes(_at(static, "vram", "size")) or _bytes(_at(memory, "total_vram")),
        memory_used_bytes=_bytes(_at(memory, "used_vram")),
        utilisation=None if percent is None else min(1.0, percent / 100),
        temperature=_first(heat),
        power=_first(powers),
        health=Health(ecc_uncorrectable=None if errors is None else int(errors)),
    )


def _card(number: int, row: Table) -> Gpu:
    facts = {name.lower(): value for name, value in row.items()}
    heat = [
        _number(facts.get(f"temperature (sensor {sensor}) (c)")) for sensor in ("junction", "edge")
    ]
    powers = [
        _number(facts.get(f"{kind} graphics package power (w)"))
        for kind in ("current socket", "average")
    ]
    total, used = (_number(facts.get(f"vram total {part}memory (b)")) for part in ("", "used "))
    percent = _number(facts.get("gpu use (%)"))
    return Gpu(
        position=number,
        uuid=_uuid(facts.get("unique id")),
        name=_words(facts.get("card series")) or "AMD GPU",
        pci_address=_words(facts.get("pci bus")).lower(),
        serial=_serial(facts.get("serial number")),
        memory_bytes=None if total is None else int(total),
        memory_used_bytes=None if used is None else int(used),
        utilisation=None if percent is None else min(1.0, percent / 100),
        temperature=_first(heat),
        power=_first(powers),
    )


def _with_own_names(gpus: Sequence[Gpu]) -> List[Gpu]:
    """Return the GPUs without names that several of them have: a name must identify one."""
    seen = Counter(gpu.uuid for gpu in gpus)
    return [gpu if seen[gpu.uuid] == 1 else gpu._replace(uuid="") for gpu in gpus]


def _linked(gpus: Sequence[Gpu], pairs: Iterator[Tuple[Any, Any]]) -> List[int]:
    places = {gpu.position: place for place, gpu in enumerate(gpus)}
    known = [
        (places[one], places[other])
        for one, other in pairs
        if isinstance(other, int) and one in places and other in places
    ]
    return domains(len(gpus), known)


# -- values --------------------------------------------------------------------------------------


def _tables(found: Any) -> List[Table]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _by_number(found: Any) -> Dict[int, Table]:
    """Return the rows by the number of their GPU; later releases wrap the list."""
    rows = _tables(found.get("gpu_data") if isinstance(found, dict) else found)
    return {row["gpu"]: row for row in rows if isinstance(row.get("gpu"), int)}


def _at(found: Any, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _words(found: Any) -> str:
    """Return a text; empty for ``N/A`` and the like."""
    text = " ".join(found.split())[:128] if isinstance(found, str) else ""
    return "" if text.upper() in ("N/A", "NA", "NONE", "UNKNOWN") else text


def _serial(found: Any) -> str:
    text = _words(found)
    return text if text.strip("0") and re.fullmatch(r"[A-Za-z0-9-]+", text) else ""


def _uuid(found: Any) -> str:
    """Return the name of a GPU as the runtime of ROCm reads it, ``GPU-`` and 16 digits."""
    number = _UNIQUE_ID.fullmatch(_words(found))
    digits = number.group(1).lower() if number else ""
    return f"GPU-{digits:0>16}" if digits.strip("0") else ""


def _number(found: Any) -> Optional[float]:
    """Return a number, which later releases write with its unit."""
    if isinstance(found, dict):
        found = found.get("value")
    try:
        return float(found)
    except (TypeError, ValueError):
        return None


def _bytes(found: Any) -> Optional[int]:
    number = _number(found)
    unit = found.get("unit", "MB") if isinstance(found, dict) else "MB"
    return None if number is None else int(number * _UNITS.get(unit, 1 << 20))


def _first(found: Sequence[Optional[float]]) -> Optional[float]:
    return next((one for one in found if one is not None), None)


def _is_pid(found: Any) -> bool:
    return isinstance(found, int) and found > 0
