"""Rule sets of published artefacts: a loop that advances a world from plan to plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from scheduling.core.policies.base import Policy, guarded_plan, label_of
from scheduling.core.policies.plans import PlanChecker
from scheduling.core.policy_interface import Plan, Snapshot
from scheduling.core.simulation.results import AloneTimes, JobRecord, Result, finish_time_fairness
from scheduling.core.simulation.setups import Setup

_IDLE_ROUNDS: Final = 2_000


class World(AloneTimes, Protocol):
    """Jobs on a cluster under one set of rules; the driver advances its time."""

    @property
    def now(self) -> float:
        """Seconds from the trace's start."""
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

    def timeline(self) -> Mapping[str, Any]:
        """Return the state after a decision, for a log with one line per round."""
        ...


@dataclass(frozen=True, slots=True)
class WorldRules:
    """The rule set (``RuleSet``) of a kind of worlds.

    Attributes:
        build: builds the world of a setup.
        policies: the policies that these rules run, by name; None for those of the product.
    """

    build: Callable[[Setup], World]
    policies: Mapping[str, type[Policy]] | None = None

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
        """Run the world of a setup under a policy."""
        return simulate(
            self.build(setup),
            policy,
            rules=rules,
            workload=workload,
            timer=timer,
            on_round=on_round,
            on_progress=on_progress,
        )


@dataclass(slots=True)
class _Tally:
    """Counters of a run."""

    rounds: int = 0
    decisions: list[float] = field(default_factory=list)
    device_seconds: float = 0.0
    active_seconds: float = 0.0
    idle: int = 0
    fallbacks: list[str] = field(default_factory=list)
    checker: PlanChecker = field(default_factory=PlanChecker)


def simulate(
    world: World,
    policy: Policy,
    *,
    rules: str,
    workload: str,
    timer: Callable[[], float],
    horizon: float | None = None,
    on_round: Callable[[Mapping[str, Any]], None] | None = None,
    on_progress: Callable[[int, float], None] | None = None,
) -> Result:
    """Run a world under a policy until all jobs are complete.

    Args:
        world: the jobs and the cluster, under its rules.
        policy: the policy that decides.
        rules: the rules' name, for the result.
        workload: the trace's name, for the result.
        timer: clock in seconds, only to measure decisions.
        horizon: simulated seconds after which the remaining jobs count as censored.
        on_round: gets the state after each decision.
        on_progress: gets the number of jobs that have left and the simulated time after each
            decision.

    Returns:
        The outcome. It also ends, with censored jobs, after 2,000 idle rounds in a row.
    """
    began = timer()
    tally = _Tally()
    state: Mapping[str, Any] = {}
    wake: float | None = None
    while not world.finished and tally.idle < _IDLE_ROUNDS:
        time = world.next_time(wake)
        if time is None or (horizon is not None and time > horizon):
            break
        _advance(world, time, tally)
        state, wake = _decide(world, policy, state, tally, timer)
        if on_round is not None:
            on_round(world.timeline())
        if on_progress is not None:
            on_progress(world.done, world.now)
    wall_seconds = timer() - began
    records = world.records()
    return Result(
        policy=label_of(policy),
        rules=rules,
        workload=workload,
        jobs=records,
        rounds=tally.rounds,
        decision_ms=tuple(tally.decisions),
        busy=tally.device_seconds / tally.active_seconds if tally.active_seconds else 0.0,
        ftf=finish_time_fairness(world, records),
        wall_seconds=wall_seconds,
        ended=world.now,
        fallbacks=tuple(tally.fallbacks),
    )


def _advance(world: World, time: float, tally: _Tally) -> None:
    """Advance the world to ``time``, and count the devices in use until then."""
    seconds = time - world.now
    tally.device_seconds += world.busy * seconds
    tally.active_seconds += seconds if world.active else 0.0
    world.advance(time)


def _decide(
    world: World,
    policy: Policy,
    state: Mapping[str, Any],
    tally: _Tally,
    timer: Callable[[], float],
) -> tuple[Mapping[str, Any], float | None]:
    """Decide once, if there is anything to decide; return the new state and the wake time."""
    snapshot = world.snapshot()
    if snapshot is None:
        return state, None
    started = timer()
    plan, state, fault = guarded_plan(policy, snapshot, state, check=tally.checker)
    elapsed = timer() - started
    tally.rounds += 1
    if world.changed:
        tally.decisions.append(elapsed * 1000.0)
    for told in plan.notes.get("faults", ()) if fault is None else (fault,):
        tally.fallbacks.append(f"at {world.now:g} s: {told}")
    world.apply(plan)
    tally.idle = 0 if world.busy else tally.idle + 1
    return state, plan.wake
