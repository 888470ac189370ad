"""Geometry of bars, histories and placements."""

from datetime import UTC, datetime, timedelta

import pytest

from portal.web.components.bars import (
    EST_WIDTH,
    VcBarUse,
    estimate_bar,
    sparkline,
    ticker_bars,
    vc_bars,
)
from portal.web.components.history import Held, Mark, StateSpan, history
from portal.web.components.mapvalues import MapCell
from portal.web.components.placement import placement
from scheduling.rounds.queries import RoundTick

START = datetime(2025, 11, 14, 8, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def test_bars_of_one_card_share_a_scale_and_mark_the_guarantee() -> None:
    large = VcBarUse(name="vision", guarantee=40, used=29, lent=4, borrowed=2, queued=18)
    small = VcBarUse(name="language", guarantee=15, used=15)

    first, second = vc_bars([large, small])

    assert first.mark == "66.67%"
    assert second.mark == "25.00%"
    assert [(part.kind, part.devices) for part in first.segments] == [
        ("used", 29),
        ("lent", 4),
        ("idle", 7),
        ("borrowed", 2),
        ("queued", 18),
    ]


def test_a_bar_says_in_words_what_it_shows() -> None:
    (bar,) = vc_bars([VcBarUse(name="language", guarantee=28, used=22, unhealthy=2, borrowed=6)])

    expected = "language: 22 of 28 guaranteed devices used, 4 idle, 2 unhealthy, 6 borrowed."
    assert bar.summary == expected
    assert bar.use.healthy == 26


def test_cordoned_devices_have_a_segment_of_their_own_and_count_as_healthy() -> None:
    (bar,) = vc_bars([VcBarUse(name="language", guarantee=6, used=1, unhealthy=1, cordoned=2)])

    kinds = [(part.kind, part.devices) for part in bar.segments]
    assert kinds == [("used", 1), ("unhealthy", 1), ("cordoned", 2), ("idle", 2)]
    assert (bar.use.healthy, bar.use.idle) == (5, 2)
    assert "1 unhealthy, 2 cordoned" in bar.summary


def test_a_cluster_without_devices_gives_an_empty_bar() -> None:
    (bar,) = vc_bars([VcBarUse(name="new", guarantee=0, used=0)])

    assert (bar.segments, bar.mark) == ((), "0.00%")


def test_the_estimate_axis_is_logarithmic_from_a_minute_to_twelve_hours() -> None:
    whole = estimate_bar(60, 60 * 27, 12 * 3600)

    assert (whole.x, whole.width) == ("0.0", f"{EST_WIDTH:.1f}")
    assert float(whole.tick) == pytest.approx(EST_WIDTH / 2, abs=2)
    assert estimate_bar(0, 0, 0).x == "0.0"


def test_gaps_of_a_sparkline_stay_gaps() -> None:
    assert len(sparkline([1, 2, None, 3, 4])) == 2
    assert sparkline([None, 1]) == ()
    assert sparkline([5, 5, 5])[0].startswith("0.0,13.0")


def test_the_ticker_shows_the_last_twelve_with_the_newest_at_the_right() -> None:
    bars = ticker_bars([RoundTick(number=n, seconds=n / 10) for n in range(1, 21)])

    assert len(bars) == 12
    assert [bar.newest for bar in bars] == [False] * 11 + [True]
    assert bars[-1].height == 14
    assert [(bar.number, bar.seconds) for bar in bars[:2]] == [(9, 0.9), (10, 1.0)]


def test_a_history_puts_all_lanes_on_one_axis() -> None:
    spells = (
        StateSpan(state="queued", start=at(0), end=at(6)),
        StateSpan(state="running", start=at(6), end=at(60), attempt=1),
    )

    drawn = history(
        spells,
        [Held(devices=8, start=at(6), end=at(60))],
        marks=[Mark(at=at(30), what="16 → 8")],
        checkpoints=[at(15)],
    )

    assert drawn is not None
    assert [box.x for box in drawn.states] == ["0.00%", "10.00%"]
    assert (drawn.steps[0].x, drawn.steps[0].width) == ("10.00%", "90.00%")
    assert drawn.marks[0].x == "50.00%"
    assert drawn.checkpoints == ("25.00%",)
    assert drawn.summary == "Running for 54\u00a0min, 8 devices."
    assert [line.text for line in drawn.grid] == ["08:00", "08:15", "08:30", "08:45", "09:00"]


def test_the_shortest_spell_can_be_seen_and_none_leaves_the_axis() -> None:
    spells = (
        StateSpan(state="queued", start=at(0), end=at(600)),
        StateSpan(state="stopping", start=at(600), end=at(600.01), attempt=1),
    )

    drawn = history(spells)

    assert drawn is not None
    last = drawn.states[-1]
    assert float(last.width[:-1]) >= 0.6
    assert float(last.x[:-1]) + float(last.width[:-1]) <= 100


def test_a_history_of_less_than_a_second_fills_its_axis_and_reports_when_it_was() -> None:
    begin = datetime(2026, 1, 5, 8, 0, 3, tzinfo=UTC)
    end = begin + timedelta(milliseconds=300)

    drawn = history([StateSpan(state="running", start=begin, end=end, attempt=1)])

    assert drawn is not None
    assert drawn.states[0].width == "100.00%"
    assert [label.text for label in drawn.grid] == ["08:00:03"]


def test_a_history_of_nothing_is_nothing() -> None:
    assert history(()) is None


def test_a_placement_strengthens_the_jobs_leaves_and_fills_the_path() -> None:
    leaves = tuple(MapCell(level="device", device=n) for n in range(4))
    sockets = (
        MapCell(level="socket", children=leaves[:2]),
        MapCell(level="socket", children=leaves[2:]),
    )
    tree = MapCell(level="node", children=sockets)

    drawn = placement(node="rtx-02", tree=tree, ranks={0: "0", 1: "1"})

    assert [row.text for row in drawn.rows] == ["node", "socket", "device", "rank"]
    assert [cell.look for cell in drawn.cells] == ["part", "part", "on", "on", "", "", ""]
    assert [rank.text for rank in drawn.ranks] == ["0", "1"]
    assert drawn.summary == "2 of 4 devices of rtx-02 hold ranks 0, 1."
