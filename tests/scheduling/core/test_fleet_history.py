"""Totals of the fleet: sums, storage as JSON, and quantiles of waits."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.fleet_history import (
    FleetTotals,
    FreeTotals,
    NodeTotals,
    VcTotals,
    wait_bin,
    wait_bins,
    wait_quantile,
)

COUNTS = st.integers(0, 1000)
NODES = st.builds(
    NodeTotals,
    st.integers(0, 80).map(lambda eighths: eighths / 8),
    COUNTS,
    COUNTS,
    COUNTS,
    st.integers(0, 4),
)
FREE = st.builds(
    FreeTotals,
    COUNTS,
    COUNTS.map(float),
    st.dictionaries(st.integers(1, 16), COUNTS.map(float), max_size=3),
)
TOTALS = st.builds(
    FleetTotals,
    nodes=st.dictionaries(st.sampled_from(["a", "b", "c"]), NODES, max_size=3),
    virtual_clusters=st.dictionaries(
        st.integers(1, 4), st.builds(VcTotals, *[COUNTS] * 6), max_size=3
    ),
    waits=st.dictionaries(
        st.integers(1, 4), st.dictionaries(st.integers(0, 100), COUNTS, max_size=3), max_size=3
    ),
    preemptions=st.dictionaries(
        st.tuples(st.integers(1, 4), st.integers(0, 4), st.sampled_from(["drain", "inter-vc"])),
        COUNTS,
        max_size=3,
    ),
    free=FREE,
)


@given(TOTALS, TOTALS, TOTALS)
def test_sums_do_not_depend_on_the_order_of_samples(
    one: FleetTotals, two: FleetTotals, three: FleetTotals
) -> None:
    assert one.plus(two).plus(three) == three.plus(two.plus(one))
    assert one.plus(FleetTotals()) == one


@given(TOTALS)
def test_json_columns_restore_the_totals(one: FleetTotals) -> None:
    assert FleetTotals.from_columns(json.loads(json.dumps(one.to_columns()))) == one


@given(
    st.lists(st.floats(0, 10_000_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99])
)
def test_quantiles_of_bins_are_within_nine_percent(waits: list[float], level: float) -> None:
    exact = sorted(waits)[max(1, math.ceil(level * len(waits))) - 1]
    found = wait_quantile(wait_bins(waits), level)

    assert found is not None
    if exact <= 1.0:
        assert found == 0.0
    else:
        assert abs(found / exact - 1) < 0.0906


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_longer_waits_have_no_lower_bin(one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert wait_bin(low) <= wait_bin(high) <= 100


def test_without_waits_there_is_no_quantile() -> None:
    assert wait_quantile({}, 0.5) is None
