"""The interface of policies: the frozen input and output of one virtual cluster's plan.

Production rounds and the simulator build the same values. Facts that a live round does
not have yet have their defaults, so that a view of 10,000 jobs costs only its available facts.
"""

from scheduling.core.policy_interface.grids import (
    GRIDS_PER_JOB,
    BestGrid,
    GridTable,
    grid_at,
    grid_types,
)
from scheduling.core.policy_interface.jobs import (
    NO_FACTS,
    PLAIN_TERMS,
    Alloc,
    Event,
    Facts,
    JobPhase,
    Kind,
    Part,
    PolicyJob,
    Scale,
    Share,
    Slower,
    Step,
    Terms,
)
from scheduling.core.policy_interface.snapshot import (
    LINEAR,
    LinearModel,
    Model,
    Plan,
    Pool,
    Reservation,
    Shape,
    Snapshot,
    Tenant,
    TypeInfo,
)

__all__ = [
    "GRIDS_PER_JOB",
    "LINEAR",
    "NO_FACTS",
    "PLAIN_TERMS",
    "Alloc",
    "BestGrid",
    "Event",
    "Facts",
    "GridTable",
    "JobPhase",
    "Kind",
    "LinearModel",
    "Model",
    "Part",
    "Plan",
    "PolicyJob",
    "Pool",
    "Reservation",
    "Scale",
    "Shape",
    "Share",
    "Slower",
    "Snapshot",
    "Step",
    "Tenant",
    "Terms",
    "TypeInfo",
    "grid_at",
    "grid_types",
]
