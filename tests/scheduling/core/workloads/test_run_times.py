"""Run times of trace jobs from tables of measured rates."""

import json
import math

import pytest

from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.run_times import interpolated, read_gavel, seconds_by_type
from scheduling.core.workloads.traces import SimulationError, Trace, TraceJob


def seconds_of(job, files, cluster="a:1x2"):
    trace = Trace(name="t", format="gavel", jobs=(job,))
    return seconds_by_type(trace, read_cluster(cluster), files)[0]


def test_a_job_without_a_duration_is_refused_by_name():
    job = TraceJob(name="j0", submitted=0.0, devices=1)

    with pytest.raises(SimulationError, match="j0: has no duration"):
        seconds_of(job, lambda _path: None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no duration; give --profiles a directory with simulation_throughputs.json"),
        ("{", "simulation_throughputs.json:1: is no JSON"),
        ("[]", "simulation_throughputs.json: is not a table of step times"),
        ('{"a": {"LM": {"null": 1}}}', "'LM' is not a job and a number of devices"),
        ('{"a": {"(\'LM\', 1)": {"null": "fast"}}}', "'fast' is not a valid rate"),
        ('{"a": {"(\'LM\', 1)": {"null": -3}}}', "-3 is not a valid rate"),
    ],
)
def test_a_table_of_step_times_that_is_none_is_refused_by_name(text, message):
    job = TraceJob(name="j", submitted=0.0, devices=2, steps=400.0, application="LM")

    with pytest.raises(SimulationError, match=message):
        seconds_of(job, lambda _path: text)


def test_measured_sizes_are_exact_and_others_lie_between():
    sizes = {1: 6.0, 2: 10.0, 4: 14.0}

    assert interpolated(sizes, 2) == 10.0
    assert interpolated(sizes, 3) == pytest.approx(10.0 + 4.0 * math.log2(1.5))
    assert interpolated(sizes, 8) == 0.0
    assert interpolated({}, 1) == 0.0


def test_rates_on_more_nodes_than_are_needed_are_left_out():
    key = "('A', 16)"
    document = {"v100": {key: {"null": 30.0}}, "v100_unconsolidated": {key: {"null": 20.0}}}

    assert read_gavel(document) == {("A", None): {"v100": {16: 30.0}}}


def test_the_published_throughputs_are_read(shared_dir):
    path = shared_dir / "data/gavel/simulation_throughputs.json"
    if not path.exists():
        pytest.skip(f"no throughputs of Gavel at {path}")
    document = json.loads(path.read_text())

    rates = read_gavel(document)["ResNet-18 (batch size 16)", None]

    name = "('ResNet-18 (batch size 16)', 1)"
    assert rates["v100"][1] == document["v100"][name]["null"]
    assert rates["v100"][1] > rates["k80"][1] > 0
