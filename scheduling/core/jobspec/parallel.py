"""The field ``parallel``: hybrid parallelism of a training, and its checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from scheduling.core.jobspec.elastic import Elastic, ElasticMode, ProfileUse
from scheduling.core.jobspec.errors import DocumentPlace
from scheduling.core.jobspec.scalars import read_integer
from scheduling.core.jobspec.table import Field, choice, number_schema, read_object
from scheduling.core.messages import sentence
from tessera.train.hybrid.plans import SCHEDULES, ParallelPlan, PlanError, Stage

MOST_STAGES: Final = 64
MOST_LAYERS: Final = 4_096
MOST_WIDTH: Final = 4_096
LARGEST_BATCH: Final = 1 << 20


class PlanChoice(StrEnum):
    """Origin of the parallel plan of an attempt: Tessera, or the owner."""

    AUTO = "auto"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Declarations of a job about hybrid parallelism.

    Attributes:
        batch: samples of a step, over all devices.
        micro_batches: parts of a batch that pass through the pipeline one after another.
        schedule: order of forward and backward passes.
        plan: who chooses the plan.
        stages: the owner's plan at the requested size; empty for none.
        max_tensor: maximum devices that share a layer; None for any.
        profile: whether the model is profiled.
    """

    batch: int
    micro_batches: int = 1
    schedule: str = SCHEDULES[0]
    plan: PlanChoice = PlanChoice.AUTO
    stages: tuple[Stage, ...] = ()
    max_tensor: int | None = None
    profile: ProfileUse = ProfileUse.AUTOMATIC

    def given_plan(self, devices: int) -> ParallelPlan | None:
        """Return the owner's plan at another size: each stage with more replicas, or None.

        Args:
            devices: a multiple of the devices of ``stages``.
        """
        own = sum(stage.devices for stage in self.stages)
        if not own or devices % own:
            return None
        times = devices // own
        stages = tuple(Stage(s.first, s.last, s.data * times, s.tensor) for s in self.stages)
        return self.plan_of(stages)

    def given_sizes(self) -> tuple[int, ...]:
        """Return the numbers of devices at which the owner's plan applies, in ascending order."""
        own = sum(stage.devices for stage in self.stages)
        sizes = (own << k for k in range(LARGEST_BATCH.bit_length())) if own else ()
        return tuple(size for size in sizes if self.given_plan(size) is not None)

    def replicas(self, layers: int, devices: int) -> ParallelPlan | None:
        """Return the plan with one replica of the whole model per device, if the batch divides."""
        return self.plan_of((Stage(0, layers, data=devices),))

    def plan_of(self, stages: tuple[Stage, ...]) -> ParallelPlan | None:
        """Return the plan with these stages, or None if it is not valid."""
        try:
            return ParallelPlan(stages, self.micro_batches, self.batch, self.schedule)
        except PlanError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the declared fields, without optional defaults."""
        said = {
            "batch": self.batch,
            "micro_batches": self.micro_batches,
            "schedule": self.schedule,
            "plan": self.plan.value,
            "stages": [
                {"first": s.first, "last": s.last, "data": s.data, "tensor": s.tensor}
                for s in self.stages
            ]
            or None,
            "max_tensor": self.max_tensor,
            "profile": self.profile.value,
        }
        return {name: value for name, value in said.items() if value is not None}


def read_parallel(value: object, place: DocumentPlace) -> Parallel | None:
    """Read ``parallel``; None if it is invalid; its errors are collected."""
    faults = len(place.errors)
    given = read_object(value, PARALLEL_FIELDS, place)
    if len(place.errors) != faults:
        return None
    parallel = Parallel(**given)
    if parallel.batch % parallel.micro_batches:
        place.child("micro_batches").refuse(
            parallel.micro_batches,
            sentence("batch-not-divisible", batch=parallel.batch),
            sentence("use-divisor", batch=parallel.batch),
            "conflict",
        )
    elif parallel.stages:
        _check_stages(parallel, place.child("stages"))
    elif parallel.plan is PlanChoice.FIXED:
        place.child("stages").refuse(
            None, sentence("missing"), sentence("give-stages"), "missing-field"
        )
    return parallel if len(place.errors) == faults else None


def stored_parallel(document: object) -> Parallel:
    """Read what ``Parallel.to_json`` wrote.

    Raises:
        ValueError: the document is malformed.
    """
    place = DocumentPlace("parallel")
    parallel = read_parallel(document, place)
    if parallel is None:
        raise ValueError(f"a stored field `parallel` is not valid: {place.errors}")
    return parallel


def check_parallel(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Check ``parallel`` against roles and ``elastic``; errors are added to ``place``."""
    parallel: Parallel | None = given.get("parallel")
    elastic: Elastic | None = given.get("elastic")
    is_hybrid = elastic is not None and elastic.mode is ElasticMode.HYBRID
    there = place.child("parallel")
    if parallel is None:
        if is_hybrid and "parallel" not in given:
            there.refuse(None, sentence("missing"), sentence("give-parallel"), "missing-field")
        return
    roles = list(given.get("roles", {}).values())
    if not all(roles):
        return
    if len(roles) != 1 or not given.get("gang", True):
        words = sentence("needs-gang-of-one-role")
        there.refuse(None, words, sentence("omit-parallel"), "conflict")
        return
    if elastic is not None and not is_hybrid:
        place.child("elastic").child("mode").refuse(
            elastic.mode.value,
            sentence("parallel-needs-hybrid"),
            sentence("write-mode-hybrid"),
            "conflict",
        )
        return
    devices = roles[0].instances * roles[0].devices
    if not devices:
        return  # refused, since it has no devices
    least, most = elastic.bounds(devices) if elastic is not None else (devices, devices)
    _check_sizes(parallel, devices, (least, most), place, is_elastic=elastic is not None)


