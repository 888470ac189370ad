"""What a rule set is: the world that a policy's plans are tried in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from scheduling.core.policies.base import Need
from scheduling.core.policy_interface import Plan, Snapshot
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.traces import NO_KNOWLEDGE, FileReader, Knowledge, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What goes wrong and what it costs, under rules that are nobody's record.

    Attributes:
        node_mtbf: mean seconds until a node fails, exponentially distributed; None: never.
        node_repair: mean seconds until it is back, exponentially distributed.
        restart_seconds: what going on, or going on at another size, costs.
        checkpoint_seconds: work between two checkpoints; a failure takes what came after the
            last one. 0: every step is kept.
        estimate_noise: standard deviation of the logarithm of what declared sizes are wrong by.
    """

    node_mtbf: float | None = None
    node_repair: float = 3600.0
    restart_seconds: float = 30.0
    checkpoint_seconds: float = 0.0
    estimate_noise: float = 0.0


#: Nothing fails, and what is declared is true.
FAIR_WEATHER: Final = Conditions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that a simulated world is built from.

    Attributes:
        files: reads the profiles, for rules that need them.
        interval: seconds between two rounds; None: what is usual for the rules.
        shares: guaranteed nodes by virtual cluster and type; empty: there is one pool for all.
        needs: what the policy must be told, which spares the world the rest; None: everything.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What became of a job.

    Attributes:
        submitted: seconds from the trace's start, as all times here.
        started: when it first held devices; None: never.
        finished: None: not within the simulation.
        failures: how often a node failed under it.
        lost: device-seconds of work that had to be done again.
        refused: why it was never let in, in words.
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
    """Jobs on a cluster under one set of rules; the driver tells it when to move on."""

    @property
    def now(self) -> float:
        """Seconds from the trace's start."""
        ...

    @property
    def cluster(self) -> SimCluster:
        """What the jobs run on."""
        ...

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
        """Whether jobs or what is known of them differ from the snapshot before the last one."""
        ...

    def next_time(self, wake: float | None) -> float | None:
        """When the next decision is due; None: nothing will ever happen again.

        Args:
            wake: the instant that the last plan asked for.
        """
        ...

    def advance(self, to: float) -> None:
        """Let all jobs run until ``to``."""
        ...

    def snapshot(self) -> Snapshot | None:
        """What the policy may know now; None: there is nothing to decide."""
        ...

    def apply(self, plan: Plan) -> None:
        """Give devices as planned."""
        ...

    def records(self) -> tuple[JobRecord, ...]:
        """All jobs, in the order of the trace."""
        ...

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Run time of a job alone on so many devices at its best batch; None: it cannot."""
        ...

    def restart_seconds(self, index: int) -> float:
        """What each start of a job costs."""
        ...

    def timeline(self) -> Mapping[str, Any]:
        """The state after a decision, for a log of one line per round."""
        ...


#: Builds the world of a rule set.
Rules: TypeAlias = Callable[[Setup], World]
