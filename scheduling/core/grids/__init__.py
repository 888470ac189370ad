"""Planner for hybrid parallelism: grids, stage partition, step time, memory and tuning.

Entry points are ``grids_of``, which lists the grids of a job, and ``Estimator``, which chooses the
plan of a grid. Source: Crius (EuroSys '26, arXiv 2403.16125); ADR 65 names the differences.
"""

from scheduling.core.grids.estimates import Estimator, GridEstimate
from scheduling.core.grids.links import LinkPoint, Links, LinkTable
from scheduling.core.grids.memory import MemoryRules
from scheduling.core.grids.model import (
    Grid,
    GridInputError,
    GridLimits,
    ParallelPlan,
    PipelineStage,
    Schedule,
    StageShape,
    grids_of,
)
from scheduling.core.grids.partition import Partition, partition
from scheduling.core.grids.profiles import LayerClass, LayerRun, Profile
from scheduling.core.grids.stages import GridState, Training
from scheduling.core.grids.tables import grid_table

__all__ = [
    "Estimator",
    "Grid",
    "GridEstimate",
    "GridInputError",
    "GridLimits",
    "GridState",
    "LayerClass",
    "LayerRun",
    "LinkPoint",
    "LinkTable",
    "Links",
    "MemoryRules",
    "ParallelPlan",
    "Partition",
    "PipelineStage",
    "Profile",
    "Schedule",
    "StageShape",
    "Training",
    "grid_table",
    "grids_of",
    "partition",
]
