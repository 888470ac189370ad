"""Candidates of moves: running jobs whose devices would let a waiting job start.

A move preempts a running job that can continue elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

from scheduling.core.cells import CellEngine
from scheduling.core.cells.idle import idle_mask
from scheduling.core.forecast.arrivals import RecentSubmissions
from scheduling.core.jobspec import JobClass
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.simulation import SimulatedCluster, SimulationSettings
from scheduling.core.simulation.progress_table import Remaining
from scheduling.core.values import ClusterSnapshot, HoldingJob, JobFacts, QueuedJob
from tessera.reasons import ReasonCode

MOST_JOBS: Final = 8
MOST_CANDIDATES: Final = 3
RESTART_SECONDS: Final = 30.0
"""Cost of a start of a job that has not reported the duration of its starts."""

STATE_SECONDS: Final = 30.0
"""Time to store and read the state of a moved job, in addition to its start."""

_FOR_DEVICES: Final = frozenset(
    {
        ReasonCode.OPPORTUNISTIC_NO_IDLE,
        ReasonCode.NO_CELL_OF_LEVEL,
        ReasonCode.VC_GUARANTEE_IN_USE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A running job that leaves its devices and starts again elsewhere.

    Attributes:
        since: start of its current state, which identifies the run.
        lost: seconds of work since its last checkpoint.
        restart: seconds of its next start, and of its stored state.
        before: addresses of its devices.
        after: addresses of its devices in the first simulated future; empty if it waits there.
    """

    job_id: int
    devices: int
    since: float
    lost: float
    restart: float
    before: tuple[str, ...]
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSettings:
    """Inputs of the search for moves.

    Attributes:
        simulation: settings of each future; without a horizon, so that all jobs end.
        futures: number of futures.
        seed: seed of the random draws.
        recent: jobs like those that are submitted later.
        go_on: called between steps; if it returns False, the search ends.
        limit: limits the time of each policy.
        make: builds a policy from its name and parameters.
    """

    simulation: SimulationSettings
    futures: int
    seed: int
    recent: RecentSubmissions = field(default_factory=RecentSubmissions)
    go_on: Callable[[], bool] = lambda: True
    limit: TimeLimit = nullcontext
    make: MakePolicy = make_policy


def candidates(
    snapshot: ClusterSnapshot, left: Remaining, settings: MoveSettings
) -> Iterator[tuple[QueuedJob, tuple[Move, ...]]]:
    """Yield waiting jobs with moves that free enough devices on their nodes.

    Only jobs that are refused although enough devices are idle are considered. The first of them
    in the queue represents all that the same moves let start.
    """
    world = SimulatedCluster(
        snapshot, left, settings=settings.simulation, limit=settings.limit, make=settings.make
    )
    result = world.decide()
    refused = [
        job
        for job in sorted(world.waiting.values(), key=lambda job: (-job.priority, job.submitted))
        if (reason := result.reasons.get(job.id)) is not None and reason.code in _FOR_DEVICES
    ]
    movable = [job for job in world.holding.values() if is_movable(job, snapshot.known)]
    closed = {node.name for node in snapshot.nodes if not node.placeable}
    nodes = _Nodes(world.engine, movable, closed, snapshot)
    seen: set[frozenset[int]] = set()
    for job in refused[:MOST_JOBS]:
        for moves in nodes.cheapest(job)[:MOST_CANDIDATES]:
            moved = frozenset(move.job_id for move in moves)
            if moved not in seen:
                seen.add(moved)
                yield job, moves


def is_movable(job: HoldingJob, known: Mapping[int, JobFacts]) -> bool:
    """Return whether a job may be moved: it borrows, is elastic, or has stored a checkpoint."""
    if job.leaving:
        return False
    facts = known.get(job.id)
    is_elastic = facts is not None and facts.terms.scale is not None
    return job.job_class is JobClass.OPPORTUNISTIC or is_elastic or job.saved is not None


def start_seconds(snapshot: ClusterSnapshot, job_id: int) -> float:
    """Return the expected duration of a start of a job."""
    facts = snapshot.known.get(job_id)
    seconds = facts.start_seconds if facts is not None else None
    return RESTART_SECONDS if seconds is None else seconds


