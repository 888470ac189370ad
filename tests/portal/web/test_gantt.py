"""The drawing of the timeline: geometry, folding, and that nothing is drawn twice or lost."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.web.components.gantt import Gantt, GanttNode, GanttRun, gantt, ticks, used_share
from portal.web.components.gantt_markup import bars, rows

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def node(*runs: GanttRun, devices: int = 8, is_open: bool = False) -> GanttNode:
    return GanttNode(
        name="n1",
        url="/nodes/1/",
        icon="",
        tone="",
        summary="Ready",
        devices=tuple(range(devices)),
        runs=runs,
        is_open=is_open,
    )


def run(begin: float, end: float | None, *lanes: int, **more: object) -> GanttRun:
    """A run in hours after the start."""
    return GanttRun(
        lanes=lanes or (0,),
        start=START + begin * HOUR,
        end=None if end is None else START + end * HOUR,
        **more,  # type: ignore[arg-type]
    )


def drawn(*nodes: GanttNode, now: float = 10.0, **more: object) -> Gantt:
    """The ten hours after the start."""
    return gantt(
        nodes,
        since=START,
        until=START + 10 * HOUR,
        now=START + now * HOUR,
        **more,  # type: ignore[arg-type]
    )


def test_a_run_stands_where_its_time_and_its_devices_are() -> None:
    (row,) = drawn(node(run(2, 5, 4, 5, 6, 7))).rows

    (bar,) = row.bars
    assert (bar.x, bar.width) == (20.0, 30.0)
    assert (bar.y, bar.height) == (28.5, 27.0)


def test_devices_that_are_no_neighbours_give_a_bar_each() -> None:
    (row,) = drawn(node(run(2, 5, 0, 1, 4))).rows

    assert [(bar.y, bar.height) for bar in row.bars] == [(0.5, 13.0), (28.5, 6.0)]


def test_rows_are_high_enough_for_names_where_nodes_are_few_and_low_where_they_are_many() -> None:
    heights = [drawn(*[node()] * number).rows[0].height for number in (3, 11, 12, 60, 61)]

    assert heights == [56, 56, 26, 26, 14]


def test_what_goes_on_ends_now_and_may_go_on_until_its_longest_duration() -> None:
    (row,) = drawn(node(run(2, None, ahead=START + 7 * HOUR)), now=5.0).rows

    run_bar, ahead = row.bars
    assert (run_bar.x, run_bar.width, run_bar.kind) == (20.0, 30.0, "run")
    assert (ahead.x, ahead.width, ahead.kind) == (50.0, 20.0, "ahead")


def test_an_open_node_has_a_lane_for_each_device() -> None:
    (row,) = drawn(node(run(0, 1, 3), devices=4, is_open=True)).rows

    assert row.height == 4 * 18
    assert [index for index, _ in row.lanes] == [0, 1, 2, 3]
    assert row.bars[0].y == 3 * 18 + 0.5


def test_short_runs_are_folded_into_one_bar_that_reports_how_many() -> None:
    short = [run(1 + place / 100, 1 + place / 100 + 0.005) for place in range(7)]
    picture = drawn(node(*short, run(3, 4)))

    assert picture.folded == 7
    assert [bar.title for bar in picture.rows[0].bars if bar.kind == "many"] == ["7 short runs"]


@settings(max_examples=25, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 990), st.integers(1, 400)), max_size=60),
    most=st.integers(1, 20),
)
def test_every_run_is_drawn_or_counted_as_folded_and_never_too_many(
    spans: list[tuple[int, int]], most: int
) -> None:
    runs = [run(a / 100, min(a + b, 1000) / 100) for a, b in spans]
    picture = drawn(node(*runs), most=most)

    single = [bar for bar in picture.rows[0].bars if bar.kind == "run"]
    assert len(single) + picture.folded == len(runs)
    assert len(single) <= most
    assert all(0 <= bar.x <= 100 and bar.x + bar.width <= 100.2 for bar in single)


def test_names_of_strangers_do_nothing_in_the_markup() -> None:
    hostile = '"><script>alert(1)</script>'
    (row,) = drawn(node(run(1, 9, *range(8), text=hostile, whose="a & b", url="/jobs/1/"))).rows

    markup = bars(row)

    assert "<script" not in markup
    assert "&lt;script&gt;" in markup
    assert "a &amp; b" in markup


@pytest.mark.parametrize(("hours", "shown"), [(1, "a-very-long-na…"), (9, "a-very-long-name")])
def test_a_label_ends_with_an_ellipsis_where_the_bar_is_too_short(hours: int, shown: str) -> None:
    long = run(0, hours, *range(8), text="a-very-long-name", url="/jobs/1/")
    (row,) = drawn(replace(node(long), is_open=True)).rows

    labels = re.findall(r"<text [^>]*>([^<]*)</text>", bars(row))

    assert [label[: len(shown)] for label in labels] == [shown]
    assert all(len(label) <= 16 for label in labels)


def test_the_name_opens_the_devices_and_an_icon_leads_to_the_node() -> None:
    markup = rows(drawn(node(run(2, 5))))

    opener = re.search(r'<a class="fold".*?</a>', markup, re.DOTALL)
    assert opener is not None
    assert 'class="ell"' in opener[0]
    assert re.search(r'<a class="to-node" href="[^"]+" title="Show node" aria-label=', markup)


def test_the_used_share_counts_device_time_up_to_now() -> None:
    nodes = [node(run(0, 5, 0, 1), run(5, None, 2), devices=4)]

    share = used_share(nodes, since=START, until=START + 20 * HOUR, now=START + 10 * HOUR)

    assert share == (2 * 5 + 5) / 40


def test_the_axis_has_a_few_round_moments_whatever_the_span() -> None:
    for seconds in (10, 60, 3600, 6 * 3600, 86_400, 7 * 86_400, 31 * 86_400):
        found = ticks(START, START + timedelta(seconds=seconds))
        assert 1 <= len(found) <= 9, seconds


def test_rows_name_their_node_fold_its_devices_and_trust_no_name() -> None:
    odd = replace(
        node(run(2, 5)), name='<b"', icon="warning", summary="Down & out", toggle="?open=1"
    )

    closed, opened = rows(drawn(odd, node(devices=2, is_open=True))).splitlines()

    assert '<b"' not in closed
    assert 'aria-label="Devices of &lt;b&quot;"' in closed
    assert 'aria-expanded="false"' in closed
    assert 'aria-label="Down &amp; out"' in closed
    assert 'class="run"' in closed
    assert '<div class="gantt-row open">' in opened
    assert opened.count('text-anchor="end"') == 2
