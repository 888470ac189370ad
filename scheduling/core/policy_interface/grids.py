"""Grids of a hybrid job as policies see them: the best grid for each type and number of devices.

A grid is a device type, a number of devices and a number of pipeline stages. Policies choose the
type and the number of devices; the row of this shape then names the stages and the parallel plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

GRIDS_PER_JOB: Final = 64
"""Maximum number of rows of one job; the snapshot stores no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestGrid:
    """The best grid of a hybrid job on a number of devices of one type.

    Attributes:
        type: device type.
        devices: number of devices, a power of two.
        nodes: number of nodes for which the rate was estimated.
        stages: number of pipeline stages.
        rate: estimated steps per second at the job's batch, above 0.
        plan: the parallel plan as in ``TESSERA_JOB_PLAN``; empty if only the rate is known.
        source: origin of the rate, for example ``profiled``, ``declared`` or ``projected``.
    """

    type: str
    devices: int
    nodes: int = 1
    stages: int = 1
    rate: float
    # A mapping is not hashable; its ID is the hash of its content.
    plan: Mapping[str, Any] = field(default_factory=dict, hash=False)
    source: str = "profiled"

    def __post_init__(self) -> None:
        """Reject a rate that is not positive: an impossible shape has no row."""
        if not 0.0 < self.rate < float("inf") or min(self.devices, self.nodes, self.stages) < 1:
            raise ValueError(
                f"{self.devices} devices of {self.type}: the rate {self.rate} is not positive, "
                "or a number is below 1; leave out shapes that cannot run"
            )


GridTable = tuple[BestGrid, ...]
"""Rows of one job, at most ``GRIDS_PER_JOB``; empty for a job without hybrid parallelism.

A shape without a row cannot run: too little memory, a link that is too slow, or a barred plan.
"""


def grid_at(
    table: Sequence[BestGrid], device_type: str, nodes: int, devices: int
) -> BestGrid | None:
    """Return the row of a shape; None if the job cannot run there.

    Of rows for several numbers of nodes, the one with the most nodes up to ``nodes`` applies, else
    the one with the fewest.
    """
    same = [row for row in table if row.type == device_type and row.devices == devices]
    within = [row for row in same if row.nodes <= nodes]
    if within:
        return max(within, key=lambda row: row.nodes)
    return min(same, key=lambda row: row.nodes, default=None)


def grid_types(table: Sequence[BestGrid], devices: int | None = None) -> tuple[str, ...]:
    """Return the types that have a row, at a number of devices or at any, by name."""
    return tuple(sorted({row.type for row in table if devices is None or row.devices == devices}))
