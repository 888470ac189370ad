"""Grids of sweeps: their points, what people write, and the documents of the jobs."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.early_stopping import EarlyStop, StopRule
from scheduling.core.objectives import Goal, Objective
from scheduling.core.sweeps import (
    GridError,
    SweepOptions,
    check_options,
    documents,
    label_of,
    options_from_json,
    options_to_json,
    points,
    read_grid,
)

BASE = {
    "name": "train",
    "virtual_cluster": "vision-a",
    "labels": {"team": "blue"},
    "roles": {"worker": {"command": "true", "env": {"A": "1", "LR": "x"}}},
}
NAMES = st.from_regex(r"[A-Z]{1,3}", fullmatch=True)
VALUES = st.lists(
    st.from_regex(r"[0-9.]{1,4}", fullmatch=True), min_size=1, max_size=4, unique=True
)


@settings(max_examples=30, deadline=None)
@given(grid=st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
def test_every_combination_is_there_once_and_what_is_written_reads_back(
    grid: dict[str, list[str]],
) -> None:
    written = "\n".join(f"{name} = {', '.join(values)}" for name, values in grid.items())

    assert read_grid(written) == grid
    found = [tuple(point.values()) for point in points(grid)]
    assert found == list(itertools.product(*grid.values()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "LR",
        "LR = ",
        "1X = 2",
        "LR = 1, 1",
        "A = 1\nA = 2",
        "X = " + ",".join(map(str, range(1001))),
    ],
)
def test_what_is_no_grid_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(GridError) as refused:
        points(read_grid(text))

    assert refused.value.remedy


def test_each_job_has_its_point_in_the_environment_and_waits_for_its_turn() -> None:
    made = documents(BASE, {"LR": ["0.1", "0.2"], "S": ["1"]}, label="train-1", max_parallel=1)

    assert [job["name"] for job in made] == ["train 1", "train 2"]
    assert made[1]["roles"]["worker"]["env"] == {"A": "1", "LR": "0.2", "S": "1"}
    assert made[1]["labels"] == {"team": "blue", "sweep": "train-1"}
    assert [job.get("held", False) for job in made] == [False, True]
    assert "held" not in BASE
    assert BASE["roles"]["worker"]["env"]["LR"] == "x"  # type: ignore[index]


def test_labels_are_plain_and_names_are_never_too_long() -> None:
    assert label_of("ViT large, run 2!", "ab12cd") == "vit-large-run-2-ab12cd"
    assert label_of("名前", "ab12cd") == "ab12cd"
    long = documents({**BASE, "name": "n" * 63}, {"A": ["1"]}, label="x", max_parallel=None)
    assert len(long[0]["name"]) == 63


RANGES = {
    "LR": ["loguniform(1e-4, 1e-1)"],
    "DROP": ["uniform(0, 0.5)"],
    "LAYERS": ["integer(2, 8)"],
    "OPT": ["sgd", "adam"],
}


@given(st.integers(0, 2**31), st.integers(1, 40))
def test_a_random_search_repeats_with_its_seed_and_stays_within_its_ranges(
    seed: int, samples: int
) -> None:
    options = SweepOptions(samples=samples, seed=seed)
    found = points(RANGES, options)

    assert found == points(RANGES, options)
    assert len({tuple(point.values()) for point in found}) == len(found) == samples
    for point in found:
        assert 1e-4 <= float(point["LR"]) <= 0.1
        assert 0 <= float(point["DROP"]) <= 0.5
        assert 2 <= int(point["LAYERS"]) <= 8
        assert point["OPT"] in {"sgd", "adam"}


@pytest.mark.parametrize(
    "values",
    [
        "uniform(1, 0)",
        "loguniform(0, 1)",
        "integer(1.5, 2)",
        "uniform(1, 1e999)",
        "uniform(1.2.3, 4)",
    ],
)
def test_wrong_ranges_are_refused(values: str) -> None:
    with pytest.raises(GridError):
        points({"A": [values]}, SweepOptions(samples=2))


def test_a_grid_has_no_ranges_and_a_search_not_more_points_than_exist() -> None:
    with pytest.raises(GridError, match="not a random search"):
        points(RANGES)
    with pytest.raises(GridError, match="different points"):
        points({"A": ["1", "2"]}, SweepOptions(samples=3))
    assert len(points({"A": ["1", "2"]}, SweepOptions(samples=2))) == 2


def test_a_written_range_is_one_value() -> None:
    assert read_grid("LR = loguniform(1e-4, 1e-1)\nB = 1, 2") == {
        "LR": ["loguniform(1e-4, 1e-1)"],
        "B": ["1", "2"],
    }


def test_options_are_stored_whole() -> None:
    early = EarlyStop(rule=StopRule.ASHA, first_step=10, reduction=4)
    options = SweepOptions(
        samples=5, seed=3, objective=Objective("loss", Goal.MIN), early_stop=early
    )

    assert options_from_json(options_to_json(options)) == options
    assert options_from_json(options_to_json(SweepOptions())) == SweepOptions()
    with pytest.raises(GridError):
        check_options(SweepOptions(early_stop=early))
