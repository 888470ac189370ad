"""Calls of MLflow: values become lines of reports; everything else is refused clearly."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.reports import LONGEST_LINE
from tessera.node.tracking import mlflow_api
from tessera.node.tracking.mlflow_api import Answer, TrackingApi

ROOT = "/api/2.0/mlflow/"


class Client:
    """Calls the API, and collects its lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.api = TrackingApi(self._take, lambda: 1000.0)

    def _take(self, line: bytes) -> None:
        self.sizes.append(len(line))
        self.lines.append(json.loads(line))

    def post(self, call: str, **body: Any) -> Answer:
        return self.api.answer("POST", ROOT + call, {}, json.dumps(body).encode())

    def get(self, call: str, **query: str) -> Answer:
        return self.api.answer("GET", ROOT + call, query, b"")

    def create(self, **body: Any) -> str:
        found = self.post("runs/create", experiment_id="0", **body)
        assert found.status == 200, found
        return str(found.body["run"]["info"]["run_id"])

    def points(self) -> list[Any]:
        return [point for line in self.lines for point in line.get("points", [])]


@pytest.fixture
def client() -> Client:
    return Client()


def test_a_run_gets_metrics_parameters_and_tags(client: Client) -> None:
    run = client.create(run_name="first", tags=[{"key": "team", "value": "vision"}])
    client.post("runs/log-metric", run_id=run, key="loss", value=0.5, step="3", timestamp=2000)
    client.post(
        "runs/log-batch",
        run_id=run,
        metrics=[
            {"key": "acc", "value": "NaN", "step": 4, "timestamp": 3000},
            {"key": "f1", "value": 1, "step": 4, "timestamp": 3000},
        ],
        params=[{"key": "lr", "value": "0.1"}],
    )
    client.post("runs/log-parameter", run_id=run, key="depth", value="4")
    client.post("runs/set-tag", run_id=run, key="stage", value="two")

    assert client.points() == [
        [3, 2.0, None, {"loss": 0.5}],
        [4, 3.0, None, {"acc": "nan", "f1": 1.0}],
    ]
    found = client.get("runs/get", run_id=run).body["run"]
    assert found["info"]["run_name"] == "first"
    assert {one["key"]: one["value"] for one in found["data"]["params"]} == {
        "lr": "0.1",
        "depth": "4",
    }
    assert {one["key"] for one in found["data"]["tags"]} == {"team", "mlflow.runName", "stage"}
    events = [line for line in client.lines if line.get("event") == mlflow_api.EVENT]
    assert [line["params"] for line in events] == [{}, {"lr": "0.1"}, {"depth": "4"}, {}]
    assert {line["run"] for line in events} == {run}


def test_each_run_of_a_rank_is_a_series_of_its_own(client: Client) -> None:
    for _ in range(2):
        run = client.create()
        client.post("runs/log-metric", run_id=run, key="loss", value=1.0, step=1)

    assert [line.get("local_rank") for line in client.lines if "points" in line] == [None, 1]


def test_the_end_of_a_run_is_reported(client: Client) -> None:
    run = client.create()
    answer = client.post("runs/update", run_id=run, status="FINISHED", end_time=5000)

    assert answer.body["run_info"]["status"] == "FINISHED"
    assert answer.body["run_info"]["end_time"] == 5000
    assert client.lines[-1]["status"] == "finished"
    assert client.post("runs/update", run_id=run, status="LOST").status == 400


def test_experiments_are_created_found_and_listed(client: Client) -> None:
    number = client.post("experiments/create", name="digits").body["experiment_id"]

    assert client.post("experiments/create", name="digits").status == 400
    assert (
        client.get("experiments/get-by-name", experiment_name="digits").body["experiment"][
            "experiment_id"
        ]
        == number
    )
    assert client.get("experiments/get-by-name", experiment_name="x").status == 404
    assert len(client.post("experiments/search").body["experiments"]) == 2
    run = client.create()
    assert (
        client.post("runs/search", experiment_ids=["0"]).body["runs"][0]["info"]["run_id"] == run
    )
    assert client.post("runs/search", experiment_ids=["0"], filter="x = 1").status == 400


