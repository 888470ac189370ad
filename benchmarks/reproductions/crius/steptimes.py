"""The artefact's database of step times, and its rules for shapes and models without a record."""

import json
from collections.abc import Mapping
from functools import cache
from math import isfinite, log2
from typing import Any, Final

from benchmarks.reproductions.crius.devices import Layout, Span
from scheduling.core.workloads.traces import FileReader, SimulationError, TraceError

TIMES_FILE: Final = "prof_database.json"
MEMORY_FILE: Final = "dp_only_iteration_time.json"
#: Types in the order in which the artefact tries them.
SEARCH_ORDER: Final = ("a100", "v100", "3090", "p100", "a40", "a10", "1080ti")
#: Sizes of each model family, ascending.
_SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "wide_resnet": ("500M", "1B", "2B", "4B", "6.8B", "13B"),
    "bert": ("760M", "1.3B", "2.6B", "6.7B", "15B", "39B"),
    "moe": ("690M", "1.3B", "2.4B", "10B", "27B", "70B"),
}
#: GB of a device.
_MEMORY: Final = {"a100": 40.0, "v100": 32.0, "a40": 48.0, "a10": 24.0, "3090": 24.0, "p100": 12.0}
_USABLE_MEMORY: Final = 0.8
_MEMORY_MARGIN: Final = 1.2
#: Speed of a shape at each halving of its best devices per node.
_PER_HALVING: Final = 0.9
#: Speed of a model relative to the next larger one.
_PER_SIZE: Final = 1.8
_MOST_STEP_SECONDS: Final = 300.0


class StepTimes:
    """Samples per second of a model and batch size on a shape.

    Args:
        times: seconds of a step, by model and batch size, and by shape; -1 where it failed.
        memory: GB per device under data parallelism at 1, 2, 4, ... devices.
        guesses: whether shapes and models without a record are extrapolated.
    """

    def __init__(
        self,
        layout: Layout,
        times: Mapping[str, Mapping[str, float]],
        memory: Mapping[str, list[float]],
        *,
        guesses: bool = True,
    ) -> None:
        self._layout = layout
        self._times = times
        self._memory = memory
        self._guesses = guesses
        self.samples = cache(self._samples)
        self.bare_samples = cache(self._bare_samples)
        self.fits_memory = cache(self._fits_memory)

    def step_seconds(self, model: str, batch: int, span: Span) -> float | None:
        """Return the seconds of a step to a thousandth, or None if it cannot run."""
        samples = self.samples(model, batch, span)
        return None if samples is None else round(batch / samples, 3)

    def _samples(self, model: str, batch: int, span: Span) -> float | None:
        """Return the samples per second of the searched plan, or None if it cannot run."""
        found = self._found(model, batch, span)
        if found is None:
            return None
        seconds, factor = found
        samples = _rate(batch, seconds) * factor
        return samples if samples > 0.0 else None

    def _bare_samples(self, model: str, batch: int, span: Span) -> float | None:
        """Return the samples per second of the record itself: no factor for an extrapolation."""
        found = self._found(model, batch, span)
        if found is None:
            return None
        samples = _rate(batch, found[0])
        return samples if samples > 0.0 else None

    def _fits_memory(self, model: str, batch: int, kind: str, devices: int) -> bool:
        """Return whether one replica under data parallelism fits into a device."""
        needed = self._memory.get(f"{model.replace('__', '_')}_{batch}")
        if needed is None or not 0 < devices <= 2 ** (len(needed) - 1):
            return False
        each = needed[devices.bit_length() - 1]
        usable = _MEMORY.get(kind, 0.0) * _USABLE_MEMORY
        return each == 0 or (each != -1 and each * _MEMORY_MARGIN <= usable)

    def _found(self, model: str, batch: int, span: Span) -> tuple[float, float] | None:
        """Return a record's seconds and the factor on its speed, or None."""
        family, _mark, size = model.partition("__")
        row = self._times.get(f"{family}_{size}_{batch}", {})
        key, factor = _key(span), 1.0
        if key not in row and self._guesses:
            best = self._layout.best(span.type, span.devices)
            if _key(best) in row:
                key = _key(best)
                factor = _PER_HALVING ** int(log2(best.each // span.each))
            else:
                row, factor = self._larger(family, size, batch, key)
        seconds = row.get(key, 0.0)
        if not seconds or seconds > _MOST_STEP_SECONDS:
            return None
        return seconds, factor

    def _larger(
        self, family: str, size: str, batch: int, key: str
    ) -> tuple[Mapping[str, float], float]:
        """Return the records of the next larger model with this shape, and its factor."""
        sizes = _SIZES.get(family, ())
        larger = sizes[sizes.index(size) + 1 :] if size in sizes else ()
        for steps, other in enumerate(larger, start=1):
            row = self._times.get(f"{family}_{other}_{batch}", {})
            if key in row:
                return row, _PER_SIZE**steps
        return {}, 1.0


def read_step_times(files: FileReader, layout: Layout, *, guesses: bool) -> StepTimes:
    """Read the artefact's tables among the profiles.

    Raises:
        SimulationError: the step times are missing.
        TraceError: a table is malformed.
    """
    times = _document(files, TIMES_FILE)
    if times is None:
        raise SimulationError(f"the rules crius need --profiles, a directory with {TIMES_FILE}")
    memory = _document(files, MEMORY_FILE)
    try:
        rows = {
            str(model): {str(shape): float(seconds) for shape, seconds in row.items()}
            for model, row in times["optimal"].items()
        }
        needed = {
            str(model): [float(each) for each in row]
            for model, row in ((memory or [{}])[0]).items()
        }
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(TIMES_FILE, 0, f"is not a table of step times ({error})") from error
    if not all(isfinite(each) for row in rows.values() for each in row.values()):
        raise TraceError(TIMES_FILE, 0, "has a step time that is not a number")
    return StepTimes(layout, rows, needed, guesses=guesses)


def _document(files: FileReader, name: str) -> Any:
    text = files(name)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TraceError(name, 0, f"is not JSON ({error})") from error


def _rate(batch: int, seconds: float) -> float:
    return round(batch / seconds, 3)


def _key(span: Span) -> str:
    return f"{span.nodes}_{span.type}_{span.nodes}_n_{span.each}_d"
