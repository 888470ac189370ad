"""The interface of rule sets: the simulated world for a policy's plans."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from scheduling.core.policies.base import Need, Policy
from scheduling.core.policy_interface import Plan, Snapshot
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.traces import NO_KNOWLEDGE, FileReader, Knowledge, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Failures and their costs, under rules without a recorded artefact.

    Attributes:
        node_mtbf: mean seconds until a node fails, exponentially distributed; None for never.
        node_repair: mean seconds until it is back, exponentially distributed.
        restart_seconds: cost of continuing, at the same or another size.
        checkpoint_seconds: work between two checkpoints; a failure loses the work after the last
            one. 0: no step is lost.
        estimate_noise: standard deviation of the logarithm of the error of declared sizes.
    """

    node_mtbf: float | None = None
    node_repair: float = 3600.0
    restart_seconds: float = 30.0
    checkpoint_seconds: float = 0.0
    estimate_noise: float = 0.0


#: No failures, and exact declarations.
FAIR_WEATHER: Final = Conditions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Inputs of a simulated world.

    Attributes:
        files: reads the profiles, for rules that need them.
        interval: seconds between two rounds; None for the default of the rules.
        shares: guaranteed nodes by virtual cluster and type; empty for one common pool.
        needs: required inputs of the policy, so that others are skipped; None for all.
        policy: the policy of the run, for rules whose policies have switches of the rules.
    """

    trace: Trace
    cluster: SimCluster
    files: FileReader
    interval: float | None = None
    seed: int = 0
    knowledge: Knowledge = NO_KNOWLEDGE
    conditions: Conditions = FAIR_WEATHER
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    needs: frozenset[Need] | None = None
    policy: Policy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Outcome of a job.

    Attributes:
        submitted: seconds from the trace's start, like all other times.
        started: time at which it first held devices; None if never.
        finished: time of completion; None if not within the simulation.
        failures: number of node failures during its runs.
        lost: device-seconds of repeated work.
        refused: reason of its rejection, in words.
    """

    name: str
    submitted: float
    started: float | None
    finished: float | None
    restarts: int
    gpu_seconds: float
    failures: int = 0
    lost: float = 0.0
    refused: str | None = None


class World(Protocol):
    """Jobs on a cluster under one set of rules; the driver advances its time."""

    @property
    def now(self) -> float:
        """Seconds from the trace's start."""
        ...

    @property
    def cluster(self) -> SimCluster: ...

    @property
    def finished(self) -> bool:
        """Whether all jobs are complete."""
        ...

    @property
    def active(self) -> int:
        """Jobs that have been submitted and are not complete."""
        ...

    @property
    def done(self) -> int:
        """Jobs that are complete or refused."""
        ...

    @property
    def busy(self) -> int:
        """Devices that are held now."""
        ...

    @property
    def changed(self) -> bool:
        """Whether jobs or their facts differ from the snapshot before the last one."""
        ...

    def next_time(self, wake: float | None) -> float | None:
        """Return the time of the next decision, or None without further events.

        Args:
            wake: the wake time of the last plan.
        """
        ...

    def advance(self, to: float) -> None:
        """Run all jobs until ``to``."""
        ...

    def snapshot(self) -> Snapshot | None:
        """Return the policy's current input, or None if there is nothing to decide."""
        ...

    def apply(self, plan: Plan) -> None:
        """Apply the planned allocations."""
        ...

    def records(self) -> tuple[JobRecord, ...]:
        """Return the records of all jobs, in the order of the trace."""
        ...

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Return the run time of a job alone on n devices at its best batch, or None."""
        ...

    def restart_seconds(self, index: int) -> float:
        """Return the cost of each start of a job."""
        ...

    def timeline(self) -> Mapping[str, Any]:
        """Return the state after a decision, for a log with one line per round."""
        ...


#: Builds the world of a rule set.
Rules: TypeAlias = Callable[[Setup], World]
