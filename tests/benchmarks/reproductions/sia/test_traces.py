"""Workloads of Sia's artefact: the jobs of a file, and errors with their place."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reproductions.sia.traces import FORMAT
from scheduling.core.policy_interface import Kind
from scheduling.core.workloads.readers import FORMATS, read_trace
from scheduling.core.workloads.traces import TraceError

KNOWN = {**FORMATS, "sia": FORMAT}
HEADER = "name,time,application,num_replicas,batch_size\n"
LINE = "cifar10-0,107,cifar10,6,2048\n"


def test_a_workload_is_read_in_the_order_of_its_file():
    trace = read_trace(HEADER + LINE + "bert-1,12.5,bert,1,12\n", "w.csv", formats=KNOWN)

    assert trace.format == "sia"
    assert [job.name for job in trace.jobs] == ["cifar10-0", "bert-1"]
    assert trace.jobs[1].submitted == 12.5
    assert {job.kind for job in trace.jobs} == {Kind.ADAPTIVE}


def test_categories_report_how_a_job_can_be_run():
    text = HEADER.strip() + ",category\n"
    text += "a-0,0,a,1,8,rigid\nb-1,0,b,1,8,scale-gpus\nc-2,0,c,1,8,\n"

    kinds = [job.kind for job in read_trace(text, "w.csv", formats=KNOWN).jobs]

    assert kinds == [Kind.RIGID, Kind.ELASTIC, Kind.ADAPTIVE]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (HEADER, 0, "contains no jobs"),
        (HEADER + LINE + "x,-5,bert,1,12\n", 3, "time is -5; use at least 0"),
        (HEADER + "x,soon,bert,1,12\n", 2, "time is 'soon'; use a number"),
        (HEADER + "x,nan,bert,1,12\n", 2, "time is 'nan'; use a number"),
        (HEADER + "x,1e999,bert,1,12\n", 2, "time is '1e999'; use a number"),
        (HEADER + "x,5,bert,0,12\n", 2, "num_replicas is 0; use at least 1"),
        (HEADER + "x,5,bert,1.5,12\n", 2, "num_replicas is 1.5; use a whole number"),
        (HEADER + "x,5,,1,12\n", 2, "application is empty"),
        (HEADER + "x,5,bert,1\n", 2, "has 4 cells; use 5"),
        (HEADER + "x,5,bert,1,12,7\n", 2, "has 6 cells; use 5"),
        (HEADER + LINE + LINE, 3, "name is 'cifar10-0', as in a line before"),
        (HEADER.strip() + ",colour\n" + LINE, 1, "unknown column colour"),
        (HEADER.strip() + ",time\n" + LINE, 1, "names the column time twice"),
        (HEADER.strip() + ",category\nx,5,bert,1,12,fluid\n", 2, "category is 'fluid'"),
        (HEADER + '"x,5,bert,1,12\n', 2, "is not a valid row of a table"),
    ],
)
def test_a_malformed_workload_is_refused_with_its_line(text, line, message):
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(text, "w.csv", formats=KNOWN)

    assert caught.value.line == line
    assert str(caught.value).startswith("w.csv:" if line else "w.csv")


def test_a_named_format_names_the_columns_that_are_missing():
    with pytest.raises(TraceError, match=r"w.csv:1: has no column time, application"):
        read_trace("name,num_replicas,batch_size\n", "w.csv", "sia", KNOWN)


@given(text=st.text(max_size=200))
def test_no_text_at_all_does_more_than_raise_a_named_error(text):
    with suppress(TraceError):
        read_trace(text, "w.csv", "sia", KNOWN)
