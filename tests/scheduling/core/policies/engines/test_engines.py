"""The engines that policies share, against brute force."""

import itertools
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies.engines.backfill import Calendar, Waiting, backfill
from scheduling.core.policies.engines.greedy import greedy_marginal
from scheduling.core.policies.engines.lp import InfeasibleError, LinearProgram
from scheduling.core.policies.gavel.rounds import TimeShare, choose_round


def concave_tables(most: int = 4) -> st.SearchStrategy[list[float]]:
    falls = st.lists(st.integers(0, 9), min_size=most, max_size=most)
    return falls.map(lambda gains: [0.0, *itertools.accumulate(sorted(gains, reverse=True))])


@given(tables=st.lists(concave_tables(), min_size=1, max_size=3), free=st.integers(0, 8))
def test_marginal_greedy_is_optimal_for_concave_gains(tables, free):
    counts = greedy_marginal(
        start=dict.fromkeys(range(len(tables)), 0),
        step=lambda job, n: n + 1 if n + 1 < len(tables[job]) else None,
        gain=lambda job, n, m: tables[job][m] - tables[job][n],
        free={"": free},
    )

    best = max(
        sum(table[n] for table, n in zip(tables, choice, strict=True))
        for choice in itertools.product(*(range(len(table)) for table in tables))
        if sum(choice) <= free
    )
    assert sum(counts.values()) <= free
    assert sum(tables[job][n] for job, n in counts.items()) == best


def test_marginal_greedy_gives_ties_to_the_smaller_id_and_skips_what_does_not_fit():
    counts = greedy_marginal(
        start={1: 1, 2: 1, 3: 4},
        step=lambda _job, n: 2 * n if n < 8 else None,
        gain=lambda job, _n, _m: 9.0 if job == 3 else 1.0,
        free={"": 2},
    )

    assert counts == {1: 2, 2: 2, 3: 4}


def test_a_program_gives_the_optimum_and_what_a_row_is_worth():
    program = LinearProgram()
    x = program.variables(2)
    binding = program.at_most(x, np.array([1.0, 1.0]), 4.0)
    slack = program.at_most(x[:1], np.array([1.0]), 9.0)

    found = program.maximise(x, np.array([3.0, 2.0]))

    assert found.value == pytest.approx(12.0)
    assert found.prices[binding] == pytest.approx(3.0)
    assert found.prices[slack] == 0.0


def test_whole_variables_come_out_whole():
    program = LinearProgram()
    x = program.variables(2, upper=5.0, integral=True)
    program.at_most(x, np.array([2.0, 3.0]), 8.5)

    found = program.maximise(x, np.array([2.0, 3.1]))

    assert list(np.round(found.x)) == [1.0, 2.0]


def test_a_program_without_a_point_says_so():
    program = LinearProgram()
    x = program.variables(1, upper=1.0)
    program.at_least(x, np.ones(1), 2.0)

    with pytest.raises(InfeasibleError):
        program.maximise(x, np.ones(1))


def test_rounds_add_up_to_the_fractions():
    shares = {(1,): 0.5, (2,): 0.25, (3,): 0.25}
    had: dict[tuple[int, ...], float] = dict.fromkeys(shares, 0.0)
    for _ in range(400):
        claims = [
            TimeShare(jobs=jobs, type="a", share=share, received=had[jobs], deficit=0.0, n=2)
            for jobs, share in shares.items()
        ]
        for claim in choose_round(claims, free={"a": 2}, totals={"a": sum(had.values())}):
            had[claim.jobs] += 1.0

    assert had[(1,)] == pytest.approx(200, abs=2)
    assert had[(2,)] == pytest.approx(100, abs=2)


@given(
    claims=st.lists(
        st.builds(
            TimeShare,
            jobs=st.sampled_from([(1,), (2,), (3,), (1, 2), (2, 3)]),
            type=st.sampled_from(["a", "b"]),
            share=st.sampled_from([0.0, 0.5, 1.0]),
            received=st.integers(0, 2).map(float),
            deficit=st.integers(0, 2).map(float),
            n=st.integers(1, 3),
        ),
        max_size=8,
    ),
    room=st.integers(0, 4),
)
def test_a_round_serves_each_job_once_within_the_room_and_wastes_none(claims, room):
    chosen = choose_round(claims, free={"a": room, "b": 1}, totals={"a": 4.0, "b": 4.0})

    served = [job for claim in chosen for job in claim.jobs]
    left = {
        kind: total - sum(claim.n for claim in chosen if claim.type == kind)
        for kind, total in (("a", room), ("b", 1))
    }
    assert len(served) == len(set(served))
    assert min(left.values()) >= 0
    for claim in claims:
        idle = claim.share > 0 and not set(claim.jobs) & set(served)
        assert not (idle and claim.n <= left[claim.type])


