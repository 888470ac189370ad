"""Logical workers over the devices of an attempt."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.round.layouts import layout_of, rates_of
from scheduling.core.values import RunObservation


def seen(kind, devices, steps, seconds):
    return RunObservation(
        type=kind, nodes=1, devices=devices, seconds=seconds, steps=steps, samples=float(steps)
    )


def test_equal_devices_have_equal_shares_and_the_first_get_what_is_left():
    assert layout_of(8, [["a", "a"], ["a", "a"]], {}) == [[2, 2], [2, 2]]
    assert layout_of(8, [["a", "a", "a"]], {}) == [[3, 3, 2]]


def test_faster_devices_run_more_workers():
    assert layout_of(8, [["fast"], ["slow"]], {"fast": 3.0, "slow": 1.0}) == [[6], [2]]


def test_a_type_that_was_not_seen_is_taken_for_the_average():
    assert layout_of(8, [["fast", "new"]], {"fast": 3.0}) == [[4, 4]]


def test_several_processes_share_a_device_where_that_has_been_seen_to_pay():
    pays, fails = {"a": (1.0, 0.6)}, {"a": (1.0, 0.4)}

    assert layout_of(12, [["a", "a"], ["a"]], {"a": 3.0}, pays) == [[2, 2, 2, 2], [2, 2]]
    assert layout_of(4, [["a"]], {}, pays) == [[2, 2]]
    assert layout_of(4, [["a"]], {}, fails) == [[4]]
    assert layout_of(2, [["a", "a"]], {}, pays) == [[1, 1]]


def test_types_that_are_mixed_share_each_in_its_own_way():
    rates, sharing = {"a": 1.0, "b": 1.0}, {"a": (1.0, 1.0)}

    assert layout_of(6, [["a"], ["b"]], rates, sharing) == [[2, 2], [2]]
    assert layout_of(3, [["a", "a"], ["b"]], rates, sharing) == [[1, 1], [1]]


def test_more_devices_than_workers_have_no_layout():
    assert layout_of(2, [["a"] * 3], {}) is None
    assert layout_of(2, [[]], {}) is None


def test_the_pace_of_a_device_is_that_of_the_one_with_the_most_workers():
    runs = (seen("a", 2, 10, 20.0), seen("a", 4, 10, 10.0), seen("b", 3, 30, 10.0))

    assert rates_of(runs, 8) == {"a": 2.0, "b": 9.0}
    assert rates_of((replace(runs[0], executors=2), *runs[1:]), 8) == {"a": 2.0, "b": 9.0}
    assert rates_of((replace(runs[0], executors=2),), 8) == {}


@given(
    st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 24),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([(1.0,), (1.0, 0.6), (1.0, 0.4), (1.0, 0.5), (1.0, 0.7, 0.55)]),
)
def test_all_workers_lie_somewhere_and_nobody_is_idle(members, workers, fast, paces):
    layout = layout_of(workers, members, {"a": fast, "b": 1.0}, {"a": paces})

    if sum(map(len, members)) > workers:
        assert layout is None
        return
    assert layout is not None
    fewest = [len(member) for member in members]
    most = [sum(len(paces) if kind == "a" else 1 for kind in member) for member in members]
    found = [len(member) for member in layout]
    assert all(low <= n <= high for low, n, high in zip(fewest, found, most, strict=True))
    assert sum(map(sum, layout)) == workers
    assert min(map(min, layout)) >= 1
