"""Workloads of the Pollux experiments: what is read, and what is refused by line."""

import pytest

from benchmarks.reproductions.pollux.traces import FORMAT
from scheduling.core.policy_interface import Kind
from scheduling.core.workloads.readers import read_trace
from scheduling.core.workloads.traces import SimulationError, TraceError

KNOWN = {"pollux": FORMAT}
HEADER = "name,time,application,num_replicas,batch_size\n"


def test_a_line_is_a_training_run_of_a_known_program():
    trace = read_trace(HEADER + "cifar10-0,107,cifar10,6,2048\n", "w.csv", "pollux", KNOWN)

    (job,) = trace.jobs
    assert (trace.format, job.name, job.submitted, job.devices) == (
        "pollux",
        "cifar10-0",
        107.0,
        6,
    )
    assert (job.application, job.batch, job.kind) == ("cifar10", 2048, Kind.ADAPTIVE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "w.csv:1: has no column name"),
        ("name,time,application,num_replicas\nx,1,ncf,1\n", "w.csv:1: has no column batch_size"),
        (HEADER.strip() + ",colour\n", "w.csv:1: has the unknown column colour"),
        (HEADER.strip() + ",time\n", "w.csv:1: names the column time twice"),
        (HEADER, "w.csv: contains no jobs"),
        (HEADER + "x,-1,ncf,1,256\n", "w.csv:2: time is -1"),
        (HEADER + "x,soon,ncf,1,256\n", "w.csv:2: time is 'soon'"),
        (HEADER + "x,nan,ncf,1,256\n", "w.csv:2: time is 'nan'"),
        (HEADER + "x,1e999,ncf,1,256\n", "w.csv:2: time is '1e999'"),
        (HEADER + "x,1,ncf,0,256\n", "w.csv:2: num_replicas is 0"),
        (HEADER + "x,1,ncf,1.5,256\n", "w.csv:2: num_replicas is 1.5"),
        (HEADER + "x,1,gpt9,1,256\n", "w.csv:2: application is 'gpt9'"),
        (HEADER + "x,1,ncf,1,255\n", "w.csv:2: batch_size is 255"),
        (HEADER + "x,1,ncf,2,256\n", "w.csv:2: num_replicas is 2; ncf runs on one device"),
        (HEADER + ",1,ncf,1,256\n", "w.csv:2: name is empty"),
        (HEADER + "x,1,ncf,1\n", "w.csv:2: has 4 cells"),
        (HEADER + "x,1,ncf,1,256,7\n", "w.csv:2: has 6 cells"),
        (HEADER + 'x,1,"ncf,1,256\n', "w.csv:2: is not a valid row of a table"),
        (HEADER + "x,1,ncf,1,256\n\nx,2,ncf,1,256\n", "w.csv:4: job x is already in line 2"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(text, said):
    with pytest.raises(TraceError) as caught:
        read_trace(text, "w.csv", "pollux", KNOWN)

    assert str(caught.value).startswith(said)


def test_a_format_that_is_not_there_is_named():
    with pytest.raises(SimulationError, match="unknown format 'polux'; use one of auto, pollux"):
        read_trace(HEADER, "w.csv", "polux", KNOWN)
