"""Step times of Crius' artefact: records, extrapolations and the filter by memory."""

import json

import pytest

from benchmarks.reproductions.crius.devices import Span, layout_of
from benchmarks.reproductions.crius.steptimes import StepTimes, read_step_times
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import SimulationError, TraceError

LAYOUT = layout_of(read_cluster("a100:2x4,a40:8x2"), ("a100", "a40"))
TIMES = {
    "bert_760M_128": {"1_a100_1_n_4_d": 2.0, "2_a100_2_n_4_d": -1.0, "1_a40_1_n_1_d": 301.0},
    "bert_2.6B_128": {"2_a40_2_n_2_d": 10.0, "1_a100_1_n_2_d": 8.0},
}
MEMORY = {"bert_760M_128": [30.0, 16.0, 0.0, -1.0]}


@pytest.fixture
def times():
    return StepTimes(LAYOUT, TIMES, MEMORY)


@pytest.mark.parametrize(
    ("span", "samples"),
    [
        (Span("a100", 1, 4), 64.0),
        # Two halvings of the best locality: 0.9 each.
        (Span("a100", 4, 1), 64.0 * 0.9**2),
        # No record: the model that is two sizes larger, 1.8 each.
        (Span("a40", 2, 2), 12.8 * 1.8**2),
        (Span("a100", 1, 2), 16.0 * 1.8**2),
        # A failed measurement, a step of more than 300 s, and nothing at all.
        (Span("a100", 2, 4), None),
        (Span("a40", 1, 1), None),
        (Span("a40", 1, 2), None),
    ],
)
def test_a_shape_has_its_record_or_an_extrapolation(times, span, samples):
    found = times.samples("bert__760M", 128, span)

    assert found == (None if samples is None else pytest.approx(samples))


def test_a_spread_shape_of_a_larger_model_is_not_extrapolated(times):
    assert times.samples("bert__1.3B", 128, Span("a40", 4, 1)) is None


def test_step_seconds_are_rounded_to_a_thousandth(times):
    assert times.step_seconds("bert__760M", 128, Span("a100", 2, 2)) == round(128 / 57.6, 3)


def test_bare_records_have_no_factor(times):
    assert times.bare_samples("bert__760M", 128, Span("a100", 4, 1)) == 64.0


def test_without_guesses_only_records_count():
    times = StepTimes(LAYOUT, TIMES, MEMORY, guesses=False)

    assert times.samples("bert__760M", 128, Span("a100", 1, 4)) == 64.0
    assert times.samples("bert__760M", 128, Span("a100", 4, 1)) is None
    assert times.samples("bert__760M", 128, Span("a40", 2, 2)) is None


@pytest.mark.parametrize(
    ("kind", "devices", "fits"),
    [
        # 30 GB x 1.2 is above 80 % of 40 GB and below 80 % of 48 GB; 0 is not measured.
        ("a100", 1, False),
        ("a40", 1, True),
        ("a100", 2, True),
        ("a100", 4, True),
        ("a100", 8, False),
        ("a100", 16, False),
    ],
)
def test_memory_of_data_parallelism_decides(times, kind, devices, fits):
    assert times.fits_memory("bert__760M", 128, kind, devices) is fits
    assert not times.fits_memory("bert__6.7B", 128, kind, devices)


def test_missing_and_malformed_tables_are_refused_by_name():
    with pytest.raises(SimulationError, match=r"prof_database\.json"):
        read_step_times(lambda name: None, LAYOUT, guesses=True)
    for text in ("{", "[]", '{"optimal": 5}', '{"optimal": {"a": {"b": NaN}}}'):
        with pytest.raises(TraceError, match=r"prof_database\.json"):
            read_step_times({"prof_database.json": text}.get, LAYOUT, guesses=True)


def test_the_tables_are_read_from_the_profiles():
    texts = {
        "prof_database.json": json.dumps({"optimal": TIMES}),
        "dp_only_iteration_time.json": json.dumps([MEMORY]),
    }

    times = read_step_times(texts.get, LAYOUT, guesses=True)

    assert times.samples("bert__760M", 128, Span("a100", 1, 4)) == 64.0
    assert times.fits_memory("bert__760M", 128, "a40", 1)
