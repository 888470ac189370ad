"""Parallel plans of hybrid jobs: fingerprints, barred plans, and the choice at a start."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from scheduling.core.jobspec import ElasticMode, JobSpec, Parallel, PlanChoice
from scheduling.core.lifecycle import FailureClass
from scheduling.core.performance.reverts import SECONDS_TO_JUDGE, STEPS_TO_JUDGE
from scheduling.core.policy_interface import BestGrid, GridTable, grid_at

PROFILE_VERSION: Final = 1
"""Version of profiles; another one has another fingerprint."""

BATCHES_PREFIX: Final = "batches-"
"""Beginning of the fingerprint of a job with variable batches, which has no parallel plans."""

SLOWER_FACTOR: Final = 1.5
"""A plan is barred if its step takes this many times as long as predicted."""


class PlanSource(StrEnum):
    """Origin of the plan of an attempt, and of its predicted step time."""

    PROFILED = "profiled"
    MEASURED = "measured"
    GIVEN = "given"
    REPLICAS = "replicas"


ESTIMATED: Final = (PlanSource.PROFILED, PlanSource.MEASURED)
"""Sources with a choice between plans."""


class PlanExclusion(StrEnum):
    """Reason why a plan is not used again for a fingerprint and device type."""

    MEMORY = "memory"
    FAILED = "failed"
    SLOWER = "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """One attempt under a parallel plan.

    Attributes:
        type: device type.
        plan_id: ID of the plan.
        predicted: predicted seconds per step; None without an estimate.
        steps: reported steps.
        seconds: their duration.
        failure_class: failure class of the attempt; empty if it did not fail.
    """

    type: str
    plan_id: str
    predicted: float | None
    steps: int
    seconds: float
    failure_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """Estimate of one grid of a profile, as stored with it.

    Attributes:
        type: device type.
        devices: number of devices.
        stages: number of pipeline stages.
        state: state of the grid (``core.grids.GridState``).
        step_seconds: predicted seconds per step; 0 without a plan.
        plan: the plan as in ``TESSERA_JOB_PLAN``; empty without one.
        stage_bytes: memory of one device of each stage; empty if unknown.
        is_projected: whether messages of its size were not measured on this type.
        stage_seconds: for each stage, the seconds of a forward and a backward pass of one
            micro-batch, and of its transfers to the next stage and back; empty if unknown.
    """

    type: str
    devices: int
    stages: int
    state: str
    step_seconds: float = 0.0
    plan: Mapping[str, Any]
    stage_bytes: tuple[float, ...] = ()
    is_projected: bool = False
    stage_seconds: tuple[tuple[float, ...], ...] = ()

    @property
    def plan_id(self) -> str:
        """ID of the plan; empty without one."""
        return str(self.plan.get("id", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPlan:
    """The plan of an attempt.

    Attributes:
        plan: document of the plan.
        source: origin of the plan.
        predicted: predicted seconds per step; None without an estimate.
    """

    plan: Mapping[str, Any]
    source: PlanSource
    predicted: float | None = None


_MODEL_FIELDS: Final = ("batch", "micro_batches", "schedule", "max_tensor")
_BATCH_FIELDS: Final = ("initial_batch", "max_batch", "max_local_batch")


def fingerprint_of(spec: JobSpec, owner: int) -> str:
    """Return the fingerprint of a hybrid job's model, or of a job with variable batches, else "".

    It covers what decides the time of a step and is known before the job runs: source, image,
    command and environment, batch, micro-batches, schedule and maximum tensor width; or the
    limits of variable batches. It also covers the owner, since jobs report profiles and plans by
    themselves: no user can report wrong times for the job of another user.

    Args:
        spec: specification of the job.
        owner: ID of the job's owner.
    """
    elastic = spec.elastic
    has_batches = elastic is not None and elastic.mode is ElasticMode.ADAPTIVE_BATCH
    if spec.parallel is None and not has_batches:
        return ""
    (role,) = spec.roles.values()
    document = spec.to_json()
    said = document["elastic"] if spec.parallel is None else document["parallel"]
    names = _BATCH_FIELDS if spec.parallel is None else _MODEL_FIELDS
    content = [
        PROFILE_VERSION,
        owner,
        document.get("source"),
        role.image,
        role.command,
        dict(role.env),
        *(said.get(name) for name in names),
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    found = hashlib.sha256(text.encode()).hexdigest()
    return found if spec.parallel is not None else f"{BATCHES_PREFIX}{found}"[: len(found)]


def barred_plans(runs: Iterable[PlanRun]) -> Mapping[tuple[str, str], PlanExclusion]:
    """Return the barred plans by device type and plan ID."""
    found: dict[tuple[str, str], PlanExclusion] = {}
    for run in runs:
        key = run.type, run.plan_id
        if has_failed(run.failure_class, run.steps):
            is_memory = run.failure_class == FailureClass.RESOURCE_LIMIT
            found[key] = PlanExclusion.MEMORY if is_memory else PlanExclusion.FAILED
        elif run.predicted and _is_judged(run.steps, run.seconds):
            is_slower = run.seconds / run.steps > SLOWER_FACTOR * run.predicted
            found.update({} if key in found or not is_slower else {key: PlanExclusion.SLOWER})
    return found


def has_failed(failure_class: str, steps: int) -> bool:
    """Return whether a run shows that its plan does not work: no memory, or not one step."""
    if failure_class == FailureClass.RESOURCE_LIMIT:
        return True
    return failure_class == FailureClass.USER and not steps


def measured_seconds(runs: Iterable[PlanRun]) -> Mapping[tuple[str, str], float]:
    """Return the measured seconds per step of sufficiently long runs, by type and plan ID."""
    steps: dict[tuple[str, str], int] = {}
    seconds: dict[tuple[str, str], float] = {}
    for run in runs:
        key = run.type, run.plan_id
        steps[key] = steps.get(key, 0) + run.steps
        seconds[key] = seconds.get(key, 0.0) + run.seconds
    return {key: seconds[key] / n for key, n in steps.items() if _is_judged(n, seconds[key])}


def best_grids(
    rows: Sequence[GridRow], runs: Sequence[PlanRun], node_devices: Mapping[str, int]
) -> GridTable:
    """Return the table of a job for policies: the fastest plan of each shape that is not barred.

    A measured step time replaces the predicted one. If all plans of a shape were slower than
    predicted, the fastest of them remains; plans that failed never do.

    Args:
        rows: estimates of the job's grids.
        runs: runs of jobs with the same fingerprint.
        node_devices: devices of the largest node by type.
    """
    barred, measured = barred_plans(runs), measured_seconds(runs)
    best: dict[tuple[str, int], tuple[bool, float, GridRow]] = {}
    for row in rows:
        key = row.type, row.plan_id
        bar = barred.get(key)
        if not row.plan or bar in (PlanExclusion.MEMORY, PlanExclusion.FAILED):
            continue
        offer = (bar is PlanExclusion.SLOWER, measured.get(key, row.step_seconds), row)
        known = best.get((row.type, row.devices))
        if known is None or (*offer[:2], row.stages) < (*known[:2], known[2].stages):
            best[row.type, row.devices] = offer
    return tuple(
        BestGrid(
            type=kind,
            devices=devices,
            nodes=max(1, -(-devices // node_devices.get(kind, devices))),
            stages=row.stages,
            rate=1.0 / seconds,
            plan=row.plan,
            source=_source((kind, row.plan_id) in measured),
        )
        for (kind, devices), (_, seconds, row) in sorted(best.items(), key=lambda item: item[0])
    )


def plan_of_start(
    parallel: Parallel, table: GridTable, *, device_type: str, nodes: int, devices: int
) -> ChosenPlan | None:
    """Return the plan of an attempt; None if the training has to choose it itself.

    Args:
        parallel: declarations of the job.
        table: the job's best grids, from `best_grids`.
        device_type: type of the devices.
        nodes: number of nodes.
        devices: number of devices.
    """
    if parallel.plan is PlanChoice.AUTO:
        grid = grid_at(table, device_type, nodes, devices)
        if grid is not None and grid.plan:
            return ChosenPlan(
                plan=grid.plan, source=PlanSource(grid.source), predicted=1.0 / grid.rate
            )
    given = parallel.given_plan(devices)
    if given is not None:
        return ChosenPlan(plan=given.document(), source=PlanSource.GIVEN)
    # The owner's stages do not fit this size, but they name the number of layers.
    layers = parallel.stages[-1].last if parallel.stages else 0
    replicas = parallel.replicas(layers, devices) if layers else None
    return ChosenPlan(plan=replicas.document(), source=PlanSource.REPLICAS) if replicas else None


def shape_of(plan: Mapping[str, Any]) -> str:
    """Return a plan in short: ``4 data``, ``2 x (4 data)`` or ``2 data | 2 tensor``."""
    shapes = [_widths(stage["data"], stage["tensor"]) for stage in plan.get("stages", ())]
    if len(shapes) > 1 and len(set(shapes)) == 1:
        return f"{len(shapes)} x ({shapes[0]})"
    return " | ".join(shapes)


def _widths(data: int, tensor: int) -> str:
    parts = [f"{n} {word}" for n, word in ((data, "data"), (tensor, "tensor")) if n > 1]
    return ", ".join(parts) or "1"


def rows_to_json(rows: Iterable[GridRow]) -> list[dict[str, Any]]:
    """Return rows as a JSON document without the type, which their profile has."""
    return [
        {
            "devices": row.devices,
            "stages": row.stages,
            "state": row.state,
            "step_seconds": row.step_seconds,
            "plan": dict(row.plan),
            "stage_bytes": list(row.stage_bytes),
            "is_projected": row.is_projected,
            "stage_seconds": [list(one) for one in row.stage_seconds],
        }
        for row in rows
    ]


def rows_from_json(device_type: str, document: Iterable[Mapping[str, Any]]) -> tuple[GridRow, ...]:
    """Return the rows of `rows_to_json`; older ones lack ``is_projected`` or ``stage_seconds``."""
    return tuple(
        GridRow(
            **{
                "is_projected": row["devices"] > 1,
                **row,
                "type": device_type,
                "stage_bytes": tuple(row["stage_bytes"]),
                "stage_seconds": tuple(map(tuple, row.get("stage_seconds", ()))),
            }
        )
        for row in document
    )


def _is_judged(steps: int, seconds: float) -> bool:
    return steps >= STEPS_TO_JUDGE and seconds >= SECONDS_TO_JUDGE


def _source(is_measured: bool) -> str:
    return PlanSource.MEASURED if is_measured else PlanSource.PROFILED
