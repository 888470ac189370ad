"""Run times alone on shapes where the profile does not measure every batch per device."""

import pytest

from benchmarks.reproductions.profiles import AppProfile, read_type
from benchmarks.reproductions.sia.jobs import APPLICATIONS, alone_seconds

PLACEMENTS = "placement,local_bsz,step_time,sync_time\n" + "".join(
    f"{shape},{batch},{0.1 + batch * 0.01},0.01\n" for shape in ("1", "2") for batch in (8, 16, 32)
)
SCALABILITY = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n" + "".join(
    f"{nodes},{2 * nodes},{batch},{0.2 + batch * 0.01},0.05\n"
    for nodes in (2, 4)
    for batch in (8, 16)
)
VALIDATION = "progress,iteration,metric,grad_sqr,grad_var\n" + "".join(
    f"{100 * epoch},{100 * epoch},0,1,50\n" for epoch in (1, 2)
)
FILES = {
    "bert/placements-aws.csv": PLACEMENTS,
    "bert/scalability-aws.csv": SCALABILITY,
    **{f"bert/validation-{batch}.csv": VALIDATION for batch in (12, 24, 48, 96, 192, 384)},
}


@pytest.fixture
def app() -> AppProfile:
    found = read_type("bert", "aws", FILES.get)
    assert found is not None
    return AppProfile("bert", {"aws": found}, FILES.get, epochs=2, initial_batch=12)


def test_batches_beyond_those_of_the_shape_are_left_out(app: AppProfile) -> None:
    seconds = alone_seconds(app, APPLICATIONS["bert"], "aws", (2, 2, 2, 2))

    assert seconds is not None
    assert 0.0 < seconds < 200.0 * 0.4 * APPLICATIONS["bert"].slowdown


def test_a_shape_without_measurements_has_no_run_time(app: AppProfile) -> None:
    assert alone_seconds(app, APPLICATIONS["bert"], "aws", (4, 4, 4, 4, 4, 4)) is None
