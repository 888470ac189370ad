"""Readers of recorded jobs: what a line means, and how whatever is wrong with one is named."""

import gzip
import io
import zipfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.workloads.readers import FORMATS, read_trace, text_of
from scheduling.core.workloads.traces import SimulationError, TraceError

TAB = "\t"
GAVEL7 = TAB.join(["LM (batch size 5)", "python3 run", "-n", "1", "400", "12.5", "2"])
GAVEL10 = TAB.join(["LM (batch size 5)", "run", "lm", "-n", "1", "400", "2", "1", "-1.0", "12.5"])
GAVEL12 = TAB.join(
    ["LM (batch size 5)", "run", "lm", "-n", "1", "400", "2", "gns", "1", "1.5", "60", "12.5"]
)
HEADERS = {
    "itp": "job_id,submission_time,duration,num_gpu",
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster",
    "openb": "name,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time",
    "chronus": "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,"
    "expect_time_list,expect_value_list,best_effort,job_type",
    "muri": "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,iteration_time",
    "crius": "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,"
    "gpu_type",
}
LINES = {
    "itp": "a,12.5,60,2",
    "philly": "2017-10-09 07:01:55,60,2,120,c1",
    "openb": "a,2,1000,V100|T4,10,72.5,12.5",
    "chronus": "a,c1,2,12.5,400,lm,60,1,90-120,10-5,0,soft",
    "muri": "a,2,12500,400,lm,5,60000,150",
    "crius": "a,12.5,400,lm__1B,90,5,2,a40",
    "gavel": GAVEL7,
}


def text(name, line=None):
    first = [HEADERS[name]] if name in HEADERS else []
    return "\n".join([*first, line if line is not None else LINES[name]]) + "\n"


@pytest.mark.parametrize("name", sorted(LINES))
def test_a_line_is_one_job_and_its_format_is_distinguished_from_the_header(name):
    trace = read_trace(text(name), "t.csv")
    (job,) = trace.jobs

    assert trace.format == name
    assert job.devices == 2
    assert job.submitted == {"philly": 0.0, "openb": 10.0}.get(name, 12.5)
    assert job.duration == (None if name in {"gavel", "crius"} else 60.0)
    assert job.steps == (400.0 if name in {"gavel", "crius", "chronus", "muri"} else None)
    assert trace.left_out == {}


def test_what_only_one_format_knows_is_kept():
    read = {name: read_trace(text(name), "t.csv").jobs[0] for name in LINES}

    assert read["philly"].name == "c1-2"
    assert read["philly"].tenant == "c1"
    assert read["openb"].types == ("V100", "T4")
    assert read["openb"].extra["gpu_milli"] == 1000
    assert (read["chronus"].tenant, read["chronus"].deadline) == ("c1", 102.5)
    assert read["chronus"].extra["expected"] == (90.0, 120.0)
    assert (read["crius"].types, read["crius"].wish) == ((), "a40")
    assert read["crius"].deadline == 90.0
    assert (read["muri"].application, read["muri"].batch) == ("lm", 5)
    assert (read["gavel"].name, read["gavel"].batch) == ("line-1", 5)


@pytest.mark.parametrize("line", [GAVEL7, GAVEL10, GAVEL12])
def test_all_layouts_of_gavel_report_the_same(line):
    (job,) = read_trace(line + "\n", "t.trace").jobs

    assert (job.submitted, job.devices, job.steps) == (12.5, 2, 400.0)
    assert (job.duration, job.deadline) == ((60.0, 102.5) if line == GAVEL12 else (None, None))


def test_both_spellings_of_a_list_with_deadlines_are_read():
    one = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    other = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort\n"

    (job,) = read_trace(one + "a,5,9,vgg,80,64,2,30\n", "t.csv").jobs
    (same, free) = read_trace(
        other + "a,5,9,vgg,80,64,2,30,0\nb,5,9,vgg,80,64,2,30,1\n", "t.csv"
    ).jobs

    assert job == same
    assert (job.deadline, free.deadline) == (80.0, None)


def test_times_of_philly_count_from_the_earliest_wherever_it_stands():
    lines = LINES["philly"] + "\n2017-10-08 07:01:55,1,1,1,c2"

    jobs = read_trace(text("philly", lines), "t.csv").jobs

    assert [job.submitted for job in jobs] == [86_400.0, 0.0]


def test_lines_that_are_no_job_are_counted_by_reason():
    lines = LINES["openb"] + "\nb,0,0,,1,2,1\nc,1,500,,1,2,\nd,0,0,,1,2,"

    trace = read_trace(text("openb", lines), "t.csv")

    assert [job.name for job in trace.jobs] == ["a"]
    assert trace.left_out == {"requests no devices": 2, "was never scheduled": 1}


