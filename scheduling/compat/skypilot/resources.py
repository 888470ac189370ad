"""Resources of a SkyPilot task: accelerators, CPUs, memory, and choices of clouds."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scheduling.compat.context import Context
from scheduling.compat.reading import Section
from scheduling.compat.shared import GIB, read_bytes, read_image
from scheduling.compat.skypilot.messages import phrase
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError, show
from tessera.messages import Sentence

_CLOUD: Final = phrase("skypilot-cloud")
_KEYS: Final[dict[str, tuple[bool, Sentence]]] = {
    "cloud": (False, _CLOUD),
    "region": (False, _CLOUD),
    "zone": (False, _CLOUD),
    "instance_type": (False, _CLOUD),
    "disk_size": (False, phrase("import-disk")),
    "disk_tier": (False, phrase("import-disk")),
    "local_disk": (False, phrase("import-disk")),
    "network_tier": (False, _CLOUD),
    "max_hourly_cost": (False, _CLOUD),
    "ports": (False, phrase("skypilot-ports")),
    "autostop": (False, phrase("skypilot-autostop")),
    "accelerator_args": (True, phrase("skypilot-accelerator-args")),
    "priority": (False, phrase("import-priority")),
    "volumes": (True, phrase("import-volumes")),
    "spot_recovery": (False, phrase("skypilot-recovery")),
    "_cluster_config_overrides": (False, phrase("skypilot-settings")),
}
_ACCELERATOR: Final = re.compile(r"([A-Za-z][A-Za-z0-9._+-]{0,62})(?::([0-9]{1,3}(?:\.[0-9]+)?))?")
_CPUS: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?)\+?")
_TIMES: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9])?)x")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(slots=True, kw_only=True)
class WantedResources:
    """The requested resources of a task.

    Attributes:
        devices: devices of each node.
        role: further fields of the role.
        infra: requested infrastructure, with its place in the document.
    """

    devices: int = 1
    role: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    infra: tuple[str, DocumentPlace] | None = None
    is_spot: bool = False
    retries: int = 0


def read_resources(section: Section, context: Context) -> WantedResources:
    wanted = WantedResources()
    _devices(section, _choices(section), wanted, context)
    _sizes(section, wanted)
    if not wanted.role.get("device_types"):
        _without_accelerators(section, wanted, context)
    infra = section.text("infra")
    if infra is not None:
        wanted.infra = (infra, section.at("infra"))
    image = section.read("image_id", _image_text)
    if image is not None:
        name = _image(image, section)
        if name:
            wanted.role["image"] = name
    if section.boolean("use_spot"):
        section.report.warn(section.at("use_spot"), phrase("skypilot-spot"))
        wanted.is_spot = True
    _labels(section, wanted)
    _recovery(section, wanted)
    for key, (needed, words) in _KEYS.items():
        section.leave_out(key, words, needed=needed)
    section.finish()
    return wanted


def _image_text(value: object) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    if not isinstance(value, str):
        raise RefusalError(
            phrase("skypilot-not-an-image"), phrase("skypilot-write-image"), "wrong-type"
        )
    return value


def _image(text: str, section: Section) -> str | None:
    if not text.startswith("docker:"):
        words = phrase("skypilot-image-kind")
        section.report.leave_out(section.at("image_id"), text, words, needed=True)
        return None
    return read_image(text, section.at("image_id"), section.report)


Choices = list[tuple[str, float]]


def _choices(section: Section) -> Choices:
    """Return the acceptable accelerators, the preferred ones first."""
    section.rename("gpus", "accelerators")
    usual = _accelerators(section)
    found = _alternatives(section, usual) or usual
    for name, number in dict.fromkeys(usual):
        if (name, number) not in found:
            words = phrase("skypilot-alternative-own")
            place = section.at("accelerators")
            section.report.leave_out(place, f"{name}:{number:g}", words, needed=False)
    return found


def _alternatives(section: Section, usual: Choices) -> Choices:
    """Return the accelerators of ``any_of`` and ``ordered``; report their other keys.

    Args:
        section: the resources.
        usual: accelerators of alternatives that do not name any.
    """
    found: Choices = []
    for key in ("any_of", "ordered"):
        for part in section.sections(key):
            part.rename("gpus", "accelerators")
            found += _accelerators(part) or usual
            if part.boolean("use_spot"):
                words = phrase("skypilot-alternative-differs")
                section.report.leave_out(part.at("use_spot"), True, words, needed=False)
            for name, (_, words) in _KEYS.items():
                part.leave_out(name, words, needed=False)
            part.leave_out("infra", _CLOUD, needed=False)
            for name in ("cpus", "memory", "image_id", "labels", "job_recovery"):
                part.leave_out(name, phrase("skypilot-alternative-differs"), needed=True)
            part.finish()
    return found


def _accelerators(section: Section) -> Choices:
    """Return numbers of accelerators by name; several names are alternatives."""
    value, place = section.peek("accelerators"), section.at("accelerators")
    found: Choices = []
    if isinstance(value, Mapping):
        for name, count, there in section.section("accelerators").entries():
            pair = _pair(name, there)
            if pair and count is not None:
                is_number = isinstance(count, int | float) and not isinstance(count, bool)
                if not is_number or not 0 < float(count) <= 256:
                    there.refuse(
                        count, phrase("skypilot-not-a-count"), phrase("skypilot-write-count")
                    )
                    continue
                pair = (pair[0], float(count))
            if pair:
                found.append(pair)
        return found
    items = section.items("accelerators") if isinstance(value, list) else [(value, place)]
    section.take("accelerators")
    for item, there in items:
        if item is not None and (pair := _pair(item, there)):
            found.append(pair)
    return found


def _pair(item: object, place: DocumentPlace) -> tuple[str, float] | None:
    match = _ACCELERATOR.fullmatch(item.strip()) if isinstance(item, str) else None
    count = float(match[2] or 1) if match else 0
    if match is None or not 0 < count <= 256:
        place.refuse(
            item, phrase("skypilot-not-an-accelerator"), phrase("skypilot-write-accelerator")
        )
        return None
    return match[1], count


def _devices(
    section: Section, choices: Choices, wanted: WantedResources, context: Context
) -> None:
    place, report = section.at("accelerators"), section.report
    if not choices:
        return
    count = choices[0][1]
    kept = dict.fromkeys(name for name, number in choices if number == count)
    for name, number in dict.fromkeys(choices):
        if number != count:
            words = phrase("skypilot-alternative-count")
            report.leave_out(place, f"{name}:{number:g}", words, needed=False)
    wanted.devices = math.ceil(count)
    if wanted.devices != count:
        report.warn(
            place, phrase("skypilot-whole-devices", count=f"{count:g}", devices=wanted.devices)
        )
    wanted.role["device_types"] = list(context.types_named(kept))


def _without_accelerators(section: Section, wanted: WantedResources, context: Context) -> None:
    """Run without devices on CPUs that belong to none, or else reserve one device."""
    if context.runs_without_devices(wanted.role):
        wanted.devices = 0
    else:
        section.report.warn(section.at("accelerators"), phrase("import-gpu-not-given"))


def _sizes(section: Section, wanted: WantedResources) -> None:
    cpus = section.read("cpus", _cpus)
    if cpus:
        wanted.role["cpus"] = cpus
    text = section.peek("memory")
    if isinstance(text, str) and (match := _TIMES.fullmatch(text.strip())) and cpus:
        section.take("memory")
        wanted.role["memory"] = int(cpus * float(match[1]) * GIB)
    elif memory := section.read("memory", _memory):
        wanted.role["memory"] = memory


def _cpus(value: object) -> float:
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    match = None if isinstance(value, bool) else _CPUS.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise RefusalError(
            phrase("skypilot-not-cpus"), phrase("skypilot-write-cpus"), shown=show(value)
        )
    return float(match[1])


def _memory(value: object) -> int:
    return read_bytes(value.strip().removesuffix("+") if isinstance(value, str) else value)


def _labels(section: Section, wanted: WantedResources) -> None:
    for key, value, place in section.section("labels").entries():
        if isinstance(value, str) and len(value) <= 63 and _LABEL.fullmatch(key):
            wanted.labels[key] = value
        else:
            words = phrase("import-label-invalid")
            section.report.leave_out(place, value, words, needed=False)


def _recovery(section: Section, wanted: WantedResources) -> None:
    value = section.peek("job_recovery")
    if not isinstance(value, Mapping):
        section.leave_out("job_recovery", phrase("skypilot-recovery"), needed=False)
        return
    inner = section.section("job_recovery")
    wanted.retries = inner.integer("max_restarts_on_errors", 0, 100) or 0
    inner.leave_out("strategy", phrase("skypilot-recovery"), needed=False)
    words = phrase("skypilot-exit-codes")
    inner.leave_out("recover_on_exit_codes", words, needed=True)
    inner.finish()
