"""Recorded cases of the planner: pipelines to replay, and estimates of whole plans to tune.

``cases/crius/README.md`` beside the contracts describes the files. Answers in a file (``expect``,
``gpipe_s``, ``one_f_one_b_s``, ``searched_s``) are not read.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from scheduling.core.grids.model import GridInputError, Schedule, StageShape, profiled_shapes
from scheduling.core.grids.pipeline import Pipeline, replay
from scheduling.core.grids.tuning import TunedPlan, tune

Line = dict[str, Any]


_WITHOUT_TIME = (None, inf, -1)
"""Recorded step times of plans that do not fit or failed; the artefact writes -1 for a failure."""


def pipeline_lines(document: object) -> Iterator[Line]:
    """Yield the replayed step time of each pipeline under GPipe and 1F1B, in seconds.

    Raises:
        GridError: the document is not a list of pipelines.
    """
    for index, case in enumerate(_sequence(document, "document")):
        body = _mapping(case, f"[{index}]")

        def times(name: str, body: Mapping[str, Any] = body, index: int = index) -> list[float]:
            values = _sequence(body.get(name), f"[{index}].{name}")
            return [_number(value, f"[{index}].{name}") for value in values]

        pipeline = Pipeline(
            forward=times("forward"),
            backward=times("backward"),
            # A pipeline of one stage has no transfers, and may leave them out.
            transfer=times("transfer") if body.get("transfer") is not None else [],
            micro_batches=_count(body.get("micro_batches"), f"[{index}].micro_batches"),
        )
        yield {
            "index": index,
            "gpipe_s": replay(Schedule.GPIPE, pipeline).seconds,
            "one_f_one_b_s": replay(Schedule.ONE_F_ONE_B, pipeline).seconds,
        }


def estimate_lines(document: object) -> Iterator[Line]:
    """Yield the tuned plan of each configuration and number of stages.

    The profiled shapes are known before tuning; ``explored`` lists the plans whose recorded step
    time was looked up while tuning. ``best_step_s`` and ``plans`` describe all recorded plans. A
    plan that was recorded several times counts once, with the shortest time.

    Raises:
        GridError: the document is not a mapping of models to configurations.
    """
    for grid in recorded_grids(document):
        tuned = grid.tuned()
        yield {
            "model": grid.model,
            "grid": grid.name,
            "stages": grid.stages,
            "chosen": grid.plan(tuned.chosen[0]),
            "chosen_step_s": tuned.seconds,
            "best_step_s": min(grid.seconds.values()),
            "explored": [grid.plan(shapes[0]) for shapes in tuned.explored],
            "plans": len(grid.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGrid:
    """The recorded plans of one configuration and number of stages; all stages are equal.

    Attributes:
        model: model and batch, as in the document.
        name: device type, nodes and devices per node, as in the document.
        stages: number of stages.
        seconds: recorded step time of each shape.
    """

    model: str
    name: str
    stages: int
    seconds: Mapping[StageShape, float]

    def profiled(self, *, middle: bool = True) -> dict[StageShape, float]:
        """Return the step times that are known before tuning.

        Args:
            middle: whether the middle shape is profiled too, not only the two of Crius.
        """
        width = next(iter(self.seconds)).devices
        shapes = profiled_shapes(width)
        known = shapes if middle else (shapes[0], shapes[-1])
        return {shape: self.seconds[shape] for shape in known if shape in self.seconds}

    def tuned(self, *, middle: bool = True) -> TunedPlan:
        """Return the plan that tuning finds; it asks for the time of each plan that it explores.

        Args:
            middle: as for `profiled`.
        """
        return tune(
            [(shape,) * self.stages for shape in self.seconds],
            {(s,) * self.stages: t for s, t in self.profiled(middle=middle).items()},
            lambda shapes: self.seconds[shapes[0]],
        )

    def plan(self, shape: StageShape) -> Line:
        """Return a plan in the form of the document."""
        return {"stages": self.stages, "data": shape.data, "tensor": shape.tensor}


def recorded_grids(document: object) -> Iterator[RecordedGrid]:
    """Yield the recorded grids of a document in its order, by ascending number of stages.

    Raises:
        GridError: the document is not a mapping of models to configurations.
    """
    for model, configurations in _mapping(document, "document").items():
        for name, configuration in _mapping(configurations, model).items():
            field = f"{model}.{name}"
            plans = _sequence(_mapping(configuration, field).get("plans"), f"{field}.plans")
            seconds = _recorded_seconds(plans, f"{field}.plans")
            for stages in sorted(seconds):
                yield RecordedGrid(model=model, name=name, stages=stages, seconds=seconds[stages])


def regret_lines(document: object) -> Iterator[Line]:
    """Yield the regret of sampling and tuning, for the two profiled shapes of Crius and for three.

    A regret is the step time of a choice over that of the best recorded plan of its
    configuration, minus 1. The choice is the stage count with the shortest profiled time
    (``profiled``), or the plan that tuning finds for this stage count (``tuned``).

    Raises:
        GridError: the document is not a mapping of models to configurations.
    """
    grids = list(recorded_grids(document))
    by_configuration: dict[tuple[str, str], list[RecordedGrid]] = defaultdict(list)
    for grid in grids:
        by_configuration[grid.model, grid.name].append(grid)
    for middle in (False, True):
        profiled, tuned = [], []
        for same in by_configuration.values():
            best = min(min(grid.seconds.values()) for grid in same)
            proxies = [min(grid.profiled(middle=middle).values(), default=inf) for grid in same]
            least = int(np.argmin(proxies))
            result = same[least].tuned(middle=middle).seconds
            proxy = proxies[least] if isfinite(proxies[least]) else result
            profiled.append(proxy / best - 1)
            tuned.append(result / best - 1)
        yield {
            "profiled_shapes": 3 if middle else 2,
            "configurations": len(tuned),
            "grids": len(grids),
            "regret_profiled": _summary(profiled),
            "regret_tuned": _summary(tuned),
            **_explored_shares(grids, middle=middle),
        }


def _explored_shares(grids: Sequence[RecordedGrid], *, middle: bool) -> Line:
    """Return the share of explored plans, and the reached share of the best plan's speed."""
    shares: dict[str, list[float]] = {"explored_one_stage": [], "explored_stages": []}
    reached = []
    for grid in grids:
        tuned = grid.tuned(middle=middle)
        if next(iter(grid.seconds)).devices > 1:
            name = "explored_one_stage" if grid.stages == 1 else "explored_stages"
            shares[name].append(len(tuned.explored) / len(grid.seconds))
            reached.append(min(grid.seconds.values()) / tuned.seconds)
    return {
        **{name: _mean(values) for name, values in shares.items()},
        "reached": {"mean": _mean(reached), "min": min(reached, default=1.0)},
    }


