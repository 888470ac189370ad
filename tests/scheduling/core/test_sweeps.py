"""Grids of sweeps: their points, what people write, and the documents of the jobs."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.sweeps import GridError, documents, label_of, points, read_grid

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
