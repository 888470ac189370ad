"""Roll-ups: folds keep extremes, counts and sums; newer attempts win from their first step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.services.points import Sample
from workers.services.rollups import (
    buckets_of,
    fold,
    means,
    pack,
    superseded,
    thin,
    unpack,
)

numbers = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))
samples = st.lists(
    st.builds(
        Sample,
        step=st.integers(0, 40),
        time=st.floats(0, 1e9),
        epoch=st.one_of(st.just(math.nan), st.floats(0, 10)),
        value=numbers,
    ),
    max_size=60,
)


@given(samples, st.integers(1, 9))
def test_a_fold_keeps_counts_extremes_and_sums(found: list[Sample], width: int) -> None:
    folded = fold(buckets_of(found, attempt=1), width)

    assert len(folded) == -(-len(found) // width)
    for place, bucket in enumerate(folded):
        part = found[place * width : (place + 1) * width]
        finite = [one.value for one in part if math.isfinite(one.value)]
        assert (bucket["count"], bucket["bad"]) == (len(finite), len(part) - len(finite))
        assert bucket["step"] == part[-1].step
        if finite:
            assert (bucket["low"], bucket["high"]) == (min(finite), max(finite))
            assert bucket["total"] == pytest.approx(sum(finite))
        else:
            assert not np.isfinite(bucket["total"])


@given(samples)
def test_a_block_is_unpacked_as_it_was_packed(found: list[Sample]) -> None:
    buckets = buckets_of(found, attempt=3)

    again = unpack(pack(buckets), len(buckets))

    assert again.tobytes() == buckets.tobytes()


def test_a_damaged_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="damaged"):
        unpack(b"nothing", 3)


@given(samples, st.one_of(st.none(), st.integers(0, 40)))
def test_a_point_is_superseded_by_any_later_point_at_or_before_its_step(
    found: list[Sample], later: int | None
) -> None:
    steps = [one.step for one in found] + ([] if later is None else [later])

    wins = superseded(buckets_of(found, attempt=1), later_least=later)

    assert wins.tolist() == [
        any(step <= one.step for step in steps[place + 1 :]) for place, one in enumerate(found)
    ]


@given(samples, st.integers(2, 20), st.integers(1, 59))
def test_a_thinned_curve_never_mixes_kinds(found: list[Sample], most: int, change: int) -> None:
    kinds = (np.arange(len(found)) >= change).astype(np.int64)

    buckets, kept = thin(buckets_of(found, attempt=1), most, kinds)

    assert len(buckets) <= most + 1
    total = buckets["count"] + buckets["bad"]
    assert total[kept == 0].sum() == min(change, len(found))
    assert total.sum() == len(found)


def test_the_mean_is_over_finite_points() -> None:
    values = [1.0, math.nan, 5.0, math.inf]
    buckets = fold(buckets_of([Sample(1, 1.0, 0.0, v) for v in values], attempt=1), 4)

    assert means(buckets).tolist() == [3.0]
    assert buckets["bad"].tolist() == [2]
