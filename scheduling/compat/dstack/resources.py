"""Resources of each node of a dstack task: GPUs, CPUs and memory."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scheduling.compat.context import Context
from scheduling.compat.dstack.messages import phrase
from scheduling.compat.reading import Section
from scheduling.compat.shared import read_bytes, read_range
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError

_BY_TYPE: Final = phrase("dstack-by-type")
_VENDORS: Final = frozenset({"nvidia", "amd", "intel", "google", "tpu", "tenstorrent"})
_SIZE: Final = re.compile(r"(?:[0-9.]+[KMGT]I?B?)?(?:\.\.)?(?:[0-9.]+[KMGT]I?B?)?", re.IGNORECASE)
_COUNT: Final = re.compile(r"[0-9]{0,6}(?:\.\.)?[0-9]{0,6}")
_NAMES: Final = re.compile(r"[A-Za-z][A-Za-z0-9._+-]*(?:,[A-Za-z][A-Za-z0-9._+-]*)*")


_USABLE: Final = 0.9
"""Least share of a nominal size that drivers report: 15 of 16 GiB on a T4."""


@dataclass(slots=True)
class _Gpus:
    names: list[str] = field(default_factory=list)
    least: int | None = None
    most: int | None = None
    memory: str = ""
    vendor: str = ""


def read_resources(
    section: Section, context: Context, *, has_image: bool = False
) -> dict[str, Any]:
    report, place = section.report, section.at("gpu")
    gpus = _gpus(section)
    role: dict[str, Any] = {"devices": gpus.least if gpus.least is not None else 1}
    if gpus.most != gpus.least:
        report.warn(place, phrase("dstack-gpu-range", devices=role["devices"]))
    if gpus.memory:
        _require_memory(gpus.memory, role, place)
    if gpus.vendor and not gpus.names:
        report.leave_out(place, gpus.vendor, _BY_TYPE, needed=gpus.vendor.lower() != "nvidia")
    types = list(context.types_named(gpus.names))
    if types:
        role["device_types"] = types
    cpus = _cpus(section)
    if cpus:
        role["cpus"] = cpus
    if memory := section.read("memory", _least_memory):
        role["memory"] = memory
    if role["devices"] == 0 and (types or gpus.memory or not context.runs_without_devices(role)):
        report.warn(place, phrase("import-no-gpu"))
        role["devices"] = 1
    if has_image and (shared := section.read("shm_size", _least_memory)):
        role["container"] = {"shm": shared}
    else:
        section.leave_out("shm_size", phrase("import-shm"), needed=False)
    section.leave_out("disk", phrase("import-disk"), needed=False)
    section.finish()
    return role


def _require_memory(text: str, role: dict[str, Any], place: DocumentPlace) -> None:
    """Require the least memory of each GPU; a size without a lower bound requires nothing."""
    lower, _, _ = text.partition("..")
    if not lower:
        return
    try:
        size = read_bytes(lower)
    except RefusalError as refusal:
        place.note(text, refusal)
    else:
        role["requires"] = {"device_memory": int(size * _USABLE)}


def _gpus(section: Section) -> _Gpus:
    value = section.peek("gpu")
    place = section.at("gpu")
    if isinstance(value, Mapping):
        return _object(section.section("gpu"))
    section.take("gpu")
    if value is None:
        words = phrase("import-gpu-not-given")
        section.report.warn(place, words)
        return _Gpus(least=1, most=1)
    try:
        return _text(value, place)
    except RefusalError as refusal:
        place.note(value, refusal)
        return _Gpus()


def _text(value: object, place: DocumentPlace) -> _Gpus:
    """Parse ``8``, ``A100``, ``24GB..`` or ``A100,H100:80GB:2..8``, with an optional vendor."""
    if isinstance(value, int) and not isinstance(value, bool):
        least, most = read_range(value)
        return _Gpus(least=least, most=most)
    remedy = phrase("dstack-write-gpu")
    if not isinstance(value, str):
        raise RefusalError(phrase("dstack-not-gpus"), remedy, "wrong-type")
    found = _Gpus(least=1, most=1)
    for part in value.replace(" ", "").split(":"):
        if part.lower() in _VENDORS:
            found.vendor = part
            continue
        if part and _COUNT.fullmatch(part):
            found.least, found.most = read_range(part)
            found.least = 1 if found.least is None else found.least
        elif part and _SIZE.fullmatch(part):
            found.memory = part
        elif _NAMES.fullmatch(part):
            found.names += part.split(",")
        else:
            raise RefusalError(phrase("dstack-gpu-part"), remedy, shown=part)
    return found


def _object(section: Section) -> _Gpus:
    found = _Gpus(least=1, most=1)
    section.leave_out("vendor", _BY_TYPE, needed=section.peek("name") is None)
    for item, place in _list(section, "name"):
        if isinstance(item, str) and _NAMES.fullmatch(item):
            found.names += item.split(",")
        else:
            place.refuse(item, phrase("dstack-not-a-gpu"), phrase("dstack-write-gpu-name"))
    if (count := section.read("count", read_range)) is not None:
        found.least, found.most = count
        found.least = 1 if found.least is None else found.least
    memory = section.take("memory")
    if isinstance(memory, Mapping) and set(memory) <= {"min", "max"}:
        memory = f"{memory.get('min') or ''}..{memory.get('max') or ''}"
    found.memory = "" if memory is None else str(memory)
    for key in ("total_memory", "compute_capability"):
        section.leave_out(key, _BY_TYPE, needed=not found.names)
    section.finish()
    return found


def _list(section: Section, key: str) -> list[tuple[Any, DocumentPlace]]:
    value = section.peek(key)
    if isinstance(value, str):
        section.take(key)
        return [(value, section.at(key))]
    return section.items(key)


def _cpus(section: Section) -> int | None:
    value = section.peek("cpu")
    if isinstance(value, Mapping):
        inner = section.section("cpu")
        inner.leave_out("arch", phrase("dstack-cpu-arch"), needed=True)
        bounds = inner.read("count", read_range)
        inner.finish()
    else:
        if isinstance(value, str) and ":" in value:
            architecture, _, value = value.rpartition(":")
            words = phrase("dstack-cpu-arch")
            section.report.leave_out(section.at("cpu"), architecture, words, needed=True)
        section.take("cpu")
        bounds = Section({"cpu": value}, section.place, section.report).read("cpu", read_range)
    return (bounds[0] or bounds[1]) if bounds else None


def _least_memory(value: object) -> int:
    """Return the bytes of ``16GB``, ``16GB..``, ``16GB..32GB`` (lower bound) or ``..32GB``."""
    if isinstance(value, Mapping) and set(value) <= {"min", "max"} and any(value.values()):
        return read_bytes(value.get("min") or value.get("max"))
    if isinstance(value, str) and ".." in value:
        first, _, last = value.partition("..")
        return read_bytes(first or last)
    return read_bytes(value)
