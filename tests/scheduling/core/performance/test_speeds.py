"""How fast types are beside one another, and what the model of live jobs makes of it."""

import pytest

from scheduling.core.performance.live import LiveModel, relative_speeds
from scheduling.core.policy_interface import Shape
from scheduling.core.values import JobFacts, RunObservation
from tests.strategies.policy_views import make_job


def seen(kind, pace, *, devices=4, batch=32.0, seconds=100.0):
    steps = int(pace * seconds)
    return RunObservation(
        type=kind, nodes=1, devices=devices, seconds=seconds, steps=steps, samples=steps * batch
    )


def test_a_job_that_ran_on_two_types_reports_how_they_compare():
    speeds = relative_speeds([[seen("a", 1.0), seen("b", 4.0)]])

    assert speeds["b"] / speeds["a"] == pytest.approx(4.0)
    assert speeds["a"] * speeds["b"] == pytest.approx(1.0)


def test_types_that_no_job_had_both_are_compared_by_way_of_a_third():
    speeds = relative_speeds(
        [[seen("a", 1.0), seen("b", 2.0)], [seen("b", 1.0, devices=8), seen("c", 3.0, devices=8)]]
    )

    assert speeds["c"] / speeds["a"] == pytest.approx(6.0)


def test_what_one_job_claims_of_itself_moves_nobody_elses_types():
    honest = [[seen("a", 1.0), seen("b", 2.0)] for _ in range(3)]

    speeds = relative_speeds([*honest, [seen("a", 1.0), seen("b", 1_000_000.0)]])

    assert speeds["b"] / speeds["a"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "other",
    [
        seen("b", 4.0, devices=8),
        seen("b", 4.0, batch=64.0),
        seen("b", 4.0, seconds=5.0),
        seen("a", 4.0),
    ],
    ids=["another size", "another batch", "too short", "the same type"],
)
def test_runs_that_cannot_be_compared_report_nothing(other):
    assert relative_speeds([[seen("a", 1.0), other]]) == {}


def test_the_order_of_jobs_and_runs_changes_nothing():
    histories = [
        [seen("a", 1.0), seen("b", 2.3), seen("a", 1.7)],
        [seen("b", 1.1), seen("c", 3.0)],
        [seen("c", 1.3), seen("a", 0.9)],
    ]

    assert relative_speeds(histories) == relative_speeds([h[::-1] for h in histories[::-1]])


def test_jobs_that_never_had_a_type_are_expected_to_be_as_much_faster_as_others_were():
    jobs = [make_job(number, 4) for number in (1, 2, 3)]
    known = {
        1: JobFacts(seen=(seen("a", 1.0), seen("b", 4.0))),
        2: JobFacts(seen=(seen("a", 2.0),)),
    }
    slow, fast = Shape("a", 1, 4), Shape("b", 1, 4)

    model = LiveModel(jobs, known)

    assert model.rate(jobs[1], slow) == pytest.approx(2.0)
    assert model.rate(jobs[1], fast) == pytest.approx(8.0)
    assert model.rate(jobs[2], fast) / model.rate(jobs[2], slow) == pytest.approx(4.0)
    assert model.rate(jobs[0], fast) == pytest.approx(4.0)


def test_types_are_alike_as_long_as_no_job_was_on_two_of_them():
    jobs = [make_job(number, 4) for number in (1, 2)]

    model = LiveModel(jobs, {1: JobFacts(seen=(seen("a", 2.0),))})

    assert model.rate(jobs[0], Shape("b", 1, 4)) == pytest.approx(2.0)
    assert model.rate(jobs[1], Shape("b", 1, 4)) == model.rate(jobs[1], Shape("a", 1, 4))
