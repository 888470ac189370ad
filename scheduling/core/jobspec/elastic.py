"""Declarations of a job about training at other sizes and with other batch sizes."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final


class ElasticMode(StrEnum):
    """Method by which training adapts to another size."""

    FIXED = "fixed"
    LOGICAL_WORKERS = "logical_workers"
    ADAPTIVE_BATCH = "adaptive_batch"
    HYBRID = "hybrid"


class ProfileUse(StrEnum):
    """Whether Tessera profiles the program, or the job only measures a profile."""

    AUTOMATIC = "automatic"
    NONE = "none"
    ONLY = "only"


LEVELS: Final = ("D0", "D1", "D2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Range of sizes between which the scheduler may choose, and the adaptation of the training.

    Attributes:
        mode: ``fixed``: the job itself adapts to another size; ``logical_workers``:
            training is bitwise equal at every size; ``adaptive_batch``: Tessera chooses its
            batch size; ``hybrid``: each size has its own parallel plan.
        min: minimum number of devices of the job; None for the requested number.
        max: maximum number of devices of the job; None for the requested number.
        logical_workers: number of logical workers, for that mode.
        determinism: one of ``LEVELS``, for logical workers; None if the training decides.
        executors: maximum processes on one device, for logical workers; None means one.
        initial_batch: batch size for which the learning rate was chosen, for adaptive batches.
        max_batch: maximum samples of a step, for adaptive batches.
        max_local_batch: maximum samples on one device at once, for adaptive batches; None
            means ``max_batch``.
        profile: whether step times are measured on one device of each type, for adaptive
            batches; None means ``automatic``.
        total_steps: length of the training in steps of the initial batch.
        epochs: length of the training in passes over the data.
    """

    mode: ElasticMode = ElasticMode.FIXED
    min: int | None = None
    max: int | None = None
    logical_workers: int | None = None
    determinism: str | None = None
    executors: int | None = None
    initial_batch: int | None = None
    max_batch: int | None = None
    max_local_batch: int | None = None
    profile: ProfileUse | None = None
    total_steps: int | None = None
    epochs: int | None = None

    def bounds(self, devices: int) -> tuple[int, int]:
        """Return the minimum and maximum size of a job that requests ``devices``."""
        return self.min or devices, self.max or devices

    def to_json(self) -> dict[str, Any]:
        """Return the declared fields; the mode only if it is not the default."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        said["mode"] = self.mode.value if self.mode is not ElasticMode.FIXED else None
        said["profile"] = self.profile.value if self.profile is not None else None
        return {name: value for name, value in said.items() if value is not None}
