"""Whatever is wrong with a trace, a table or a cluster is named with its place."""

import pytest

from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.readers import read_trace
from scheduling.core.workloads.tables import read_rows
from scheduling.core.workloads.traces import SimulationError, TraceError

HEADER = "job_id,submission_time,duration,num_gpu\n"


@pytest.mark.parametrize("text", ["", "name,colour\n"])
def test_a_header_of_no_format_is_refused_with_its_line(text):
    with pytest.raises(
        TraceError, match=r"w.csv:1: has an unknown format; specify one of chronus"
    ):
        read_trace(text, "w.csv")


def test_a_line_that_is_not_of_a_table_is_named():
    with pytest.raises(TraceError, match=r"w.csv:2: is not a valid row of a table"):
        read_trace(HEADER + '"x,5,60,1\n', "w.csv")


def test_an_unknown_format_lists_what_there_is():
    with pytest.raises(SimulationError, match=r"unknown format 'xls'; use one of auto, .*philly"):
        read_trace(HEADER + "x,5,60,1\n", "w.csv", "xls")


def test_empty_lines_are_passed_over_and_lines_are_still_counted():
    rows = list(read_rows("a,b\n\n1,2\n\n3,4\n", "t.csv", required=("a", "b"), optional=()))

    assert [(row.line, row.text("b")) for row in rows] == [(3, "2"), (5, "4")]


def test_a_cluster_is_read_in_its_order():
    cluster = read_cluster("aws:6x4, dgx-ext:2x8,rtx:3x8")

    assert cluster.types == ("aws", "dgx-ext", "rtx")
    assert cluster.devices == 64
    assert cluster.packed("aws", 14) == (4, 4, 4, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not of the form type:NODESxDEVICES"),
        ("aws", "'aws' is not of the form"),
        ("aws:6x", "'aws:6x' is not of the form"),
        ("aws:-1x4", "'aws:-1x4' is not of the form"),
        ("aws:0x4", "'aws:0x4' has no devices"),
        ("aws:1x4,aws:2x4", "the type aws is given twice"),
    ],
)
def test_a_malformed_cluster_is_refused(text, message):
    with pytest.raises(SimulationError, match=message):
        read_cluster(text)
