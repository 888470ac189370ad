"""Comparing trainings by the hashes of their checkpoints."""

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.determinism import Receipt, changed_steps, compare


def saved(*steps, attempt=1, **settings):
    """Receipts of steps; ``(10, "x")`` is a step with another hash than the usual one."""
    pairs = [step if isinstance(step, tuple) else (step, "a") for step in steps]
    return [
        Receipt(attempt=attempt, step=step, sha256=f"{mark}{step}", settings=settings)
        for step, mark in pairs
    ]


def test_the_first_checkpoint_that_differs_is_found_among_the_steps_of_both():
    found = compare(saved(10, 20, 30, 40), saved(5, 10, 20, (30, "b"), (40, "b")))

    assert found.common == (10, 20, 30, 40)
    assert (found.same, found.first_difference) == (2, 30)
    assert (found.left, found.right) == ("a30", "b30")


def test_trainings_without_a_common_step_report_nothing():
    found = compare(saved(10), saved(20))

    assert (found.common, found.same, found.first_difference) == ((), 0, None)


def test_what_they_say_of_themselves_is_compared_as_well():
    mine, theirs = saved(10, seed=1, level="D1", threads=1), saved(10, seed=2, level="D1")

    assert compare(mine, theirs).settings == {"seed": ("1", "2"), "threads": ("1", "")}


def test_a_step_that_was_repeated_with_other_bits_is_told():
    assert changed_steps([*saved(10, 20), *saved((20, "b"), 30, attempt=2)]) == (20,)


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_equal_hashes_never_differ(left, right):
    found = compare(saved(*left), saved(*right))

    assert found.first_difference is None
    assert found.same == len(found.common) == len(set(left) & set(right))
