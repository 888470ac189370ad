"""Guarded moves: candidates, gain and cost in simulated futures, and the guard."""

from dataclasses import replace

import pytest

from benchmarks.moves import case, judge, summary
from scheduling.core.forecast.durations import RunTimes
from scheduling.core.forecast.futures import Past
from scheduling.core.forecast.move_candidates import MoveSettings, is_movable, move_of
from scheduling.core.forecast.moves import (
    MoveOutcome,
    Proposal,
    course,
    gain_and_cost,
    is_sure,
    propose_moves,
)
from scheduling.core.simulation import SimulationSettings
from scheduling.core.values import ClusterSnapshot
from tests.factories.rounds import NOW, cluster_snapshot, jobs_started_by, queued_job

HOUR = 3600.0
SETTINGS = MoveSettings(simulation=SimulationSettings(grace=30.0), futures=6, seed=1)
ENDS = {1: 10 * HOUR, 2: 5 * HOUR, 4: 5 * HOUR, 9: HOUR}


def scattered(*, saved: float | None = NOW, ran: float = 1000.0) -> ClusterSnapshot:
    """One full node, two half nodes, and a job that waits for a whole node."""
    sizes = {1: 8, 2: 4, 3: 4, 4: 4}
    start = cluster_snapshot(*(queued_job(n, size, borrow=True) for n, size in sizes.items()))
    holding = tuple(
        replace(job, since=NOW - ran, saved=saved) for job in jobs_started_by(start) if job.id != 3
    )
    return cluster_snapshot(queued_job(9, 8, borrow=True), holding=holding)


def proposals(snapshot: ClusterSnapshot, ends: dict[int, float] = ENDS) -> tuple[Proposal, ...]:
    pasts = {job: Past(lineage=(), most=end, left=1e9) for job, end in ends.items()}
    return propose_moves(snapshot, RunTimes([]), pasts, SETTINGS)


def test_a_half_node_is_vacated_for_a_job_that_needs_a_whole_one() -> None:
    (proposal,) = proposals(scattered())

    (move,) = proposal.moves
    assert (proposal.job_id, move.job_id in {2, 4}, move.devices) == (9, True, 4)
    assert {address.split("/")[0] for address in proposal.after} == {
        address.split("/")[0] for address in move.before
    }
    assert move.after
    assert set(move.after).isdisjoint(move.before)
    # Grace of 30 s, and a restart with its state; the waiting job starts after 30 s, not 5 h.
    assert proposal.cost == pytest.approx(4 * (30.0 + move.restart))
    assert proposal.gain == pytest.approx(8 * (5 * HOUR - 30.0))
    assert (proposal.sure, proposal.futures) == (1.0, 6)


def test_work_since_the_checkpoint_is_a_cost() -> None:
    (saved,) = proposals(scattered(saved=NOW - 100.0))
    (unsaved,) = proposals(scattered(saved=None))

    assert saved.moves[0].lost == 100.0
    assert unsaved.moves[0].lost == 1000.0
    assert unsaved.cost - saved.cost == pytest.approx(4 * 900.0)


def test_moves_that_cost_more_than_they_gain_are_not_proposed() -> None:
    """Both half nodes end in two minutes, so the waiting job starts soon anyway."""
    assert proposals(scattered(saved=None, ran=20 * HOUR), {**ENDS, 2: 120.0, 4: 120.0}) == ()


def test_a_job_without_a_checkpoint_that_does_not_borrow_stays() -> None:
    snapshot = scattered()
    guaranteed = replace(jobs_started_by(cluster_snapshot(queued_job(5, 4)))[0], saved=None)

    assert not is_movable(guaranteed, {})
    assert is_movable(replace(guaranteed, saved=NOW), {})
    assert not is_movable(replace(guaranteed, saved=NOW, leaving=True), {})
    assert all(is_movable(job, snapshot.known) for job in snapshot.holding)


@pytest.mark.parametrize(
    ("gain", "cost", "sure", "good"),
    [(3.0, 2.0, 1.0, True), (2.9, 2.0, 1.0, False), (9.0, 2.0, 0.94, False)],
)
def test_the_guard_requires_a_margin_in_almost_all_futures(
    gain: float, cost: float, sure: float, good: bool
) -> None:
    proposal = Proposal(job_id=1, devices=1, moves=(), gain=gain, cost=cost, sure=sure, futures=20)

    assert is_sure(proposal) is good


def test_gain_and_cost_compare_the_same_course_with_and_without_moves() -> None:
    snapshot = scattered()
    move = move_of(snapshot, snapshot.holding[1])
    stay = course(snapshot, ENDS.__getitem__, (), SETTINGS)
    moved = course(snapshot, ENDS.__getitem__, (move,), SETTINGS)

    gain, cost = gain_and_cost(snapshot, stay, moved, (move,))

    assert gain == 8 * (stay.ends[9] - moved.ends[9])
    assert cost == 4 * (moved.ends[move.job_id] - stay.ends[move.job_id])
    assert gain_and_cost(snapshot, stay, stay, (move,)) == (0.0, 0.0)
    never = MoveOutcome(ends={job: end for job, end in stay.ends.items() if job != 9})
    assert gain_and_cost(snapshot, stay, never, (move,))[0] == float("-inf")


def test_the_benchmark_judges_proposals_by_true_run_times() -> None:
    """The first cases of the benchmark; its result for many cases is in the record."""
    seeds = (69, 75, 123)
    judged = [one for seed in seeds for one in judge(seed, futures=8)]

    assert judged
    losses = next(row for row in summary(judged, len(seeds)) if row["name"] == "moves.losses")
    assert losses["value"] == 0.0
    known = case(11)
    assert set(known.left) >= {job.id for job in known.later}
