"""The classes of waits are those of a histogram."""

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.waits import BOUNDS, CLASSES, cumulated, wait_class


def test_the_bounds_are_those_of_kueue() -> None:
    assert BOUNDS == (1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240)


@given(waits=st.lists(st.floats(0, 30_000) | st.sampled_from(BOUNDS), max_size=20))
def test_each_bound_tells_how_many_waits_did_not_pass_it(waits: list[float]) -> None:
    counts = [0] * CLASSES
    for seconds in waits:
        counts[wait_class(seconds)] += 1

    told = dict(cumulated(counts))

    assert told.pop("+Inf") == len(waits)
    assert told == {f"{bound:g}": sum(wait <= bound for wait in waits) for bound in BOUNDS}
