"""The simulator: the second driver of the policies, over traces instead of a live cluster."""

from scheduling.core.simulator.clusters import NodeGroup, SimCluster, read_cluster
from scheduling.core.simulator.driver import simulate
from scheduling.core.simulator.results import Result
from scheduling.core.simulator.traces import (
    FileReader,
    Knowledge,
    SimulationError,
    Trace,
    TraceError,
    TraceJob,
)
from scheduling.core.simulator.worlds import Conditions, JobRecord, Rules, Setup, World

__all__ = [
    "Conditions",
    "FileReader",
    "JobRecord",
    "Knowledge",
    "NodeGroup",
    "Result",
    "Rules",
    "Setup",
    "SimCluster",
    "SimulationError",
    "Trace",
    "TraceError",
    "TraceJob",
    "World",
    "read_cluster",
    "simulate",
]