def _check_sizes(
    parallel: Parallel,
    devices: int,
    bounds: tuple[int, int],
    place: DocumentPlace,
    *,
    is_elastic: bool,
) -> None:
    there = place.child("parallel")
    least, most = bounds
    own = sum(stage.devices for stage in parallel.stages)
    if parallel.profile is ProfileUse.ONLY:
        if devices != 1 or is_elastic:
            there.child("profile").refuse(
                parallel.profile.value,
                sentence("profile-needs-one-device", devices=devices),
                sentence("use-one-device"),
                "conflict",
            )
        return
    if own and own != devices:
        there.child("stages").refuse(
            own,
            sentence("stages-need-devices", own=own, devices=devices),
            sentence("change-stages-or-devices"),
            "conflict",
        )
        return
    if is_elastic or parallel.plan is PlanChoice.AUTO:
        _check_powers({"devices": devices, "min": least, "max": most}, place)
    if parallel.plan is PlanChoice.FIXED and least < own:
        place.child("elastic").child("min").refuse(
            least,
            sentence("fixed-plan-needs", own=own),
            sentence("write-or-more", first=own),
            "conflict",
        )
    if own and parallel.plan is PlanChoice.FIXED and parallel.given_plan(most) is None:
        place.child("elastic").child("max").refuse(
            most,
            sentence("batch-not-divisible", batch=parallel.batch),
            sentence("write-smaller-max-or-batch"),
            "conflict",
        )


def _check_powers(sizes: Mapping[str, int], place: DocumentPlace) -> None:
    for name, size in sizes.items():
        if size & (size - 1):
            there = place.child("parallel") if name == "devices" else place.child("elastic")
            there.child("plan" if name == "devices" else name).refuse(
                size, sentence("not-power-of-two", size=size), sentence("use-power"), "conflict"
            )
            return


def _check_stages(parallel: Parallel, place: DocumentPlace) -> None:
    try:
        ParallelPlan(parallel.stages, parallel.micro_batches, parallel.batch, parallel.schedule)
    except PlanError as error:
        place.refuse(
            None, sentence("not-plan", reason=str(error)), sentence("correct-plan"), "conflict"
        )


def _stages(value: object, place: DocumentPlace) -> tuple[Stage, ...]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MOST_STAGES:
        place.refuse(
            value,
            sentence("not-stages"),
            sentence("write-stages", most=MOST_STAGES),
            "wrong-type",
        )
        return ()
    faults = len(place.errors)
    rows = [read_object(item, _STAGE_FIELDS, place.item(i)) for i, item in enumerate(value)]
    return tuple(Stage(**row) for row in rows) if len(place.errors) == faults else ()


def _number(name: str, words: str, most: int, **more: Any) -> Field:
    lowest = 0 if name == "first" else 1
    return Field(
        name=name,
        type="number",
        help=words,
        read=lambda value, _place: read_integer(value, lowest, most),
        schema=number_schema(lowest, most),
        **more,
    )


def _word(name: str, words: tuple[str, ...], kind: type[StrEnum] | type[str], text: str) -> Field:
    return Field(
        name=name,
        type=" or ".join([", ".join(words[:-1]), words[-1]]),
        default=words[0],
        help=text,
        read=lambda value, _place: kind(choice(value, words)),
        schema={"type": "string", "enum": list(words)},
    )


_STAGE_FIELDS: Final = (
    _number("first", "Index of the first layer, from 0.", MOST_LAYERS, required=True),
    _number("last", "Index after the last layer.", MOST_LAYERS, required=True),
    _number("data", "Number of replicas.", MOST_WIDTH, default="1"),
    _number("tensor", "Devices of each replica.", MOST_WIDTH, default="1"),
)
PARALLEL_FIELDS: Final = (
    _number("batch", "Samples of a step, over all devices.", LARGEST_BATCH, required=True),
    _number(
        "micro_batches",
        "Parts of a batch that pass through the pipeline one after another; a divisor of batch.",
        MOST_LAYERS,
        default="1",
    ),
    _word(
        "schedule",
        SCHEDULES,
        str,
        "Order of forward and backward passes: in turn, or all forward passes first.",
    ),
    _word(
        "plan",
        tuple(PlanChoice),
        PlanChoice,
        "auto: Tessera chooses the parallel plan of each size and device type. fixed: the plan "
        "in stages.",
    ),
    Field(
        name="stages",
        type="list of stages",
        default="none",
        help="Parallel plan at the requested size. Each stage has first and last (layers first to "
        "last - 1), data (replicas) and tensor (devices of a replica). At n times the devices, "
        "each stage has n times the replicas. With plan auto, it is used while no other plan is "
        "known.",
        read=_stages,
        schema={
            "type": "array",
            "maxItems": MOST_STAGES,
            "items": {
                "type": "object",
                "required": ["first", "last"],
                "additionalProperties": False,
                "properties": {field.name: dict(field.schema) for field in _STAGE_FIELDS},
            },
        },
    ),
    _number(
        "max_tensor",
        "Maximum devices that share a layer, with plan auto.",
        MOST_WIDTH,
        default="any",
    ),
    _word(
        "profile",
        tuple(ProfileUse),
        ProfileUse,
        "automatic: with plan auto, a small job on one device of each type measures the model. "
        "none: no such job. only: this job measures the model and ends.",
    ),
)
