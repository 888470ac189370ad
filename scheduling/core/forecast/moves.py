"""Guarded defragmentation: moves of running jobs that gain more than they cost.

A move preempts a running job that can continue elsewhere, so that a waiting job starts in its
place. Each candidate is simulated with and without the moves in the same drawn futures. The gain
is the earlier completion of all jobs that stay or wait, and the cost the later completion of the
moved jobs; both in device-seconds. So lost work, restarts, moved state, grace and all later
decisions of the scheduler count.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduling.core.forecast.arrivals import Future, drawn_futures
from scheduling.core.forecast.durations import RunTimes
from scheduling.core.forecast.futures import Past
from scheduling.core.forecast.move_candidates import (
    Move,
    MoveSettings,
    candidates,
    start_seconds,
)
from scheduling.core.round_result import Start
from scheduling.core.simulation import Overhead, SimulatedCluster
from scheduling.core.simulation.progress_table import Remaining
from scheduling.core.values import ClusterSnapshot, JobFacts, QueuedJob

SURE: Final = 0.95
"""Minimum share of futures in which a proposal gains more than it costs."""

MARGIN: Final = 1.5
"""Minimum mean gain of a proposal, as a multiple of its mean cost."""

FIRST_FUTURES: Final = 4
"""Futures after which a candidate without a mean gain is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Moves with which a waiting job starts earlier.

    Attributes:
        job_id: the waiting job.
        devices: its devices.
        gain, cost: mean device-seconds over the futures.
        sure: share of the futures in which the gain exceeds the cost.
        futures: number of futures.
        after: addresses of the devices of the waiting job in the first simulated future.
    """

    job_id: int
    devices: int
    moves: tuple[Move, ...]
    gain: float
    cost: float
    sure: float
    futures: int
    after: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[int, tuple[tuple[int, float], ...]]:
        """The waiting job, and the moved runs: equal for the same moves at another time."""
        return self.job_id, tuple((move.job_id, move.since) for move in self.moves)


class OutOfTimeError(Exception):
    """The search reached its time limit; earlier results are valid."""


@dataclass(slots=True)
class MoveOutcome:
    """The course of one future: ends of jobs, and the first starts of some jobs."""

    ends: Mapping[int, float]
    starts: dict[int, Start] = field(default_factory=dict)


def propose_moves(
    snapshot: ClusterSnapshot,
    times: RunTimes,
    pasts: Mapping[int, Past],
    settings: MoveSettings,
) -> tuple[Proposal, ...]:
    """Return proposals with a sure gain, the largest net gain first; one for each waiting job.

    Args:
        snapshot: the present state.
        times: run times of jobs.
        pasts: observed facts of the live jobs.
        settings: the inputs of the search.
    """
    future_of = drawn_futures(
        snapshot,
        times.for_means(),
        pasts,
        settings.recent,
        futures=settings.futures,
        seed=settings.seed,
    )
    trial = MoveTrial(snapshot, future_of, settings)
    found = []
    try:
        for job, moves in candidates(snapshot, future_of(0).left, settings):
            proposal = trial.evaluate(job, moves)
            if proposal is not None and is_sure(proposal):
                found.append(proposal)
    except OutOfTimeError:
        pass
    best: dict[int, Proposal] = {}
    for proposal in sorted(found, key=lambda one: one.cost - one.gain):
        best.setdefault(proposal.job_id, proposal)
    return tuple(best.values())


def is_sure(proposal: Proposal) -> bool:
    """Return whether a proposal gains enough in enough futures."""
    return proposal.sure >= SURE and proposal.gain >= MARGIN * proposal.cost


class MoveTrial:
    """Simulates candidates; the futures without moves are simulated once."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        future_of: Callable[[int], Future],
        settings: MoveSettings,
    ) -> None:
        self._snapshot, self._future_of, self._settings = snapshot, future_of, settings
        self._stays: dict[int, MoveOutcome] = {}

    def evaluate(self, job: QueuedJob, moves: Sequence[Move]) -> Proposal | None:
        """Return the gain and cost of moves, or None if they lose too often or on average."""
        numbers: list[tuple[float, float]] = []
        most_losses = round((1.0 - SURE) * self._settings.futures)
        starts: dict[int, Start] = {}
        for future in range(self._settings.futures):
            stay = self._stays.get(future)
            if stay is None:
                stay = self._stays[future] = self._course(future, ())
            moved = self._course(future, moves)
            starts = starts or moved.starts
            later = self._future_of(future).later.jobs
            numbers.append(gain_and_cost(self._snapshot, stay, moved, moves, arrivals=later))
            losses = sum(gain <= cost for gain, cost in numbers)
            is_enough = len(numbers) >= FIRST_FUTURES
            net = sum(gain - cost for gain, cost in numbers)
            if losses > most_losses or (is_enough and net <= 0.0):
                return None
        return Proposal(
            job_id=job.id,
            devices=job.demand.devices,
            moves=tuple(_with_places(move, starts.get(move.job_id)) for move in moves),
            gain=sum(gain for gain, _ in numbers) / len(numbers),
            cost=sum(cost for _, cost in numbers) / len(numbers),
            sure=sum(gain > cost for gain, cost in numbers) / len(numbers),
            futures=len(numbers),
            after=_addresses(starts.get(job.id)),
        )

    def _course(self, number: int, moves: Sequence[Move]) -> MoveOutcome:
        future = self._future_of(number)
        return course(
            self._snapshot,
            future.remaining,
            moves,
            self._settings,
            arrivals=future.later.jobs,
        )