def test_a_file_of_which_nothing_is_left_shows_the_reason():
    with pytest.raises(TraceError, match="contains no jobs that can be simulated: 1 was never"):
        read_trace(text("openb", "c,1,500,,1,2,"), "t.csv")


#: By format: a column's place, and values that are refused with a part of the message.
BAD = {
    "itp": {1: "submission_time", 2: "duration", 3: "num_gpu"},
    "philly": {1: "duration", 2: "num_gpus"},
    "openb": {1: "num_gpu", 2: "gpu_milli", 4: "creation_time", 5: "deletion_time"},
    "chronus": {2: "num_gpu", 3: "submit_time", 6: "duration", 8: "expect_time_list"},
    "muri": {1: "num_gpu", 2: "submit_time", 6: "duration"},
    "crius": {1: "submission_time", 2: "num_iteration", 6: "num_gpu"},
    "gavel": {4: "total_steps", 5: "arrival", 6: "scale_factor"},
}
VALUES = {
    "": "is empty",
    "soon": "'soon'; use a number",
    "nan": "'nan'; use a number",
    "inf": "'inf'; use a number",
    "1e999": "'1e999'; use a number",
    "9" * 30: f"{'9' * 30}; use at most",
    "9" * 5000: "use a number",
}


@pytest.mark.parametrize(
    ("name", "place", "column", "value", "message"),
    [
        (name, place, column, value, message)
        for name, columns in BAD.items()
        for place, column in columns.items()
        for value, message in VALUES.items()
    ],
)
def test_a_value_that_is_none_is_refused_with_file_line_and_column(
    name, place, column, value, message
):
    mark = TAB if name == "gavel" else ","
    cells = LINES[name].split(mark)
    cells[place] = value

    with pytest.raises(TraceError) as caught:
        read_trace(text(name, LINES[name] + "\n" + mark.join(cells)), "t.csv")

    assert caught.value.line == (2 if name == "gavel" else 3)
    assert str(caught.value).startswith(f"t.csv:{caught.value.line}: {column} is ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", sorted(BAD))
def test_negative_times_and_sizes_are_refused(name):
    mark = TAB if name == "gavel" else ","
    for place, column in BAD[name].items():
        cells = LINES[name].split(mark)
        cells[place] = "-5"
        wanted = f"{column} is (empty|-5; use at least)"
        with pytest.raises(TraceError, match=wanted):
            read_trace(text(name, mark.join(cells)), "t.csv", name)


@pytest.mark.parametrize("name", sorted({*LINES} - {"philly", "gavel"}))
def test_an_id_that_stands_there_twice_is_named_with_both_lines(name):
    with pytest.raises(TraceError, match=r"t.csv:4: job a is already in line 2"):
        read_trace(text(name, f"{LINES[name]}\n\n{LINES[name]}"), "t.csv")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("itp", "a,1,60,1.5", "num_gpu is 1.5; use a whole number"),
        ("itp", "a,1,60", "has 3 cells; use 4"),
        ("itp", "a,1,60,1,1", "has 5 cells; use 4"),
        ("philly", "yesterday,60,2,120,c1", "timestamp is 'yesterday'"),
        ("philly", "2017-10-09T07:01:55+01:00,60,2,120,c1", "timestamp is"),
        ("philly", "2017-13-09 07:01:55,60,2,120,c1", "timestamp is"),
        ("openb", "a,1,1000,,10,5,12", "deletion_time is before the pod was"),
        ("openb", "a,1,1001,,10,50,12", "gpu_milli is 1001; use at most 1000"),
        ("chronus", "a,c,1,0,4,m,6,1,9,1,0,hard", "job_type is 'hard'; use strict, soft"),
        ("chronus", "a,c,1,0,4,m,6,1,9--3,1,0,soft", "expect_time_list is empty"),
        ("crius", "a,12.5,400,lm__1B,90,5,2,", "gpu_type is empty"),
        ("gavel", "a\tb", "has 2 cells with tabs between; use 7, 10 or 12"),
        ("gavel", GAVEL7 + "\n" + GAVEL10, "has 10 cells with tabs between; use 7"),
    ],
)
def test_what_only_one_format_can_get_wrong_is_named(name, line, message):
    with pytest.raises(TraceError, match=message):
        read_trace(text(name, line), "t.csv", name)


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_unknown_and_missing_columns_are_named(name):
    columns = HEADERS[name].split(",")

    with pytest.raises(
        TraceError, match=r"t.csv:1: has the unknown column colour; known columns:"
    ):
        read_trace(f"{HEADERS[name]},colour\n{LINES[name]},red\n", "t.csv", name)
    with pytest.raises(TraceError, match=r"t.csv:1: has no column "):
        read_trace(",".join(columns[2:4]) + "\n", "t.csv", name)
    with pytest.raises(TraceError, match="twice"):
        read_trace(f"{HEADERS[name]},{columns[0]}\n", "t.csv", name)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_an_empty_file_is_refused_by_name_in_every_format(name):
    with pytest.raises(TraceError, match=r"^t\.csv"):
        read_trace("", "t.csv", name)


