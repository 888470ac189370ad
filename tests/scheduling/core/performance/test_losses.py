"""Which losses of a run are kept."""

from collections.abc import Sequence
from json import dumps
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.performance.losses import KEPT, read_losses, with_loss


def kept(reports):
    points: list[Sequence[float]] = []
    for step, loss in reports:
        more = with_loss(points, step, loss)
        points = points if more is None else more
    return points


@given(
    gaps=st.lists(st.integers(1, 40), min_size=1, max_size=300),
    first=st.integers(0, 1_000_000),
)
def test_points_are_few_in_order_and_evenly_over_the_run(gaps, first):
    steps = [first + sum(gaps[:n]) for n in range(1, len(gaps) + 1)]

    points = kept((step, 1.0) for step in steps)

    found = [step for step, _ in points]
    assert len(found) <= KEPT
    assert found[0] == steps[0]
    assert found == sorted(set(found))
    if len(steps) > KEPT:
        widest = max(b - a for a, b in zip(found, [*found[1:], steps[-1]], strict=True))
        assert widest <= (steps[-1] - steps[0]) / 3 + 2 * max(gaps)


def test_a_long_run_keeps_its_beginning_and_what_is_written_seldom_changes():
    reports = [(10 * n, 1.0 / n) for n in range(1, 1001)]

    points = kept(reports)

    assert KEPT // 2 <= len(points) <= KEPT
    assert points[0] == (10, 1.0)
    assert points[-1][0] > 8000


@pytest.mark.parametrize(("step", "loss"), [(5, nan), (5, inf), (4, 1.0), (3, 1.0)])
def test_what_is_no_number_or_comes_no_further_is_not_kept(step, loss):
    assert with_loss([(1, 3.0), (4, 2.0)], step, loss) is None


def test_points_are_read_as_they_were_written():
    points = kept([(1, 2.5), (9, 2.0)])

    assert read_losses(dumps(points)) == ((1.0, 2.5), (9.0, 2.0))