class TestCalendar:
    @given(
        returns=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), max_size=4),
        holds=st.lists(
            st.tuples(st.integers(1, 4), st.sampled_from([1.0, 2.0, 3.0, inf])), max_size=5
        ),
    )
    def test_every_reservation_is_the_earliest_that_a_tick_by_tick_search_finds(
        self, returns, holds
    ):
        calendar = Calendar(now=0.0, free=2, returns=[(float(t), n) for t, n in returns])
        ticks = [2 + sum(n for t, n in returns if t <= tick) for tick in range(60)]

        for n, seconds in holds:
            start = calendar.earliest(n, seconds)

            length = 60 if seconds == inf else int(seconds)
            brute = next(
                (t for t in range(60) if all(free >= n for free in ticks[t : t + length])), None
            )
            assert start == (inf if brute is None else brute)
            if brute is not None:
                calendar.reserve(start=start, seconds=seconds, n=n)
                for tick in range(brute, min(60, brute + length)):
                    ticks[tick] -= n

    def test_what_is_not_free_cannot_be_reserved(self):
        calendar = Calendar(now=0.0, free=1, returns=[(5.0, 1)])

        with pytest.raises(ValueError, match="2 devices"):
            calendar.reserve(start=4.0, seconds=2.0, n=2)

    def test_a_job_beyond_its_estimate_has_not_given_its_devices_back(self):
        calendar = Calendar(now=100.0, free=0, returns=[(90.0, 4)], overrun=60.0)

        assert calendar.least_free(100.0, 110.0) == 0
        assert calendar.earliest(4, 10.0) == 160.0


def calendar(free: int, *returns: tuple[float, int]) -> dict[str, Calendar]:
    return {"a": Calendar(now=0.0, free=free, returns=returns)}


class TestBackfill:
    HEAD = Waiting(id=1, n=4, types=("a",), seconds=100.0)

    def test_a_short_job_passes_the_head_and_a_long_one_does_not(self):
        short = Waiting(id=2, n=2, types=("a",), seconds=50.0)
        long = Waiting(id=3, n=2, types=("a",), seconds=51.0)

        for job, passes in ((short, True), (long, False)):
            found = backfill([self.HEAD, job], calendar(2, (50.0, 2)), now=0.0, reservations=1)

            assert (job.id in found.starts) is passes
            assert found.holds[1].start == 50.0

    def test_a_long_job_passes_on_devices_that_the_head_will_not_need(self):
        extra = Waiting(id=2, n=1, types=("a",), seconds=inf)

        found = backfill([self.HEAD, extra], calendar(2, (50.0, 3)), now=0.0, reservations=1)

        assert found.starts == {2: "a"}

    def test_easy_lets_a_job_put_off_the_second_in_line_and_conservative_does_not(self):
        second = Waiting(id=2, n=6, types=("a",), seconds=10.0)
        third = Waiting(id=3, n=1, types=("a",), seconds=300.0)
        queue = [self.HEAD, second, third]

        def holdings() -> dict[str, Calendar]:
            return calendar(2, (50.0, 3), (120.0, 1))

        assert 3 in backfill(queue, holdings(), now=0.0, reservations=1).starts
        assert 3 not in backfill(queue, holdings(), now=0.0, reservations=9).starts

    def test_a_job_without_an_estimate_takes_only_what_nobody_waits_for(self):
        endless = Waiting(id=2, n=1, types=("a",))

        found = backfill([self.HEAD, endless], calendar(2, (50.0, 2)), now=0.0, reservations=1)

        assert found.starts == {}

    @settings(max_examples=60)
    @given(
        jobs=st.lists(
            st.tuples(st.integers(1, 4), st.sampled_from([1.0, 2.0, 5.0])), min_size=1, max_size=6
        )
    )
    def test_nobody_starts_later_for_those_behind_him(self, jobs):
        queue = [
            Waiting(id=i, n=n, types=("a",), seconds=seconds)
            for i, (n, seconds) in enumerate(jobs)
        ]
        held = ((2.0, 1), (3.0, 2))

        whole = backfill(queue, calendar(1, *held), now=0.0, reservations=len(queue))

        for length in range(1, len(queue)):
            part = backfill(queue[:length], calendar(1, *held), now=0.0, reservations=len(queue))
            assert part.holds.items() <= whole.holds.items()
            assert part.starts.items() <= whole.starts.items()
