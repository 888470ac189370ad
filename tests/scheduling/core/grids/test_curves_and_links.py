"""Interpolation of measured times, and link classes of devices."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduling.core.grids.curves import interpolated, interpolated_from_zero
from scheduling.core.grids.links import LinkPoint, Links, LinkTable, UnmeasuredLinkError
from scheduling.core.grids.model import GridInputError

SIZES = [2.0, 4.0, 8.0]
TIMES = [3.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("size", "seconds"), [(1, 3.0), (2, 3.0), (3, 4.0), (4, 5.0), (6, 5.5), (8, 6.0), (12, 7.0)]
)
def test_times_are_linear_between_measurements_and_beyond_and_constant_below(size, seconds):
    assert interpolated(size, SIZES, TIMES) == pytest.approx(seconds)


def test_a_single_measurement_grows_in_proportion():
    assert interpolated(6, [2], [3.0]) == 9
    assert interpolated(1, [2], [3.0]) == 3


def test_messages_below_the_smallest_follow_a_line_on_logarithmic_scales():
    # Four times the size takes twice as long, so a quarter takes half as long.
    assert interpolated_from_zero(25, [100, 400], [1.0, 2.0]) == pytest.approx(0.5)
    assert interpolated_from_zero(0, [100, 400], [1.0, 2.0]) == 0
    assert interpolated_from_zero(200, [100, 400], [1.0, 2.0]) == pytest.approx(4 / 3)


def test_noise_does_not_make_small_messages_slower():
    assert interpolated_from_zero(1, [100, 400], [2.0, 1.0]) == 2
    assert interpolated_from_zero(1, [100], [2.0]) == 2
    assert interpolated(800, [100, 400], [2.0, 1.0]) == 1


@given(
    times=st.lists(st.floats(1e-6, 10), min_size=1, max_size=6).map(sorted),
    sizes=st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)).map(sorted),
)
@example(times=[1.0, 2.0], sizes=[5e-324, 1.0])
def test_a_larger_message_is_never_faster(times, sizes):
    measured = [4096.0 * 8**i for i in range(len(times))]

    small, large = (interpolated_from_zero(size, measured, times) for size in sizes)

    assert 0 <= small <= large * (1 + 1e-9)


def _table(factor=1.0):
    points = [("send", 2, 100, 1.0), ("send", 2, 300, 2.0), ("all_reduce", 4, 100, 5.0)]
    return LinkTable(tuple(LinkPoint(p, g, size, s * factor) for p, g, size, s in points))


LINKS = Links(
    spans=(("pcie", 2), ("node", 8), ("rack", 32)), tables={"pcie": _table(), "node": _table(10)}
)


def test_points_may_be_in_any_order():
    table = LinkTable(tuple(reversed(_table().points)))

    assert table.seconds("send", 2, 200) == 1.5


@pytest.mark.parametrize(
    ("first", "last", "name"),
    [
        (0, 1, "pcie"),
        (1, 2, "node"),
        (2, 3, "pcie"),
        (0, 7, "node"),
        (7, 8, "rack"),
        (0, 99, "rack"),
    ],
)
def test_the_narrowest_class_that_joins_two_devices(first, last, name):
    assert LINKS.class_of(first, last) == name


def test_times_come_from_the_table_of_the_class():
    assert LINKS.seconds("send", 0, 1, 200) == 1.5
    assert LINKS.seconds("send", 1, 2, 200) == 15
    assert LINKS.seconds("all_reduce", 0, 3, 100, group=4) == 50


@pytest.mark.parametrize(
    ("primitive", "last", "group"),
    [("send", 8, 2), ("all_gather", 1, 2), ("all_reduce", 1, 2)],
)
def test_what_was_not_measured_is_an_error(primitive, last, group):
    with pytest.raises(UnmeasuredLinkError, match="not measured"):
        LINKS.seconds(primitive, 0, last, 100, group=group)


def test_a_limit_of_the_link_class():
    assert LINKS.is_within(0, 1, "node")
    assert LINKS.is_within(0, 7, "node")
    assert not LINKS.is_within(7, 8, "node")
    with pytest.raises(GridInputError, match=r"tensor_within.*Use pcie, node, rack"):
        LINKS.is_within(0, 1, "socket")


@pytest.mark.parametrize(
    "point", [("send", 2, 0, 1.0), ("send", 2, 100, 1.0), ("send", 2, 50, -1.0)]
)
def test_invalid_measurements_are_refused(point):
    with pytest.raises(GridInputError, match="not a valid measurement"):
        LinkTable((*_table().points, LinkPoint(*point)))


@pytest.mark.parametrize("spans", [(), (("node", 8), ("pcie", 2)), (("node", 0),)])
def test_classes_that_do_not_grow_are_refused(spans):
    with pytest.raises(GridInputError, match="spans"):
        Links(spans=spans, tables={})
