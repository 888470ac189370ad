"""Profiles as jobs report them: validation of hostile documents, and the grids that follow.

`tessera.train.hybrid.profiling` writes the document.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from scheduling.core.grids.estimates import Estimator, GridEstimate
from scheduling.core.grids.link_documents import links_of
from scheduling.core.grids.links import ALL_REDUCE, SEND, LinkPoint, Links
from scheduling.core.grids.memory import MemoryRules
from scheduling.core.grids.model import Grid, GridInputError, Schedule, powers_of_two
from scheduling.core.grids.profiles import LayerClass, LayerRun, Profile
from scheduling.core.grids.stages import Training

VERSION: Final = 1
MOST_LAYERS: Final = 256
MOST_CLASSES: Final = 32
MOST_RUNS: Final = 64
MOST_EXCHANGES: Final = 16
MOST_POINTS: Final = 64
MOST_DEVICES: Final = 64
"""Grids are estimated up to this number of devices."""
LONGEST_NAME: Final = 80
LARGEST: Final = 1e18
UNLIMITED: Final = 1 << 60
"""Memory of a device that does not report any."""

_KEYS: Final = (
    "version", "software", "device_memory", "layers", "classes", "links", "state_factor",
    "recompute", "seconds",
)  # fmt: skip
_POSITIVE: Final = ("forward_s", "backward_s", "boundary_bytes")
_NUMBERS: Final = tuple(one.name for one in fields(LayerRun) if one.name != "exchanges")
_RUN_KEYS: Final = ("tensor", "samples", "exchanges", *_NUMBERS)
_PRIMITIVES: Final = (ALL_REDUCE, f"{ALL_REDUCE}_backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMeasurements:
    """A valid profile of one device type.

    Attributes:
        profile: times and sizes of the layers.
        links: measured messages between two processes.
        memory: how the training uses memory.
        software: version of PyTorch.
        seconds: duration of the measurement.
    """

    profile: Profile
    links: tuple[LinkPoint, ...]
    memory: MemoryRules
    software: str
    seconds: float


def read_profile(document: object, *, device_type: str, memory: int = 0) -> ModelMeasurements:
    """Check the document of a profile.

    Args:
        document: the reported JSON object; it may be hostile.
        device_type: type of the device on which the job ran.
        memory: bytes of a device of this type, if the document has none; 0 if unknown.

    Raises:
        GridInputError: the document is not a valid profile.
    """
    body = _object(document, "profile", _KEYS)
    if body.get("version") != VERSION:
        raise _wrong("profile", "is not a profile of this version", body.get("version"))
    classes = {}
    for index, item in enumerate(_list(body.get("classes"), "classes", MOST_CLASSES)):
        found = _layer_class(
            _object(item, f"classes[{index}]", ("name", "runs")), f"classes[{index}]"
        )
        classes[found.name] = found
    layers = tuple(
        _name(name, "layers") for name in _list(body.get("layers"), "layers", MOST_LAYERS)
    )
    own_memory = int(_number(body.get("device_memory"), "device_memory"))
    software = _object(body.get("software"), "software", ("torch",))
    recompute = body.get("recompute")
    if not isinstance(recompute, bool):
        raise _wrong("recompute", "is not true or false", recompute)
    return ModelMeasurements(
        profile=Profile(
            type=device_type,
            device_memory=own_memory or memory or UNLIMITED,
            layers=layers,
            classes=classes,
        ),
        links=tuple(_points(_list(body.get("links"), "links", MOST_POINTS, least=0))),
        memory=MemoryRules(
            state_factor=max(1.0, min(_number(body.get("state_factor"), "state_factor"), 64.0)),
            checkpointing=recompute,
        ),
        software=_name(software.get("torch"), "software.torch"),
        seconds=_number(body.get("seconds"), "seconds"),
    )


def profiled_estimates(
    measured: ModelMeasurements,
    *,
    batch: int,
    micro_batches: int,
    schedule: str,
    max_tensor: int | None,
    links: Links | None = None,
) -> Iterator[GridEstimate]:
    """Yield the estimate of each grid with up to ``MOST_DEVICES`` devices.

    Args:
        measured: the profile.
        batch: samples of a step.
        micro_batches: parts of a batch.
        schedule: order of passes.
        max_tensor: maximum tensor width; None for any.
        links: links of the device type; None for those of the profile at every distance.
    """
    estimator = Estimator(
        profile=measured.profile,
        links=links or links_of((), {}, measured.links),
        training=Training(
            batch=batch,
            micro_batches=micro_batches,
            schedule=Schedule(schedule),
            max_tensor=max_tensor,
            memory=measured.memory,
        ),
    )
    most = min(len(measured.profile.layers), micro_batches)
    for devices in powers_of_two(MOST_DEVICES):
        for stages in powers_of_two(min(devices, most)):
            yield estimator.estimate(
                Grid(type=measured.profile.type, devices=devices, stages=stages)
            )


def _layer_class(body: Mapping[str, Any], place: str) -> LayerClass:
    name = _name(body.get("name"), f"{place}.name")
    runs: dict[tuple[int, int], LayerRun] = {}
    for index, item in enumerate(_list(body.get("runs"), f"{place}.runs", MOST_RUNS)):
        there = f"{place}.runs[{index}]"
        run = _object(item, there, _RUN_KEYS)
        tensor, samples = (_count(run.get(key), f"{there}.{key}") for key in ("tensor", "samples"))
        runs[tensor, samples] = _run(run, there)
    for width in {tensor for tensor, _ in runs}:
        shapes = {
            tuple((name, times) for name, _, times in run.exchanges)
            for (tensor, _), run in runs.items()
            if tensor == width
        }
        if len(shapes) > 1:
            raise _wrong(place, "has runs of one width with different exchanges", width)
    if not any(tensor == 1 for tensor, _ in runs):
        raise _wrong(place, "has no undivided run", name)
    return LayerClass(name=name, runs=runs)


def _run(body: Mapping[str, Any], place: str) -> LayerRun:
    numbers = {name: _number(body.get(name), f"{place}.{name}") for name in _NUMBERS}
    for name in _POSITIVE:
        if numbers[name] <= 0:
            raise _wrong(f"{place}.{name}", "is not positive", numbers[name])
    # The partition balances this number: a layer without counted operations still takes time.
    numbers["flops"] = max(1.0, numbers["flops"])
    exchanges = []
    for item in _list(body.get("exchanges"), f"{place}.exchanges", MOST_EXCHANGES, least=0):
        if not isinstance(item, list) or len(item) != 3 or item[0] not in _PRIMITIVES:
            raise _wrong(f"{place}.exchanges", "is not a list of exchanges", item)
        size = _number(item[1], f"{place}.exchanges")
        exchanges.append((str(item[0]), size, _count(item[2], f"{place}.exchanges")))
    return LayerRun(**numbers, exchanges=tuple(exchanges))


def _points(items: Sequence[Any]) -> Iterator[LinkPoint]:
    known = set()
    for item in items:
        if not isinstance(item, list) or len(item) != 4 or item[0] not in (SEND, ALL_REDUCE):
            raise _wrong("links", "is not a list of measured messages", item)
        point = LinkPoint(
            str(item[0]), _count(item[1], "links"), _count(item[2], "links", 1 << 40),
            _number(item[3], "links"),
        )  # fmt: skip
        if point.group != 2 or point[:3] in known:
            raise _wrong("links", "is not a message of two processes, or is given twice", item)
        known.add(point[:3])
        yield point


def _object(value: object, field: str, keys: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(field, "is not an object", value)
    # The document is stored: an unchecked entry may be text or a number that no database accepts.
    unknown = sorted(set(value) - set(keys), key=str)
    if unknown:
        raise _wrong(field, "has an unknown entry", ascii(unknown[0]))
    return value


def _list(value: object, field: str, most: int, *, least: int = 1) -> Sequence[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise _wrong(field, f"is not a list of {least} to {most} entries", None)
    return value


def _number(value: object, field: str) -> float:
    # Not-a-number fails the comparison, too.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return float(value)
    raise _wrong(field, "is not a number from 0", value)


def _count(value: object, field: str, most: int = 1 << 20) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise _wrong(field, f"is not a whole number from 1 to {most}", value)
    return value


def _name(value: object, field: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise _wrong(field, "is not a name", None)
    return value


def _wrong(field: str, message: str, value: object) -> GridInputError:
    shown = value if isinstance(value, int | float) else str(value)[:40]
    return GridInputError(f"{message}.", field=field, value=shown, remedy="Profile again.")
