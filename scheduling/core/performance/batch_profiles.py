"""Profiles of jobs with variable batches: step times of some batches on one device of each type.

Small jobs measure them before the first run (bootstrapping of Sia, SOSP '23, section 3.2). The
document comes from a job, so it may be hostile.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final, NamedTuple, TypeGuard

from scheduling.core.values import Timed

VERSION: Final = 1
MOST_POINTS: Final = 16
LARGEST_BATCH: Final = 1 << 30
MOST_STEPS: Final = 1_000
LONGEST_SECONDS: Final = 86_400.0
SHORTEST_STEP: Final = 1e-6
"""Minimum duration of a step in seconds, so that no rate is infinite."""
LARGEST_NOISE: Final = 1e30
LONGEST_NAME: Final = 40
_KEYS: Final = frozenset({"version", "software", "points", "noise", "seconds"})
_POINT_KEYS: Final = frozenset({"batch", "accumulation", "steps", "seconds"})


class BatchProfileError(ValueError):
    """A reported profile is not valid; the text names the field."""


class BatchProfile(NamedTuple):
    """A checked profile of one device type.

    Attributes:
        points: measured steps on one device, in ascending order of batches.
        noise: squared norm and variance of the gradient at the initial batch; None if unknown.
        seconds: duration of the measurement.
        software: version of PyTorch.
    """

    points: tuple[Timed, ...]
    noise: tuple[float, float] | None
    seconds: float
    software: str


def read_batch_profile(document: Mapping[str, Any], *, device_type: str) -> BatchProfile:
    """Return a profile as a job reports it.

    Args:
        document: the reported document.
        device_type: type of the device that was measured.

    Raises:
        BatchProfileError: a field is unknown, missing, or out of its bounds.
    """
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise BatchProfileError(f"{str(unknown[0])[:LONGEST_NAME]} is not a field of a profile")
    if document.get("version") != VERSION:
        raise BatchProfileError(f"version is not {VERSION}")
    points = document.get("points")
    if not isinstance(points, list) or not 1 <= len(points) <= MOST_POINTS:
        raise BatchProfileError(f"points is not a list of 1 to {MOST_POINTS} entries")
    software = document.get("software")
    torch = software.get("torch", "") if isinstance(software, dict) else ""
    return BatchProfile(
        points=tuple(sorted(_point(one, device_type) for one in points)),
        noise=_noise(document.get("noise")),
        seconds=_number(document, "seconds", LONGEST_SECONDS),
        software="".join(c for c in str(torch)[:LONGEST_NAME] if c.isprintable()),
    )


def _point(given: object, device_type: str) -> Timed:
    if not isinstance(given, dict) or set(given) != _POINT_KEYS:
        raise BatchProfileError(f"a point needs exactly {', '.join(sorted(_POINT_KEYS))}")
    batch = _whole(given, "batch", LARGEST_BATCH)
    accumulation = _whole(given, "accumulation", LARGEST_BATCH)
    if accumulation > batch:
        raise BatchProfileError("accumulation is larger than batch")
    steps = _whole(given, "steps", MOST_STEPS)
    seconds = _number(given, "seconds", LONGEST_SECONDS)
    if seconds < steps * SHORTEST_STEP:
        raise BatchProfileError(f"seconds is below {SHORTEST_STEP:g} for each step")
    return Timed(
        type=device_type,
        nodes=1,
        devices=1,
        batch=batch,
        accumulation=accumulation,
        steps=steps,
        seconds=seconds,
    )


def _noise(given: object) -> tuple[float, float] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise BatchProfileError("noise is not a list of two numbers")
    for one in given:
        if not _is_number(one) or not 0.0 <= one <= LARGEST_NOISE:
            raise BatchProfileError(f"noise is not between 0 and {LARGEST_NOISE:g}")
    return (float(given[0]), float(given[1])) if any(given) else None


def _number(given: Mapping[str, Any], name: str, most: float) -> float:
    value = given.get(name)
    if not _is_number(value) or not 0.0 < value <= most:
        raise BatchProfileError(f"{name} is not a number above 0, up to {most:g}")
    return float(value)


def _whole(given: Mapping[str, Any], name: str, most: int) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise BatchProfileError(f"{name} is not a whole number from 1 to {most}")
    return value


def _is_number(value: object) -> TypeGuard[float]:
    # A comparison also works with integers that are too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -inf < value < inf


class ProfiledSpeeds:
    """Speeds of one job by its profiles.

    Args:
        points: measured steps on one device of each type.

    Attributes:
        points: the points by type.
    """

    def __init__(self, points: Iterable[Timed]) -> None:
        self.points: dict[str, tuple[Timed, ...]] = {}
        for one in points:
            self.points[one.type] = (*self.points.get(one.type, ()), one)

    def samples_per_second(self, device_type: str) -> float:
        """Return the throughput of one device at its fastest batch; 0 without a profile."""
        found = self.points.get(device_type, ())
        return max((one.batch * one.steps / one.seconds for one in found), default=0.0)

    def ratio(self, device_type: str, other: str) -> float | None:
        """Return the speed of a type relative to another one; None if one has no profile.

        Equal batches are compared, the largest one that both types measured; else the fastest.
        """
        mine, theirs = self.points.get(device_type), self.points.get(other)
        if not mine or not theirs:
            return None
        paces, others = _paces(mine), _paces(theirs)
        same = max(set(paces) & set(others), default=None)
        if same is None:
            return self.samples_per_second(device_type) / self.samples_per_second(other)
        return paces[same] / others[same]


def _paces(points: Iterable[Timed]) -> Mapping[tuple[int, int], float]:
    """Return the steps per second by batch and accumulation."""
    steps: dict[tuple[int, int], int] = defaultdict(int)
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    for one in points:
        steps[one.batch, one.accumulation] += one.steps
        seconds[one.batch, one.accumulation] += one.seconds
    return {key: steps[key] / seconds[key] for key in steps}
