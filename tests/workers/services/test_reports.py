"""Reports of jobs: hostile lines, pieces cut anywhere, sums over intervals."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.services.reports import LONGEST_LINE, ReportTally, read_report


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def step(number: int, at: float = 0.0, samples: float = 8.0) -> bytes:
    return line(step=number, samples=samples, step_seconds=0.5, loss=1.0 / (number + 1), time=at)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nothing",
        b"[]",
        b"7",
        b"{}",
        b'{"event": "checkpoint", "step": 1}',
        b'{"step": "1"}',
        b'{"step": -1}',
        b'{"step": true}',
        b'{"step": 1.5}',
        b'{"step": 1e999}',
        b'{"step": ' + b"9" * 5000 + b"}",
        b"[" * 50_000,
        b"\xff\xfe",
        b'{"step": 1, "pad": "' + b"x" * LONGEST_LINE + b'"}',
    ],
)
def test_a_line_that_is_no_report_is_no_report(raw: bytes) -> None:
    assert read_report(raw) is None


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1e300", '"8"', "true", "null", "[]"])
def test_a_number_that_cannot_be_used_is_left_out(value: str) -> None:
    report = read_report(f'{{"step": 3, "samples": {value}, "step_seconds": {value}}}'.encode())

    assert report is not None
    assert (report.step, report.samples, report.step_seconds) == (3, 0.0, None)


def test_progress_sums_samples_and_names_the_newest_step() -> None:
    tally = ReportTally()
    tally.take(step(1, at=10.0) + step(2, at=11.0) + step(3, at=12.0))

    progress = tally.sum_up()

    assert progress is not None
    assert (progress.step, progress.steps, progress.samples) == (3, 3, 24.0)
    assert progress.seconds == pytest.approx(2.5)  # the first step began half a second before
    assert progress.step_seconds == pytest.approx(0.5)
    assert progress.loss == pytest.approx(0.25)


def test_a_line_that_covers_several_steps_counts_them_all() -> None:
    tally = ReportTally()
    tally.take(line(step=1, steps=1, samples=8, step_seconds=0.01, time=10.0))
    tally.take(line(step=21, steps=20, samples=8, step_seconds=0.01, time=10.2))

    progress = tally.sum_up()

    assert progress is not None
    assert (progress.step, progress.steps, progress.samples) == (21, 21, 168.0)
    assert progress.samples / progress.seconds == pytest.approx(800.0)
    assert progress.step_seconds == pytest.approx(0.01)


@pytest.mark.parametrize("steps", ["0", "-3", "1.5", '"9"', "true", "null", "9" * 30, "[]"])
def test_a_number_of_steps_that_cannot_be_is_one(steps: str) -> None:
    tally = ReportTally()
    tally.take(f'{{"step": 3, "steps": {steps}, "samples": 8}}\n'.encode())

    progress = tally.sum_up()

    assert progress is not None
    assert (progress.steps, progress.samples) == (1, 8.0)


def test_the_steps_of_one_interval_fit_into_their_column() -> None:
    tally = ReportTally()
    tally.take(line(step=1, steps=(1 << 31) - 1) * 3)

    progress = tally.sum_up()

    assert progress is not None
    assert progress.steps == (1 << 31) - 1


def test_processes_that_share_a_rank_make_one_step_together() -> None:
    tally = ReportTally()
    for local_rank in (0, 1, 2, 3):
        fields = {"local_rank": local_rank} if local_rank else {}
        tally.take(
            line(step=5, samples=8, step_seconds=0.5 + local_rank, loss=local_rank, **fields)
        )

    progress = tally.sum_up()

    assert progress is not None
    assert (progress.steps, progress.samples, progress.loss) == (1, 32.0, 0.0)
    assert progress.step_seconds == pytest.approx(0.5)


def test_an_interval_in_which_only_the_others_said_something_counts_their_samples() -> None:
    tally = ReportTally()
    tally.take(line(step=5, samples=8, local_rank=[1]))

    progress = tally.sum_up()

    assert progress is not None
    assert (progress.step, progress.steps, progress.samples) == (5, 0, 8.0)
    assert progress.step_seconds is None


def test_the_next_interval_begins_where_the_last_ended() -> None:
    tally = ReportTally()
    tally.take(step(1, at=10.0))
    tally.sum_up()
    tally.take(step(2, at=40.0, samples=60.0))

    progress = tally.sum_up()

    assert progress is not None
    assert progress.samples / progress.seconds == pytest.approx(2.0)


def test_nothing_reported_is_no_progress() -> None:
    tally = ReportTally()
    tally.take(b"noise\n")

    assert tally.sum_up() is None
    assert tally.offset == 6


def test_a_clock_that_runs_backwards_counts_the_time_of_the_work() -> None:
    tally = ReportTally()
    tally.take(step(1, at=100.0))
    tally.sum_up()
    tally.take(step(2, at=50.0))

    progress = tally.sum_up()

    assert progress is not None
    assert progress.seconds == pytest.approx(0.5)


def test_the_time_of_a_rank_that_reports_nothing_of_time_is_never_zero() -> None:
    tally = ReportTally()
    tally.take(line(step=1, samples=5))

    progress = tally.sum_up()

    assert progress is not None
    assert progress.seconds > 0


def test_a_line_without_end_is_given_up() -> None:
    tally = ReportTally()

    for _ in range(10):
        tally.take(b"x" * LONGEST_LINE)

    assert tally.read_offset == 10 * LONGEST_LINE
    assert tally.sum_up() is None


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_pieces_cut_anywhere_give_the_same_sums(cuts: list[int]) -> None:
    stream = b"".join(step(number, at=float(number)) for number in range(1, 5)) + b'{"step"'
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    tally = ReportTally()

    for begin, end in itertools.pairwise(places):
        assert tally.read_offset == begin
        tally.take(stream[begin:end])

    progress = tally.sum_up()
    assert progress is not None
    assert (progress.step, progress.samples) == (4, 32.0)
    assert progress.reports_end == len(stream) - len(b'{"step"')


def test_steps_are_counted_by_batch_and_the_newest_noise_is_kept() -> None:
    tally = ReportTally()
    for number in range(3):
        noise = [1, 8 - number]
        tally.take(
            line(step=number, step_seconds=0.5, samples=4, batch=64, accumulation=2, noise=noise)
        )
    for number in range(3, 5):
        tally.take(line(step=number, step_seconds=0.25, samples=8, batch=128, noise=["x", 8]))

    progress, nothing = tally.sum_up(), tally.sum_up()

    assert progress is not None
    assert nothing is None
    assert (progress.batch, progress.accumulation, progress.noise) == (128, 1, (1.0, 6.0))
    assert sorted(progress.kinds) == [(64, 2, 2, 1.0), (128, 1, 1, 0.25)]


def test_the_first_report_at_a_batch_reports_nothing_of_its_pace() -> None:
    tally = ReportTally()
    tally.take(line(step=0, step_seconds=9.0, samples=4, batch=64))
    first = tally.sum_up()
    tally.take(line(step=1, step_seconds=0.5, samples=4, batch=64))
    second = tally.sum_up()
    tally.take(line(step=2, step_seconds=7.0, samples=4, batch=128))
    tally.take(line(step=3, step_seconds=6.0, samples=4, batch=64))
    third = tally.sum_up()

    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.kinds, second.kinds, third.kinds) == ((), ((64, 1, 1, 0.5),), ())
    assert third.step_seconds == 6.5, "what people see leaves nothing out"


@pytest.mark.parametrize(
    "noise", [[0, 0], [1], [-1, 2], [1, float("inf")], "12", {"0": 1}, [True, 1], None]
)
def test_noise_that_reports_nothing_is_unknown(noise: object) -> None:
    tally = ReportTally()
    tally.take(line(step=1, step_seconds=0.5, samples=4, batch=0, noise=noise))

    progress = tally.sum_up()

    assert progress is not None
    assert (progress.noise, progress.batch, progress.kinds) == (None, None, ())


def test_points_without_a_step_are_no_progress_of_the_training() -> None:
    tally = ReportTally()
    tally.take(line(points=[[3, 1.0, None, {"loss": 0.5}]]))

    progress = tally.sum_up()

    assert progress is not None
    assert not progress.has_steps
    assert (progress.steps, progress.reports_end) == (0, tally.offset)
    assert [key.name for key in progress.points.series] == ["loss"]
    assert tally.sum_up() is None


def test_points_beside_steps_are_added_to_their_interval() -> None:
    tally = ReportTally()
    tally.take(line(points=[[3, 1.0, None, {"accuracy": 0.5}]]) + step(4))

    progress = tally.sum_up()

    assert progress is not None
    assert progress.has_steps
    assert progress.step == 4
    assert "accuracy" in {key.name for key in progress.points.series}
    assert tally.sum_up() is None


def test_sizes_of_parameters_come_with_the_next_interval() -> None:
    tally = ReportTally()
    tally.take(line(event="parameters", largest=400, total=520))
    assert tally.sum_up() is None
    tally.take(step(1))

    progress = tally.sum_up()

    assert progress is not None
    assert progress.parameters == (400, 520)
    tally.take(step(2))
    later = tally.sum_up()
    assert later is not None
    assert later.parameters is None


@pytest.mark.parametrize(
    "sizes",
    [
        {"largest": 2, "total": 1},
        {"largest": 0, "total": 1},
        {"largest": True, "total": 5},
        {"largest": 1.5, "total": 5},
        {"largest": 1, "total": 1 << 51},
        {"largest": 1},
    ],
)
def test_impossible_sizes_of_parameters_are_dropped(sizes: dict[str, Any]) -> None:
    tally = ReportTally()
    tally.take(line(event="parameters", **sizes) + step(1))

    progress = tally.sum_up()

    assert progress is not None
    assert progress.parameters is None