def _summary(values: Sequence[float]) -> Line:
    if not values:
        return {"mean": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}
    p90, p99 = np.percentile(values, [90, 99]).tolist()
    return {"mean": _mean(values), "p90": p90, "p99": p99, "max": max(values)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _recorded_seconds(plans: Sequence[object], field: str) -> dict[int, dict[StageShape, float]]:
    """Return the shortest recorded step time by number of stages and shape.

    Raises:
        GridError: a plan is invalid, or stages of equally many differ in devices.
    """
    found: dict[int, dict[StageShape, float]] = defaultdict(dict)
    for index, item in enumerate(plans):
        plan, name = _mapping(item, f"{field}[{index}]"), f"{field}[{index}]"
        if plan.get("step_s") in _WITHOUT_TIME:
            continue
        shape = StageShape(
            data=_count(plan.get("data"), f"{name}.data"),
            tensor=_count(plan.get("tensor"), f"{name}.tensor"),
        )
        same = found[_count(plan.get("stages"), f"{name}.stages")]
        if any(other.devices != shape.devices for other in same):
            raise GridInputError(
                f"{shape.devices} devices in a stage differ from other plans.",
                field=name,
                value=shape.devices,
                remedy="Use plans with equally many devices in one configuration.",
            )
        seconds = _number(plan["step_s"], f"{name}.step_s")
        same[shape] = min(seconds, same.get(shape, seconds))
    return found


def _mapping(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise GridInputError(
            "this is not an object.", field=field, value=value, remedy="Use a JSON object."
        )
    return value


def _sequence(value: object, field: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise GridInputError(
            "this is not a list.", field=field, value=value, remedy="Use a JSON list."
        )
    return value


def _number(value: object, field: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e100:
        return float(value)
    raise GridInputError(
        f"{value!r:.40} is not a valid number of seconds.",
        field=field,
        value=value,
        remedy="Use a number from 0.",
    )


def _count(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65_536:
        raise GridInputError(
            f"{value!r:.40} is not a valid number.",
            field=field,
            value=value,
            remedy="Use an integer from 1 to 65536.",
        )
    return value
