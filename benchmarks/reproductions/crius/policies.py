"""Policies of the artefact, with the quirks of its simulator as switches.

Each policy decides in the artefact's own loop, on single devices and step by step; it changes the
queues of the world and returns an empty plan. It cannot be run under other rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from benchmarks.reproductions.crius.baselines import ElasticFlow, Fifo
from benchmarks.reproductions.crius.jobs import Job, Judge, Queues
from benchmarks.reproductions.crius.scheduler import Crius
from scheduling.core.policies.base import Need
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Plan, Snapshot

NO_PLAN: Final = Plan(allocs={}, order=())


class Scheduler(Protocol):
    """A policy's loop over the rounds."""

    def decide(self, ended: Sequence[Job], arrived: Sequence[Job]) -> None:
        """Handle the completions and the arrivals of a round."""
        ...

    def end_round(self, now: float) -> None:
        """Close the round that ends at ``now``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Snapshot):
    """A round with completions or arrivals; ``decide`` carries out its decisions."""

    decide: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactPolicy:
    """A policy of the artefact, and the quirks of its simulator.

    Attributes:
        honest: count each second at the step time that it had. The artefact divides all seconds
            of a job by its present step time, so that an upgrade speeds up past work.
        charged: searches of more than a round cost rounds without progress.
        divisor: the iterations of the trace are divided by it.
        rounds: the last round; jobs that are not complete then are left out of all means.
        guesses: extrapolate step times of shapes and models without a record.
    """

    honest: bool = parameter(False, "count each second at the step time that it had")
    charged: bool = parameter(True, "searches longer than a round block progress")
    divisor: int = parameter(5, "iterations are divided by it", low=1, high=1_000)
    rounds: int = parameter(2_000, "last round; 0 for none", low=0, high=1_000_000)
    guesses: bool = parameter(True, "extrapolate step times without a record")

    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = ""
    needs: ClassVar[frozenset[Need]] = frozenset({Need.THROUGHPUT})
    stateless: ClassVar[bool] = False
    #: Seconds of the search for a plan: per device, and at most.
    tuning: ClassVar[tuple[int, int]] = (150, 600)
    loose_deadlines: ClassVar[bool] = False

    def scheduler(self, judge: Judge, queues: Queues, jobs: Sequence[Job]) -> Scheduler:
        """Build the loop of this policy."""
        raise NotImplementedError

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Decide the round, and return an empty plan.

        Raises:
            TypeError: the snapshot belongs to other rules.
        """
        if not isinstance(snapshot, Round):
            raise TypeError(f"policy {self.name} of the Crius artefact needs --rules crius")
        snapshot.decide()
        return NO_PLAN, state


@dataclass(frozen=True, slots=True, kw_only=True)
class CriusPolicy(ArtefactPolicy):
    """Crius (EuroSys '26, algorithm 1), as its code does it.

    Attributes:
        depth: changes of one plan of the downgrade search; 0 for 3, or 2 with more than 150
            running jobs.
        scaling: jobs may be halved and doubled.
        types: jobs may move to another type.
        opportunistic: jobs may start past a waiting job of their type.
        deadline: shapes that miss the deadline are infeasible.
        filtered: the memory of data parallelism decides what can run (variant ``-dp``).
        recounts: work before a suspension counts a second time after it, as in the artefact.
    """

    depth: int = parameter(0, "depth of the search for room; 0 for 3, or 2 if busy", low=0, high=6)
    scaling: bool = parameter(True, "jobs may be halved and doubled")
    types: bool = parameter(True, "jobs may move to another type")
    opportunistic: bool = parameter(True, "jobs may start past a waiting job")
    deadline: bool = parameter(False, "shapes that miss the deadline are infeasible")
    filtered: bool = parameter(False, "the memory of data parallelism decides what can run")
    recounts: bool = parameter(True, "work before a suspension counts a second time after it")

    name: ClassVar[str] = "crius"
    summary: ClassVar[str] = "sizes and types by samples/s, with searches for room"
    tuning: ClassVar[tuple[int, int]] = (10, 40)

    def scheduler(self, judge: Judge, queues: Queues, jobs: Sequence[Job]) -> Scheduler:
        """Build the loop of this policy."""
        judge.filtered, judge.deadlines = self.filtered, self.deadline
        return Crius(
            judge=judge,
            queues=queues,
            jobs=jobs.__getitem__,
            depth=self.depth,
            scaling=self.scaling,
            types=self.types,
            opportunistic=self.opportunistic,
            recounts=self.recounts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoPolicy(ArtefactPolicy):
    """First come, first served on the requested type.

    Attributes:
        relaxed: jobs may be spread over more nodes than they need.
    """

    relaxed: bool = parameter(False, "jobs may be spread over more nodes than they need")

    name: ClassVar[str] = "fifo"
    aliases: ClassVar[tuple[str, ...]] = ("fcfs",)
    summary: ClassVar[str] = "first come, first served on the requested type"

    def scheduler(self, judge: Judge, queues: Queues, jobs: Sequence[Job]) -> Scheduler:
        """Build the loop of this policy."""
        return Fifo(judge=judge, queues=queues, relaxed=self.relaxed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticFlowPolicy(ArtefactPolicy):
    """ElasticFlow with deadlines that never bind."""

    name: ClassVar[str] = "elasticflow-l"
    summary: ClassVar[str] = "ElasticFlow with loose deadlines and the filter by memory"
    loose_deadlines: ClassVar[bool] = True

    def scheduler(self, judge: Judge, queues: Queues, jobs: Sequence[Job]) -> Scheduler:
        """Build the loop of this policy."""
        return ElasticFlow(judge=judge, queues=queues)


POLICIES: Final[Mapping[str, type[ArtefactPolicy]]] = {
    name: policy
    for policy in (CriusPolicy, FifoPolicy, ElasticFlowPolicy)
    for name in (policy.name, *policy.aliases)
}
