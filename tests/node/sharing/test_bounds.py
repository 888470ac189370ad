"""Bounds of guests: numbers, expiry, and what counts as a valid document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.sharing import bounds
from tessera.node.sharing.bounds import Bound

TIMES = st.floats(0, 1e7)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(["version", "number", "compute", "memory", "until"])


@given(now=TIMES, compute=st.floats(-1, 2), memory=st.integers(-5, 1 << 60))
def test_a_bound_holds_for_three_seconds_and_never_exceeds_its_limits(
    now, compute, memory
) -> None:
    bound = bounds.issued(None, compute, memory, now)

    assert 0 <= bound.compute <= 1
    assert 0 <= bound.memory <= 1 << 50
    assert bounds.compute_at(bound, now + 2.9) == bound.compute
    assert bounds.compute_at(bound, now + 3.001) == 0
    assert not bounds.must_freeze(bound, now + 3.9)
    assert bounds.must_freeze(bound, now + 4.001)


@given(now=TIMES, later=st.floats(0, 100))
def test_a_coordinator_that_stops_shuts_its_guests_out_within_four_seconds(now, later) -> None:
    bound = bounds.issued(None, 1.0, 0, now)

    if later >= 4.001:
        assert bounds.compute_at(bound, now + later) == 0
        assert bounds.must_freeze(bound, now + later)


def test_bounds_without_expiry_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "compute_at", lambda bound, _now: bound.compute if bound else 0.0)
    monkeypatch.setattr(bounds, "must_freeze", lambda bound, _now: bound is None)

    with pytest.raises(AssertionError):
        test_a_coordinator_that_stops_shuts_its_guests_out_within_four_seconds()


def test_a_bound_of_the_far_future_counts_as_expired() -> None:
    assert bounds.compute_at(Bound(1, 1.0, 0, 1e9), 5.0) == 0


def test_nothing_holds_without_a_bound() -> None:
    assert bounds.compute_at(None, 5.0) == 0
    assert bounds.must_freeze(None, 5.0)


@given(numbers=st.lists(st.integers(1, 9), min_size=1))
def test_the_highest_number_wins_in_any_order(numbers) -> None:
    known = None
    for number in numbers:
        known = bounds.newest(known, Bound(number, number / 10, 0, 1.0))

    assert known is not None
    assert known.number == max(numbers)


def test_numbers_count_up() -> None:
    first = bounds.issued(None, 0.1, 1, 0.0)

    assert (first.number, bounds.issued(first, 0.1, 1, 1.0).number) == (1, 2)


@given(document=JSON)
def test_a_document_of_any_kind_is_a_bound_or_nothing(document) -> None:
    assert bounds.parsed(document) is None


@given(field=FIELDS, value=JSON)
def test_a_field_out_of_range_makes_the_bound_missing(field, value) -> None:
    document = {"version": 1, "number": 3, "compute": 0.5, "memory": 7, "until": 9.5}

    found = bounds.parsed({**document, field: value})

    assert bounds.parsed(document) == Bound(3, 0.5, 7, 9.5)
    if found is not None:
        assert found.number >= 1
        assert 0 <= found.compute <= 1
        assert 0 <= found.memory <= 1 << 50
