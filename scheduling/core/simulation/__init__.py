"""The simulation engine: an event clock that drives ``core.round.decide``, as live rounds do."""

from scheduling.core.simulation.cluster import SimulatedCluster, SimulationSettings
from scheduling.core.simulation.events import ClusterChange, HealthChange, QueueChange
from scheduling.core.simulation.jobs import Overhead
from scheduling.core.simulation.results import SimulationRecord
from scheduling.core.simulation.speedup import ModelSpeedup, proportional

__all__ = [
    "ClusterChange",
    "HealthChange",
    "ModelSpeedup",
    "Overhead",
    "QueueChange",
    "SimulatedCluster",
    "SimulationRecord",
    "SimulationSettings",
    "proportional",
]
