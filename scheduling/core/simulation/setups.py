"""Inputs and outcomes of a simulated trace, and the interface of rule sets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from scheduling.core.policies.base import Policy
from scheduling.core.simulation.results import Result
from scheduling.core.workloads.clusters import SimCluster
from scheduling.core.workloads.traces import NO_KNOWLEDGE, FileReader, Knowledge, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Failures and their costs, under rules without a recorded artefact.

    Attributes:
        node_mtbf: mean seconds until a node fails, exponentially distributed; None for never.
        node_repair: mean seconds until its repair, exponentially distributed.
        restart_seconds: cost of a restart, at the same or another size.
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
        policy: the policy of the run, for rules whose policies have switches of the rules.
        hybrid: whether jobs are hybrid-parallel and run on every measured type and size.
        profile_seconds: duration of the profile jobs of elastic jobs on one device of each type;
            None for no profiles.
    """

    trace: Trace
    cluster: SimCluster
    files: FileReader
    interval: float | None = None
    seed: int = 0
    knowledge: Knowledge = NO_KNOWLEDGE
    conditions: Conditions = FAIR_WEATHER
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    policy: Policy | None = None
    hybrid: bool = False
    profile_seconds: float | None = None


class RuleSet(Protocol):
    """Runs the jobs of a setup under its policy until all are complete, or none makes progress."""

    def __call__(
        self,
        setup: Setup,
        policy: Policy,
        *,
        rules: str,
        workload: str,
        timer: Callable[[], float],
        on_round: Callable[[Mapping[str, Any]], None] | None = None,
        on_progress: Callable[[int, float], None] | None = None,
    ) -> Result:
        """Run the simulation.

        Args:
            setup: the trace, the cluster and the conditions.
            policy: the policy that decides.
            rules: the rules' name, for the result.
            workload: the trace's name, for the result.
            timer: clock in seconds, only to measure decisions.
            on_round: gets the state after each decision.
            on_progress: gets the number of jobs that have left and the simulated time after each
                decision.

        Raises:
            SimulationError: the setup cannot be simulated.
        """
        ...
