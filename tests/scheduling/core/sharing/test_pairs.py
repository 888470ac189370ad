"""Paces of pairs: the guess, means of observations, and names of applications."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.sharing.pairs import (
    LONGEST_APPLICATION,
    MOST_OBSERVATIONS,
    NOT_OBSERVED,
    Paces,
    PairRecord,
    application_of,
    guessed,
)

ANY = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("idle", "guest"), [(None, 0.075), (0.0, 0.075), (0.5, 0.4), (0.9, 0.72), (5.0, 1.0)]
)
def test_the_guess_gives_a_guest_the_gaps_of_its_holder(idle, guest) -> None:
    assert guessed(0.05, idle).guest == pytest.approx(guest)
    assert guessed(0.05, idle).holder == pytest.approx(0.96)


@given(observed=st.lists(st.builds(Paces, ANY, ANY), max_size=30))
def test_means_stay_within_0_and_1_whatever_is_observed(observed) -> None:
    record = NOT_OBSERVED
    for paces in observed:
        record = record.observe(paces)

    found = record.shrunk(guessed(0.05, 0.5))
    assert all(0.0 <= pace <= 1.0 for pace in (record.holder, record.guest))
    assert all(0.0 <= pace <= 1.0 for pace in (found.holder, found.guest))


def test_the_guess_counts_for_5_observations_and_old_ones_fade() -> None:
    record = PairRecord(holder=1.0, guest=1.0, observations=5.0)
    full = PairRecord(holder=1.0, guest=1.0, observations=MOST_OBSERVATIONS)

    shrunk = record.shrunk(Paces(0.8, 0.2))
    assert (shrunk.holder, shrunk.guest) == pytest.approx((0.9, 0.6))
    assert full.observe(Paces(0.0, 0.0)).observations == MOST_OBSERVATIONS
    assert full.observe(Paces(0.0, 0.0)).holder == pytest.approx(1.0 - 1.0 / MOST_OBSERVATIONS)


def test_applications_of_two_tenants_never_have_one_name() -> None:
    assert application_of(1, "bert", "a") != application_of(2, "bert", "a")
    assert application_of(1, "bert", "x") == application_of(1, "bert", "y")
    assert application_of(1, None, "bert") != application_of(1, "bert", "bert")
    assert len(application_of(1, "x" * 500, "")) == LONGEST_APPLICATION
