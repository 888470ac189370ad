"""What a job says about training at other sizes and with other batches."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final


class ElasticMode(StrEnum):
    """Who decides what another size means for the training."""

    FIXED = "fixed"
    LOGICAL_WORKERS = "logical_workers"
    ADAPTIVE_BATCH = "adaptive_batch"


HYBRID: Final = "hybrid"
"""The mode of plans for hybrid parallelism; it does not work yet."""

LEVELS: Final = ("D0", "D1", "D2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """The sizes between which the scheduler may choose, and what may change with them.

    Attributes:
        mode: ``fixed``: the job itself knows what to do at another size; ``logical_workers``:
            it trains to the same bits at every size; ``adaptive_batch``: its batch is chosen for
            it.
        min: fewest devices of the whole job; None: what the job asks for.
        max: most devices of the whole job; None: what the job asks for.
        logical_workers: how many there are, for that mode.
        determinism: one of ``LEVELS``, for logical workers; None: what the training says itself.
        executors: the most processes that may share a device, for logical workers; None: one.
        initial_batch: samples for which the learning rate was chosen, for adaptive batches.
        max_batch: the most samples of a step, likewise.
        max_local_batch: the most samples that a device holds at once, likewise; None:
            ``max_batch``.
        total_steps: steps (of the initial batch) after which the training is done.
        epochs: passes over the data after which it is done.
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
    total_steps: int | None = None
    epochs: int | None = None

    def bounds(self, devices: int) -> tuple[int, int]:
        """The fewest and the most devices of a job that asks for ``devices``."""
        return self.min or devices, self.max or devices

    def to_json(self) -> dict[str, Any]:
        """What was said; the mode only where it is not the default."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        said["mode"] = self.mode.value if self.mode is not ElasticMode.FIXED else None
        return {name: value for name, value in said.items() if value is not None}
