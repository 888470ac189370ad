"""Cells: topology-guaranteed shares of a cluster (the model of HiveD, OSDI '20).

``ClusterSpec`` describes the hardware and the share of each virtual cluster, ``feasible`` checks
that all shares fit together, and ``CellEngine`` places gangs so that no virtual cluster can break
the guarantee of another.
"""

from scheduling.core.cells.engine import CellEngine
from scheduling.core.cells.errors import (
    CellError,
    InfeasibleSpecError,
    RequestError,
    SpecError,
    StaleDecisionError,
)
from scheduling.core.cells.feasibility import Feasibility, feasible, fitting_sizes
from scheduling.core.cells.remedies import Remedies
from scheduling.core.cells.requests import (
    HIGHEST_PRIORITY,
    OPPORTUNISTIC,
    Bind,
    Decision,
    GangRequest,
    GroupState,
    GroupView,
    Member,
    Phase,
    Placed,
    Preempt,
    Restored,
    Wait,
    WaitCode,
)
from scheduling.core.cells.spec import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec

__all__ = [
    "HIGHEST_PRIORITY",
    "OPPORTUNISTIC",
    "Bind",
    "CellEngine",
    "CellError",
    "CellType",
    "ClusterSpec",
    "Decision",
    "Feasibility",
    "GangRequest",
    "GroupState",
    "GroupView",
    "InfeasibleSpecError",
    "Member",
    "Phase",
    "PhysicalCell",
    "Placed",
    "Preempt",
    "Quota",
    "Remedies",
    "RequestError",
    "Restored",
    "SpecError",
    "StaleDecisionError",
    "VcSpec",
    "Wait",
    "WaitCode",
    "feasible",
    "fitting_sizes",
]
