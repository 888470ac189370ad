"""Reader of Huawei's Ascend NPUs by ``npu-smi``."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tessera.node import smi, system
from tessera.node.gpus import Gpu, GpuProcess, Health, Reader, Reading, domains

DRIVER = "/dev/davinci_manager"
PLACES = ("/usr/local/bin", "/usr/local/sbin", "/usr/local/Ascend/driver/tools")
_VERSION = re.compile(r"^\|\s*npu-smi \S+\s+Version:\s*(\S+)", re.MULTILINE)
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_ALARMS = ("Warning", "Alarm", "Critical")
_FACT = re.compile(r"^\s*([A-Za-z][A-Za-z0-9 ]*?)\s*:\s*(.*?)\s*$", re.MULTILINE)
_DIE = re.compile(r"[0-9A-Fa-f]{8}(?: [0-9A-Fa-f]{8}){2,7}")

Place = Tuple[int, int]
"""Number of the card (NPU ID), and of the chip on it."""


class Numbers(NamedTuple):
    """Numbers of a chip: for programs, and of its device file."""

    logical: int
    file: int


class NpuSmiReader(Reader):
    """Calls ``npu-smi`` and parses its tables."""

    name = "npu-smi"

    def __init__(
        self, descriptors: Sequence[int] = (), *, optional_seconds: float = smi.OPTIONAL_SECONDS
    ) -> None:
        """Args: as those of ``SmiReader``."""
        places = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *PLACES]
        self._path = system.which("npu-smi", places)
        self._descriptors = tuple(descriptors)
        self._optional_seconds = optional_seconds

    def read(self, *, in_detail: bool) -> Optional[Reading]:
        """Read all chips; None if ``npu-smi`` is missing or prints no chip.

        The identity of a chip takes a call for each, so only detailed readings have it.
        """
        text = self._text("info", is_optional=False)
        numbers = read_numbers(self._text("info", "-m"))
        chips = dict(read_chips(text, numbers))
        if not chips:
            return None
        if in_detail:
            chips = {place: self._named(place, gpu) for place, gpu in chips.items()}
        version = _VERSION.search(text)
        ordered = sorted(chips.values(), key=lambda gpu: gpu.position)
        found = read_processes(text, {place: gpu.uuid for place, gpu in chips.items()})
        return Reading(
            gpus=ordered,
            driver=version.group(1) if version else "",
            processes=found if in_detail else [],
        )

    def closeness(self, gpus: Sequence[Gpu]) -> Optional[List[Tuple[int, int]]]:
        """Return None: the kernel reports the PCIe tree."""
        return None

    def nvlink_domains(self, gpus: Sequence[Gpu]) -> Optional[List[int]]:
        """Return the domains by HCCS links."""
        return read_links(self._text("info", "-t", "topo"), len(gpus))

    def _named(self, place: Place, gpu: Gpu) -> Gpu:
        """Return a chip with the identity of its die, and the serial number of its card."""
        card, chip = map(str, place)
        die = dict(_FACT.findall(self._text("info", "-t", "board", "-i", card, "-c", chip)))
        board = dict(_FACT.findall(self._text("info", "-t", "board", "-i", card)))
        name, serial = die.get("VDie ID", ""), board.get("Serial Number", "")
        return gpu._replace(
            uuid=f"NPU-{name.replace(' ', '-').lower()}" if _DIE.fullmatch(name) else "",
            serial=serial if serial.isalnum() and serial.upper() != "NA" else "",
        )

    def _text(self, *arguments: str, is_optional: bool = True) -> str:
        if not self._path:
            return ""
        seconds = self._optional_seconds if is_optional else None
        done = smi.run_tool([self._path, *arguments], self._descriptors, seconds)
        return "" if done is None else done[1]


# -- tables --------------------------------------------------------------------------------------


def read_numbers(text: str) -> Dict[Place, Numbers]:
    """Parse ``npu-smi info -m``; a chip without a logical number does not compute."""
    found = {}
    has_file_number = "Phy-ID" in text
    for words in (line.split() for line in text.splitlines()):
        numbers = words[: 4 if has_file_number else 3]
        if len(words) > len(numbers) and all(word.isdigit() for word in numbers):
            card, chip, *rest = map(int, numbers)
            found[card, chip] = Numbers(rest[0], rest[-1])
    return found


def read_chips(text: str, numbers: Dict[Place, Numbers]) -> Iterator[Tuple[Place, Gpu]]:
    """Parse the first table of ``npu-smi info``, with two lines for each chip."""
    card: Optional[Tuple[int, str, str, List[str]]] = None
    for cells in _rows(text):
        first = cells[0].split()
        if len(cells) == 3 and len(first) == 2 and first[0].isdigit() and _is_state(cells[1]):
            card = (int(first[0]), first[1], cells[1], cells[2].split())
        elif card is not None and len(cells) == 3 and first and all(map(str.isdigit, first)):
            place = (card[0], int(first[0]))
            known = Numbers(*map(int, (first[-1], first[-1]))) if len(first) > 1 else None
            yield place, _chip(card, cells, numbers.get(place, known or Numbers(card[0], card[0])))
            card = None


def _rows(text: str) -> Iterator[List[str]]:
    for line in text.splitlines():
        if line.startswith("|") and line.rstrip().endswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def _is_state(word: str) -> bool:
    return word in ("OK", "NA", "UNKNOWN", "Unknown", *_ALARMS)


def _chip(card: Tuple[int, str, str, List[str]], cells: List[str], numbers: Numbers) -> Gpu:
    _, name, state, figures = card
    usages = [(int(used), int(total)) for used, total in _USAGE.findall(cells[2])]
    used, total = next((one for one in reversed(usages) if one[1]), (None, None))
    percent = _number((cells[2].split() or [""])[0])
    power, heat = [*figures, "", ""][:2]
    return Gpu(
        position=numbers.logical,
        uuid="",
        name=name if name.startswith("Ascend") else f"Ascend {name}",
        pci_address=cells[1].lower() if cells[1] != "NA" else "",
        memory_bytes=None if total is None else total << 20,
        memory_used_bytes=None if used is None else used << 20,
        utilisation=None if percent is None else min(1.0, percent / 100),
        temperature=_number(heat),
        power=_number(power),
        file_number=numbers.file,
        health=Health(alarm=state if state in _ALARMS else ""),
    )


def read_processes(text: str, names: Dict[Place, str]) -> List[GpuProcess]:
    """Parse the table of processes below that of the chips."""
    found = []
    for cells in _rows(text):
        place = cells[0].split()
        if len(cells) != 4 or not all(map(str.isdigit, (*place, cells[1]))) or not place:
            continue
        name = names.get((int(place[0]), int(place[1]) if len(place) > 1 else 0), "")
        memory = int(cells[3]) << 20 if cells[3].isdigit() else None
        if name:
            found.append(GpuProcess(name, int(cells[1]), memory))
    return found


def read_links(text: str, size: int) -> Optional[List[int]]:
    """Return the domains of the matrix of ``npu-smi info -t topo``; None if it is incomplete."""
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*NPU\d+\s", line)]
    matrix = [row[1 : size + 1] for row in rows if "X" in row[1 : size + 1]]
    if len(matrix) != size or any(len(row) != size for row in matrix):
        return None
    pairs = (
        (a, b) for a, row in enumerate(matrix) for b, word in enumerate(row) if word == "HCCS"
    )
    return domains(size, pairs)


def _number(word: str) -> Optional[float]:
    try:
        return float(word)
    except ValueError:
        return None