def test_a_run_of_an_earlier_attempt_is_continued(client: Client) -> None:
    known = "0123456789abcdef" * 2

    assert client.get("runs/get", run_id=known).status == 200
    assert client.post("runs/log-metric", run_id=known, key="x", value=1, step=1).status == 200
    assert client.get("runs/get", run_id="../secrets").status == 404


def test_artifacts_and_unknown_calls_are_refused_clearly(client: Client) -> None:
    run = client.create()
    info = client.get("runs/get", run_id=run).body["run"]["info"]

    assert info["artifact_uri"].startswith("tessera-artifacts-are-not-supported:")
    for method, path in (
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/0/x"),
        ("GET", "/api/2.0/mlflow/artifacts/list"),
    ):
        answer = client.api.answer(method, path, {}, b"")
        assert (answer.status, answer.body["error_code"]) == (501, "NOT_IMPLEMENTED")
        assert "Artifacts are not supported" in answer.body["message"]
    for call in ("runs/delete", "registered-models/create", "../secrets"):
        assert client.post(call).body["error_code"] == "ENDPOINT_NOT_FOUND"


@pytest.mark.parametrize(
    "body",
    [
        {"key": "loss", "value": "high", "step": 1},
        {"key": "", "value": 1.0, "step": 1},
        {"key": "loss", "value": 1.0, "step": -1},
        {"key": "loss", "value": True, "step": 1},
        {"key": ["loss"], "value": 1.0},
    ],
)
def test_a_metric_that_is_not_valid_is_refused(client: Client, body: dict[str, Any]) -> None:
    run = client.create()

    assert client.post("runs/log-metric", run_id=run, **body).status == 400
    assert client.points() == []


def test_everything_a_job_stores_is_bounded(client: Client) -> None:
    runs = [client.create() for _ in range(mlflow_api.MOST_RUNS)]
    assert client.post("runs/create", experiment_id="0").status == 400
    many = [{"key": f"k{number}", "value": "v" * 9000} for number in range(300)]
    assert client.post("runs/log-batch", run_id=runs[0], params=many).status == 400
    fine = client.post("runs/log-batch", run_id=runs[0], params=many[: mlflow_api.MOST_PARAMETERS])
    assert fine.status == 200
    one = [{"key": "one-more", "value": "v"}]
    assert client.post("runs/log-batch", run_id=runs[0], params=one).status == 400
    metrics = [{"key": f"m{number}", "value": 1.0, "step": 1} for number in range(129)]
    assert client.post("runs/log-batch", run_id=runs[0], metrics=metrics).status == 400
    assert client.post("runs/set-tag", run_id=runs[0], key="k" * 251, value="").status == 400
    created = [client.post("experiments/create", name=f"e{number}") for number in range(20)]
    assert [answer.status for answer in created].count(200) == mlflow_api.MOST_EXPERIMENTS - 1


def test_lines_of_any_text_fit_into_a_report(client: Client) -> None:
    run = client.create()
    pairs = [{"key": "\U0001f600" * 120 + str(n), "value": "\0" * 500} for n in range(200)]

    assert client.post("runs/log-batch", run_id=run, params=pairs).status == 200
    assert max(client.sizes) <= LONGEST_LINE
    assert sum(len(line.get("params", {})) for line in client.lines) == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(["run_id", "key", "value", "step", "metrics", "params", "tags", "name"])
CALLS = st.sampled_from([call for _, call in TrackingApi(print, float)._calls])


@given(CALLS, st.dictionaries(FIELDS, JSON, max_size=5))
def test_no_body_raises_an_error(call: str, body: dict[str, Any]) -> None:
    client = Client()
    body.setdefault("run_id", client.create())

    answer = client.api.answer("POST", ROOT + call, {}, json.dumps(body).encode())

    assert answer.status in (200, 400, 404)
    json.dumps(answer.body, allow_nan=False)


def test_values_that_are_not_finite_come_back_as_texts(client: Client) -> None:
    run = client.create()
    client.post("runs/log-metric", run_id=run, key="a", value="-Infinity", step=1)

    (metric,) = client.get("runs/get", run_id=run).body["run"]["data"]["metrics"]
    assert metric["value"] == "-Infinity"
    assert math.isinf(float(client.points()[0][3]["a"]))