def course(
    snapshot: ClusterSnapshot,
    left: Remaining,
    moves: Sequence[Move],
    settings: MoveSettings,
    *,
    arrivals: Iterable[QueuedJob] = (),
) -> MoveOutcome:
    """Simulate one future with some moves at its beginning, until all jobs have ended.

    Raises:
        OutOfTimeError: ``settings.go_on`` returned False.
    """
    restarts = {move.job_id: move.restart for move in moves}

    def overhead(job_id: int) -> Overhead:
        known = restarts.get(job_id)
        return Overhead(restart=start_seconds(snapshot, job_id) if known is None else known)

    world = SimulatedCluster(
        snapshot,
        left,
        settings=settings.simulation,
        arrivals=[(job, JobFacts()) for job in arrivals],
        overhead=overhead,
        limit=settings.limit,
        make=settings.make,
    )
    starts: dict[int, Start] = {}
    result = world.decide()
    for move in moves:
        held = world.holding.get(move.job_id)
        if held is not None and not held.leaving:
            world.order_out(move.job_id, lost=move.lost)
    while True:
        for start in result.starts:
            starts.setdefault(start.job_id, start)
        due = world.next_time()
        if due is None:
            return MoveOutcome(ends=world.record.ends, starts=starts)
        if not settings.go_on():
            raise OutOfTimeError
        world.advance(due)
        result = world.decide()


def gain_and_cost(
    snapshot: ClusterSnapshot,
    stay: MoveOutcome,
    moved: MoveOutcome,
    moves: Iterable[Move],
    *,
    arrivals: Iterable[QueuedJob] = (),
) -> tuple[float, float]:
    """Return the earlier completion of other jobs and the later one of moved jobs.

    Both are in device-seconds at the requested sizes. The result is infinite if a job ends only
    with or only without the moves.
    """
    devices = {job.id: job.demand.devices for job in (*snapshot.queued, *arrivals)}
    devices |= {job.id: job.devices for job in snapshot.holding}
    own = {move.job_id for move in moves}
    gain = cost = 0.0
    for job_id, number in devices.items():
        before, after = stay.ends.get(job_id, math.inf), moved.ends.get(job_id, math.inf)
        if before == after:
            continue
        seconds = number * (before - after)
        if job_id in own:
            cost -= seconds
        else:
            gain += seconds
    return gain, cost


def _with_places(move: Move, start: Start | None) -> Move:
    return Move(
        job_id=move.job_id,
        devices=move.devices,
        since=move.since,
        lost=move.lost,
        restart=move.restart,
        before=move.before,
        after=_addresses(start),
    )


def _addresses(start: Start | None) -> tuple[str, ...]:
    if start is None:
        return ()
    return tuple(leaf.address for member in start.members for leaf in member.leaves)
