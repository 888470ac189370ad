"""Logical workers over the devices of an attempt."""

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.layouts import layout_of, rates_of
from scheduling.core.values import Seen


def seen(kind, devices, steps, seconds):
    return Seen(
        type=kind, nodes=1, devices=devices, seconds=seconds, steps=steps, samples=float(steps)
    )


def test_equal_devices_have_equal_shares_and_the_first_get_what_is_left():
    assert layout_of(8, [["a", "a"], ["a", "a"]], {}) == [[2, 2], [2, 2]]
    assert layout_of(8, [["a", "a", "a"]], {}) == [[3, 3, 2]]


def test_faster_devices_run_more_workers():
    assert layout_of(8, [["fast"], ["slow"]], {"fast": 3.0, "slow": 1.0}) == [[6], [2]]


def test_a_type_that_was_not_seen_is_taken_for_the_average():
    assert layout_of(8, [["fast", "new"]], {"fast": 3.0}) == [[4, 4]]


def test_more_devices_than_workers_have_no_layout():
    assert layout_of(2, [["a"] * 3], {}) is None
    assert layout_of(2, [[]], {}) is None


def test_the_pace_of_a_device_is_that_of_the_one_with_the_most_workers():
    runs = (seen("a", 2, 10, 20.0), seen("a", 4, 10, 10.0), seen("b", 3, 30, 10.0))

    assert rates_of(runs, 8) == {"a": 2.0, "b": 9.0}


@given(
    st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 24),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_all_workers_lie_somewhere_and_nobody_is_idle(members, workers, fast):
    layout = layout_of(workers, members, {"a": fast, "b": 1.0})

    if sum(map(len, members)) > workers:
        assert layout is None
        return
    assert layout is not None
    assert [len(member) for member in layout] == [len(member) for member in members]
    assert sum(map(sum, layout)) == workers
    assert min(map(min, layout)) >= 1