@given(name=st.sampled_from(sorted(FORMATS)), body=st.text(max_size=120))
def test_no_text_does_more_than_raise_a_named_error(name, body):
    header = HEADERS.get(name, "")

    for content in (body, f"{header}\n{body}"):
        with suppress(TraceError):
            read_trace(content, "t.csv", name)


@given(
    name=st.sampled_from(sorted(LINES)),
    place=st.integers(0, 30),
    value=st.one_of(st.text(max_size=8), st.integers().map(str), st.floats().map(str)),
)
def test_a_changed_cell_is_a_job_or_a_named_error(name, place, value):
    mark = TAB if name == "gavel" else ","
    cells = LINES[name].split(mark)
    cells[place % len(cells)] = value

    with suppress(TraceError):
        (job,) = read_trace(text(name, mark.join(cells)), "t.csv", name).jobs
        assert job.devices >= 1
        assert job.submitted >= 0.0
        assert job.duration is None or job.duration >= 0.0


def packed(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.csv", content)
    return file.getvalue()


def test_packed_and_plain_files_hold_the_same_text():
    plain = text("itp").encode()

    found = {
        text_of(content, "t", most=1000)
        for content in (plain, gzip.compress(plain), packed(plain), b"\xef\xbb\xbf" + plain)
    }

    assert {item.lstrip("\ufeff") for item in found} == {plain.decode()}
    assert text_of(gzip.compress(b"a") + gzip.compress(b"b"), "t", most=10) == "ab"


def test_a_file_that_was_cut_off_is_refused_with_the_line_it_reaches():
    lines = "".join(f"job-{number},{number},60,1\n" for number in range(20_000))
    whole = gzip.compress(lines.encode())

    with pytest.raises(TraceError, match="is truncated here") as caught:
        text_of(whole[: len(whole) // 2], "t.gz", most=1 << 20)

    assert 1_000 < caught.value.line < 20_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"x" * 90)[:12], "t:1: the compressed file is truncated here"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "t:1: the compressed file is damaged here"),
        (packed(b"x" * 90)[:40], "t: cannot be unpacked"),
        (b"PK\x03\x04", "t: cannot be unpacked"),
        (gzip.compress(b"x" * 2000), "t: unpacks to more than 1000 bytes"),
        (packed(b"x" * 2000), "t: unpacks to more than 1000 bytes"),
        (b"x" * 2000, "t: is larger than 1000 bytes"),
        (b"a,b\n\xff,2\n", "t:2: is not valid UTF-8"),
    ],
)
def test_a_damaged_file_is_refused_by_name(content, message):
    with pytest.raises(TraceError) as caught:
        text_of(content, "t", most=1000)

    assert str(caught.value).startswith(message)


def test_a_packed_file_holds_one_file_alone():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.csv", "a")
        archive.writestr("b.csv", "b")

    with pytest.raises(SimulationError, match="contains 2 files; use an archive with one file"):
        text_of(file.getvalue(), "t.zip", most=1000)


@pytest.mark.parametrize(
    ("path", "name", "jobs", "left_out"),
    [
        ("elasticflow/raw/cluster01.csv", "itp", 1_595, 0),
        ("elasticflow/with-deadlines/195job.csv", "itp", 195, 0),
        ("elasticflow/extra/philly_103959.csv", "itp", 876, 0),
        ("philly/gavel-msr-seed0/103959.trace", "gavel", 986, 0),
        ("gavel/physical_traces/max_min_fairness.trace", "gavel", 96, 0),
        ("openb-2023/openb_pod_list_default.csv", "openb", 6_203, 1_949),
        ("chronus/trace_job_Philly_SLO.csv.gz", "chronus", None, 30_940),
        ("muri/trace1.csv", "muri", 1_494, 0),
        ("crius-arena/traces/simulate_trace_venus.csv", "crius", 438, 0),
        ("philly/philly.csv", "philly", 82_247, 0),
    ],
)
def test_the_published_files_are_read_whole(shared_dir, path, name, jobs, left_out):
    file = shared_dir / "data" / path
    if not file.is_file():
        pytest.skip(f"{file.name} is not on this machine")

    trace = read_trace(text_of(file.read_bytes(), file.name, most=1 << 29), file.name)

    assert trace.format == name
    if jobs is None:
        assert len(trace.jobs) + sum(trace.left_out.values()) == left_out
    else:
        assert (len(trace.jobs), sum(trace.left_out.values())) == (jobs, left_out)
