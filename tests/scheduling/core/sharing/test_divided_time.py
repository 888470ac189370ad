"""Device time of jobs that share a device as equals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.sharing.divided_time import divided_seconds

TIMES = st.floats(0, 1_000, allow_nan=False)


def test_each_job_is_charged_half_of_the_time_in_which_both_run() -> None:
    assert divided_seconds([(0.0, 100.0), (40.0, 80.0)]) == (80.0, 20.0)
    assert divided_seconds([(0.0, 30.0), (30.0, 50.0)]) == (30.0, 20.0)
    assert divided_seconds([(10.0, 10.0), (20.0, 5.0)]) == (0.0, 0.0)


@given(st.lists(st.tuples(TIMES, TIMES), max_size=4))
def test_charges_add_up_to_the_time_in_which_the_device_was_used(spans) -> None:
    charged = divided_seconds(spans)
    used, end = 0.0, -1.0
    for low, high in sorted(span for span in spans if span[0] < span[1]):
        used += max(0.0, high - max(low, end))
        end = max(end, high)

    assert sum(charged) == pytest.approx(used)
    assert all(
        part <= max(0.0, high - low) + 1e-9
        for part, (low, high) in zip(charged, spans, strict=True)
    )
