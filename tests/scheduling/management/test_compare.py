"""``manage.py compare``: the same figures on any number of processes, and a safe report."""

import json
import pickle
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from scheduling.core.simulation.comparing import METRICS
from scheduling.core.workloads.traces import TraceError

HEADER = "job_id,submission_time,duration,num_gpu\n"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def workloads(tmp_path):
    """Two workloads, of which one has a job with a hostile name and one that never fits."""
    paths = []
    for number in (1, 2):
        rows = [f"job-{n},{n * 40 * number},{300 + 70 * (n % 5)},{1 + n % 4}" for n in range(12)]
        if number == 1:
            rows += [f"{HOSTILE},7,900,4", "huge,9,10,99"]
        path = tmp_path / f"w{number}.csv"
        path.write_text(HEADER + "\n".join(rows) + "\n")
        paths.append(path)
    return paths


def compared(workloads, **options):
    out = StringIO()
    given = {
        "workload": workloads,
        "policy": ["fifo", "fifo:backfill=false", "srtf"],
        "cluster": "a:2x4",
        "rules": "events",
        "size_aware": True,
    }
    call_command("compare", stdout=out, stderr=out, **{**given, **options})
    return out.getvalue()


def test_the_figures_go_to_the_terminal_and_to_json(workloads, tmp_path):
    figures = tmp_path / "out.json"

    text = compared(workloads, json=figures, baseline="fifo:backfill=false", seeds=[0, 1])

    document = json.loads(figures.read_text())
    assert document["baseline"] == "fifo:backfill=false"
    assert [item["policy"] for item in document["policies"]] == [
        "fifo",
        "fifo:backfill=false",
        "srtf",
    ]
    assert len(document["runs"]) == 3 * 2 * 2
    (fifo, itself, _srtf) = document["policies"]
    assert (fifo["jobs"], fifo["completed"], fifo["refused"]) == (52, 50, 2)
    assert set(fifo["figures"]) == set(METRICS)
    assert fifo["figures"]["avg_jct_h"]["ratio"]["pairs"] == 4
    assert itself["figures"]["avg_jct_h"]["ratio"]["mean"] == 1.0
    assert "the policy saw: observed performance, declared sizes" in text
    assert re.search(r"srtf .*x0\.\d+ \[", text)


def without_clocks(path):
    document = json.loads(path.read_text())
    for run in document["runs"]:
        del run["wall_s"], run["policy_ms"]
    return document


@pytest.mark.timeout(400)  # each process imports everything anew, beside whatever else runs
def test_the_outcome_is_the_same_on_any_number_of_processes(workloads, tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    conditions = {"node_mtbf": 0.2, "node_repair": 0.05, "estimate_noise": 0.4, "seeds": [3, 4]}

    compared(workloads, json=one, jobs=1, **conditions)
    compared(workloads, json=two, jobs=2, **conditions)

    assert without_clocks(one) == without_clocks(two)
    assert sum(run["failures"] for run in without_clocks(one)["runs"]) > 0


class Tags(HTMLParser):
    """The elements of a page, what they point to, and the texts of its scripts."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.links = []
        self.attributes = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _value in attrs]
        self.links += [value for name, value in attrs if name in {"src", "href"}]


def test_the_report_needs_no_network_and_runs_nothing_that_a_trace_says(workloads, tmp_path):
    page = tmp_path / "report.html"

    compared(workloads, html=page)

    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.links == []
    assert tags.tags.count("script") == 4
    assert "img" not in tags.tags
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert HOSTILE not in text
    assert "<script>alert" not in text
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert "url(" not in text.split("</style>")[0]
    charts = re.search(r'<script id="charts" type="application/json">(.*?)</script>', text)
    assert charts is not None
    names = {name for run in json.loads(charts[1])["runs"] for name in run["names"]}
    assert any(name.startswith("&lt;/script&gt;") for name in names)
    assert not any("<" in name for name in names)


def test_every_chart_of_the_report_has_a_sentence_and_a_table(workloads, tmp_path):
    page = tmp_path / "report.html"

    compared(workloads, html=page)

    text = " ".join(page.read_text().split())
    charts = re.findall(r'<div class="chart" id="([a-z-]+)" role="img" aria-label="([^"]+)"', text)
    assert len(charts) == 7
    assert all("table" in sentence for _name, sentence in charts)
    assert len(re.findall(r"<table>", text)) == 5
    assert "1 lines" not in text
    assert text.count(">refused<") == 0
    assert ">Refused<" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": ["lottery"]}, "policy 'lottery' not found"),
        ({"policy": ["fifo:colour=red"]}, "policy fifo has no parameter 'colour'"),
        ({"policy": ["fifo", "fifo"]}, "fifo is given twice"),
        ({"baseline": "sia"}, "--baseline is 'sia'; use one of the policies given"),
        ({"cluster": "a:2"}, "'a:2' is not of the form"),
        ({"cluster": None}, "give --cluster"),
        ({"jobs": 0}, "--jobs is 0; use 1 to 256"),
        ({"seeds": [1, 1]}, "1 is given twice"),
        ({"node_mtbf": 0.0}, "--node-mtbf is 0; use 0.01 to 1e"),
        ({"estimate_noise": float("nan")}, "--estimate-noise is nan"),
        ({"rules": "sia", "node_mtbf": 5.0}, "need --rules events"),
        ({"guarantee": ["x"]}, "--guarantee: 'x' is not of the form"),
        ({"guarantee": ["x=a:9"]}, "9 nodes of a are guaranteed, but the cluster has 2"),
        ({"guarantee": ["x=a:1"], "rules": "sia"}, "--guarantee needs --rules events"),
        ({"workload": [Path("nowhere.csv")]}, "cannot read or write"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(workloads, changes, message):
    with pytest.raises(CommandError, match=message):
        compared(workloads, **changes)


def test_a_bad_line_is_named_and_comes_whole_from_another_process(workloads):
    workloads[1].write_text(HEADER + "a,-1,5,1\n")

    with pytest.raises(CommandError, match=r"w2.csv:2: submission_time is -1; use at least 0"):
        compared(workloads)
    error = pickle.loads(pickle.dumps(TraceError("w2.csv", 2, "is wrong")))
    assert (str(error), error.source, error.line) == ("w2.csv:2: is wrong", "w2.csv", 2)
