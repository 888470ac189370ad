"""Link tables of a device type: classes, projected groups, and the fall-back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.grids.link_documents import (
    NETWORK,
    is_measured,
    link_table,
    links_of,
    read_links,
)
from scheduling.core.grids.links import ALL_REDUCE, SEND, LinkPoint

SPANS = (("socket", 4), ("node", 8))
PAIR = (LinkPoint(SEND, 2, 1000, 0.1), LinkPoint(ALL_REDUCE, 2, 1000, 0.3))
SLOW = (LinkPoint(SEND, 2, 1000, 1.0), LinkPoint(ALL_REDUCE, 2, 1000, 3.0))


def test_measured_classes_replace_those_of_the_profile():
    links = links_of(SPANS, {"node": SLOW}, PAIR)

    assert links.seconds(SEND, 0, 3, 1000) == 0.1
    assert links.seconds(SEND, 0, 4, 1000) == 1.0
    assert links.class_of(0, 8) == NETWORK
    assert links.seconds(ALL_REDUCE, 0, 8, 1000) == 0.3


def test_a_measured_group_is_not_projected():
    table = link_table((*PAIR, LinkPoint(ALL_REDUCE, 4, 1000, 9.0)))

    assert table.seconds(ALL_REDUCE, 4, 1000) == 9.0
    assert table.seconds("all_gather", 4, 1000) == 4.5
    # A ring of 8: 2 * 7 / 8 times the pair, and the latency of the further messages.
    assert table.seconds(ALL_REDUCE, 8, 1000) == pytest.approx(0.3 * 2 * 7 / 8 + 0.15 * 14 * 0.75)


def test_all_reduces_follow_from_sends_if_there_are_no_others():
    table = link_table((LinkPoint(SEND, 2, 500, 0.1), LinkPoint(SEND, 2, 1000, 0.2)))

    assert table.seconds(ALL_REDUCE, 2, 1000) == pytest.approx(0.2)
    assert table.seconds(ALL_REDUCE, 2, 2000) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("devices", "widths", "expected"),
    [
        (1, (8,), True),
        (2, (2,), True),
        (4, (4,), False),
        (4, (1, 2), True),
        (8, (2,), True),
        (16, (2,), False),
    ],
)
def test_a_plan_is_measured_if_all_its_classes_and_groups_are(devices, widths, expected):
    measured = {"socket": PAIR, "node": SLOW}
    links = links_of(SPANS, measured, PAIR)

    assert is_measured(links, measured, devices, widths) is expected


@given(
    st.lists(st.tuples(st.integers(1, 15), st.floats(1e-6, 10.0)), min_size=1, max_size=40),
)
def test_each_class_has_the_median_of_its_pairs(measured):
    addresses = [f"n{k // 8}/{k // 4 % 2}/{k}" for k in range(16)]
    points = [[SEND, 2, rank, 4096, seconds, 0.0] for rank, seconds in measured]
    document = {"version": 1, "transport": "tcp", "ranks": 16, "points": points}

    found = {
        one.link_class: one
        for one in read_links(document, addresses, ["device", "socket", "node"])
    }

    def class_of(rank: int) -> str:
        return "socket" if rank < 4 else "node" if rank < 8 else NETWORK

    for name, one in found.items():
        times = sorted(seconds for rank, seconds in measured if class_of(rank) == name)
        middle = len(times) // 2
        expected = times[middle] if len(times) % 2 else sum(times[middle - 1 : middle + 1]) / 2
        assert one.points == (LinkPoint(SEND, 2, 4096, expected),)
    assert set(found) == {class_of(rank) for rank, _ in measured}
