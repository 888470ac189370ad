"""Sweeps: the points of a grid of parameters, and the document of the job for each of them."""

import itertools
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from scheduling.core.messages import sentence

MOST_JOBS: Final = 1000
MOST_PARAMETERS: Final = 20
LABEL: Final = "sweep"
LONGEST_NAME: Final = 63
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_NO_LABEL: Final = re.compile(r"[^a-z0-9]+")

Grid = Mapping[str, Sequence[str]]
"""The values of each parameter, in the order in which they are tried."""


class GridError(ValueError):
    """The grid is not valid; see ``remedy``."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def points(grid: Grid) -> list[dict[str, str]]:
    """Return all combinations of the grid; the last parameter changes fastest.

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
        total *= len(values)
    if total > MOST_JOBS:
        raise GridError(
            sentence("grid-points", total=format(total, ",")),
            sentence("sweep-too-large", most=format(MOST_JOBS, ",")),
        )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def documents(
    base: Mapping[str, Any], grid: Grid, *, label: str, max_parallel: int | None
) -> list[dict[str, Any]]:
    """Build the document of each point's job, with its values in the environment of every role.

    Args:
        base: the common document.
        grid: the parameters.
        label: value of the common label.
        max_parallel: number of jobs that are not on hold; None for all.
    """
    found = []
    every = points(grid)
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
        found[name] = [value.strip() for value in values.split(",") if value.strip()]
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
