"""Sweeps: points of a grid or of a random search, and the document of the job of each point."""

import itertools
import math
import random
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from scheduling.core.early_stopping import EarlyStop, StopRule
from scheduling.core.messages import sentence
from scheduling.core.objectives import LONGEST_METRIC, Goal, Objective

MOST_JOBS: Final = 1000
MOST_PARAMETERS: Final = 20
LABEL: Final = "sweep"
LONGEST_NAME: Final = 63
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_NO_LABEL: Final = re.compile(r"[^a-z0-9]+")

_NUMBER: Final = r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)"
_RANGE: Final = re.compile(rf"(uniform|loguniform|integer)\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)")
DRAWS: Final = 20
"""Draws of a random search for each wanted point, before it gives up to find different ones."""
LARGEST: Final = 1e15

Grid = Mapping[str, Sequence[str]]
"""The values of each parameter, in the order in which they are tried.

In a random search, the only value of a parameter may be a range: ``uniform(0, 1)``,
``loguniform(1e-4, 1e-1)`` or ``integer(1, 8)``, with both bounds included.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """How a sweep chooses its points and ranks its runs.

    Attributes:
        samples: number of points of a random search; None for all points of the grid.
        seed: of the random search: the same seed gives the same points.
        objective: by which runs are ranked; None if they are not.
        early_stop: settings of early stops, which need an objective; None for none.
    """

    samples: int | None = None
    seed: int = 0
    objective: Objective | None = None
    early_stop: EarlyStop | None = None


class GridError(ValueError):
    """The grid is not valid; see ``remedy``."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def options_to_json(options: SweepOptions) -> dict[str, Any]:
    """Return the options as stored; empty for the usual ones."""
    found: dict[str, Any] = {}
    if options.samples is not None:
        found |= {"samples": options.samples, "seed": options.seed}
    if (objective := options.objective) is not None:
        found["objective"] = {"metric": objective.metric, "goal": objective.goal.value}
    if (early := options.early_stop) is not None:
        found["early_stop"] = {
            "rule": early.rule.value,
            "first_step": early.first_step,
            "reduction": early.reduction,
        }
    return found


def options_from_json(stored: Mapping[str, Any]) -> SweepOptions:
    """Read the options of ``options_to_json``."""
    objective, early = stored.get("objective"), stored.get("early_stop")
    return SweepOptions(
        samples=stored.get("samples"),
        seed=stored.get("seed", 0),
        objective=objective and Objective(objective["metric"], Goal(objective["goal"])),
        early_stop=early
        and EarlyStop(
            rule=StopRule(early["rule"]),
            first_step=early["first_step"],
            reduction=early["reduction"],
        ),
    )


def check_options(options: SweepOptions) -> None:
    """Check the options of a sweep.

    Raises:
        GridError: an early stop has no objective, or a name or number is not valid.
    """
    if options.early_stop is not None and options.objective is None:
        raise GridError(sentence("early-stop-without-objective"), sentence("give-objective"))
    if options.objective is not None and not 0 < len(options.objective.metric) <= LONGEST_METRIC:
        raise GridError(sentence("not-objective"), sentence("give-objective"))
    if options.samples is not None and not 0 < options.samples <= MOST_JOBS:
        raise GridError(
            sentence("not-sample-count"), sentence("give-samples", most=format(MOST_JOBS, ","))
        )