def move_of(snapshot: ClusterSnapshot, job: HoldingJob) -> Move:
    """Return the move of a job, with the cost that it has now."""
    return Move(
        job_id=job.id,
        devices=job.devices,
        since=job.since,
        lost=max(snapshot.now - max(job.since, job.saved or 0.0), 0.0),
        restart=start_seconds(snapshot, job.id) + STATE_SECONDS,
        before=tuple(leaf.address for leaves in job.members for leaf in leaves),
    )


class _Nodes:
    """Idle devices and movable jobs of each node."""

    def __init__(
        self,
        engine: CellEngine,
        movable: Iterable[HoldingJob],
        closed: set[str],
        snapshot: ClusterSnapshot,
    ) -> None:
        self._idle: dict[tuple[str, int], int] = {}
        self._types: dict[str, str] = {}
        for name, roster in engine.rosters.items():
            chain = engine.topology.chains[name]
            self._types[name] = chain.leaf_type
            for node, node_name in enumerate(chain.node_names):
                if node_name not in closed:
                    self._idle[name, node] = idle_mask(roster.ledger, node).bit_count()
        self._moves = {job.id: move_of(snapshot, job) for job in movable}
        self._on: dict[tuple[str, int], dict[int, int]] = {place: {} for place in self._idle}
        for move in self._moves.values():
            for address in move.before:
                leaf = engine.topology.leaves.get(address)
                if leaf is not None:
                    place = leaf[0], engine.topology.chains[leaf[0]].node_of_leaf[leaf[1]]
                    if place in self._on:
                        here = self._on[place]
                        here[move.job_id] = here.get(move.job_id, 0) + 1

    def cheapest(self, job: QueuedJob) -> list[tuple[Move, ...]]:
        """Return sets of moves that make room for a gang in one chain, the cheapest first."""
        sizes = sorted(
            (member.devices for member in job.demand.members for _ in range(member.count)),
            reverse=True,
        )
        kinds = {kind for member in job.demand.members for kind in member.device_types}
        found: dict[frozenset[int], float] = {}
        for chain, kind in self._types.items():
            idle = sum(free for (name, _), free in self._idle.items() if name == chain)
            if (kinds and kind not in kinds) or idle < sum(sizes):
                continue
            for first in [place for place in self._idle if place[0] == chain]:
                chosen = self._room(chain, sizes, first)
                if chosen:
                    found[chosen] = sum(self._price(one) for one in chosen)
        ordered = sorted(found, key=lambda chosen: (found[chosen], sorted(chosen)))
        return [tuple(self._moves[one] for one in sorted(chosen)) for chosen in ordered]

    def _room(
        self, chain: str, sizes: Sequence[int], first: tuple[str, int]
    ) -> frozenset[int] | None:
        """Return jobs whose devices let all instances fit, the largest on the node ``first``."""
        free = {place: idle for place, idle in self._idle.items() if place[0] == chain}
        chosen: set[int] = set()
        for number, size in enumerate(sizes):
            places = [first] if number == 0 else list(free)
            options = [
                (sum(self._price(one) for one in needed), place, needed)
                for place in places
                if (needed := self._needed(place, size - free[place], chosen)) is not None
            ]
            if not options:
                return None
            _, place, needed = min(options, key=lambda option: (option[0], option[1]))
            for one in needed:
                chosen.add(one)
                for other, devices in self._places(one):
                    if other in free:
                        free[other] += devices
            free[place] -= size
        return frozenset(chosen)

    def _needed(
        self, place: tuple[str, int], devices: int, chosen: set[int]
    ) -> tuple[int, ...] | None:
        """Return the cheapest jobs of a node that hold enough of its devices, or None."""
        needed: list[int] = []
        here = self._on[place]
        for one in sorted(here, key=lambda one: (self._price(one) / here[one], one)):
            if devices <= 0:
                break
            if one not in chosen:
                needed.append(one)
                devices -= here[one]
        return tuple(needed) if devices <= 0 else None

    def _places(self, job_id: int) -> Iterator[tuple[tuple[str, int], int]]:
        for place, here in self._on.items():
            if job_id in here:
                yield place, here[job_id]

    def _price(self, job_id: int) -> float:
        move = self._moves[job_id]
        return move.devices * (move.lost + move.restart)