def points(grid: Grid, options: SweepOptions | None = None) -> list[dict[str, str]]:
    """Return all combinations of the grid, or the points of a random search.

    The last parameter of a grid changes fastest.

    Raises:
        GridError: no parameters, a name that is not valid for a variable, a parameter without
            values or with a repeated one, or too many points.
    """
    if not 0 < len(grid) <= MOST_PARAMETERS:
        raise GridError(
            sentence("sweep-without-parameters"), sentence("give-parameters", most=MOST_PARAMETERS)
        )
    total = 1
    for name, values in grid.items():
        if not _NAME.fullmatch(name):
            raise GridError(
                sentence("not-variable", name=repr(name[:40])),
                sentence("use-variable-name"),
            )
        if not values or len(set(values)) != len(values):
            raise GridError(sentence("sweep-values", name=name), sentence("give-values-once"))
        if (options is None or options.samples is None) and any(map(_RANGE.fullmatch, values)):
            raise GridError(
                sentence("range-in-grid", name=name), sentence("give-samples-or-values")
            )
        total *= len(values)
    if options is not None and options.samples is not None:
        return _sampled(grid, options.samples, options.seed)
    if total > MOST_JOBS:
        raise GridError(
            sentence("grid-points", total=format(total, ",")),
            sentence("sweep-too-large", most=format(MOST_JOBS, ",")),
        )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _sampled(grid: Grid, samples: int, seed: int) -> list[dict[str, str]]:
    """Return different points of a random search."""
    rng = random.Random(seed)  # noqa: S311 no secret
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for _ in range(DRAWS * samples):
        point = {name: _drawn(name, values, rng) for name, values in grid.items()}
        found.setdefault(tuple(point.values()), point)
        if len(found) == samples:
            return list(found.values())
    raise GridError(
        sentence("too-few-points", count=format(len(found), ",")), sentence("give-less-samples")
    )


def _drawn(name: str, values: Sequence[str], rng: random.Random) -> str:
    found = _RANGE.fullmatch(values[0]) if len(values) == 1 else None
    if found is None:
        return rng.choice(values)
    kind, low, high = found[1], _bound(found[2]), _bound(found[3])
    is_valid = -LARGEST <= low < high <= LARGEST
    if kind == "loguniform":
        is_valid = is_valid and low > 0
    elif kind == "integer":
        is_valid = is_valid and low.is_integer() and high.is_integer()
    if not is_valid:
        raise GridError(sentence("not-range", name=name), sentence("give-range"))
    if kind == "integer":
        return str(rng.randint(int(low), int(high)))
    if kind == "loguniform":
        return f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}"
    return f"{rng.uniform(low, high):.6g}"


def _bound(text: str) -> float:
    """Return the number of a bound; not finite if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def documents(
    base: Mapping[str, Any],
    grid: Grid,
    *,
    label: str,
    max_parallel: int | None,
    options: SweepOptions | None = None,
) -> list[dict[str, Any]]:
    """Build the document of each point's job, with its values in the environment of every role.

    Args:
        base: the common document.
        grid: the parameters.
        label: value of the common label.
        max_parallel: number of jobs that are not on hold; None for all.
        options: choice of the points.
    """
    found = []
    every = points(grid, options)
    width = len(str(len(every)))
    for number, point in enumerate(every, 1):
        document = deepcopy(dict(base))
        tail = f" {number:0{width}}"
        document["name"] = f"{str(base.get('name', ''))[: LONGEST_NAME - len(tail)]}{tail}"
        document["labels"] = {**_mapping(base.get("labels")), LABEL: label}
        document["roles"] = {
            name: {**role, "env": {**_mapping(role.get("env")), **point}}
            if isinstance(role, Mapping)
            else role
            for name, role in _mapping(base.get("roles")).items()
        }
        if max_parallel is not None and number > max_parallel:
            document["held"] = True
        found.append(document)
    return found


def label_of(name: str, mark: str) -> str:
    """Build the label of a sweep with this name; ``mark`` makes it unique."""
    plain = _NO_LABEL.sub("-", name.lower()).strip("-")[: LONGEST_NAME - len(mark) - 1]
    return f"{plain}-{mark}" if plain else mark


def read_grid(text: str) -> dict[str, list[str]]:
    """Parse a grid with a line ``LR = 0.1, 0.01`` for each parameter.

    Raises:
        GridError: a line is not valid, or a parameter is repeated.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, values = line.partition("=")
        name = name.strip()
        if not equals or name in found:
            raise GridError(
                sentence("sweep-parameter", name=repr(line.strip()[:60])),
                sentence("write-parameter-lines"),
            )
        values = values.strip()
        found[name] = (
            [values]
            if _RANGE.fullmatch(values)
            else [value.strip() for value in values.split(",") if value.strip()]
        )
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
