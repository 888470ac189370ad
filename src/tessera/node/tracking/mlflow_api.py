"""The calls of MLflow's tracking API that a job may make; answers are values, without I/O.

Metrics, parameters and tags become lines of reports. Only what ``runs/get`` returns is stored
here: an unknown run or experiment of a valid ID is adopted, since a resumed script continues a
run that it created in an earlier attempt.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from tessera.node.tracking.lines import MOST_LINE_BYTES, Value, metric_name, report_lines

EVENT = "tracked-run"
MOST_RUNS, MOST_EXPERIMENTS = 32, 16
MOST_PARAMETERS, MOST_TAGS, MOST_NAMES = 200, 100, 128
MOST_METRICS_A_BATCH = 1000
LONGEST_KEY, LONGEST_VALUE, LONGEST_NAME = 250, 500, 200
LARGEST_STEP = 1 << 53
NO_ARTIFACTS = (
    "Artifacts are not supported. Write files to the directory in TESSERA_JOB_CHECKPOINT_DIR."
)
ARTIFACT_SCHEME = "tessera-artifacts-are-not-supported"
"""No client has a store for this scheme, so a call for artifacts fails before any transfer."""
STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
_PREFIXES = ("/api/2.0/", "/ajax-api/2.0/")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_EXPERIMENT_ID = re.compile(r"[0-9]{1,19}")
_WORDS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf}

Json = Dict[str, Any]


class Answer(NamedTuple):
    """Status and body of a response."""

    status: int
    body: Json


class CallError(Exception):
    """A call is refused."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"error_code": code, "message": message})


@dataclass
class TrackedRun:
    """A run of MLflow within the run of a rank; ``process`` numbers them."""

    run_id: str
    experiment: str
    process: int
    name: str = ""
    status: str = "RUNNING"
    started: int = 0
    ended: Optional[int] = None
    metrics: Dict[str, Json] = field(default_factory=dict)
    parameters: Dict[str, str] = field(default_factory=dict)
    tags: Dict[str, str] = field(default_factory=dict)

    def info(self) -> Json:
        """Return the message ``RunInfo``."""
        found: Json = {
            "run_id": self.run_id,
            "run_uuid": self.run_id,
            "run_name": self.name,
            "experiment_id": self.experiment,
            "user_id": self.tags.get("mlflow.user", ""),
            "status": self.status,
            "start_time": self.started,
            "artifact_uri": f"{ARTIFACT_SCHEME}:/{self.run_id}",
            "lifecycle_stage": "active",
        }
        return found if self.ended is None else {**found, "end_time": self.ended}

    def to_json(self) -> Json:
        """Return the message ``Run``."""
        data = {
            "metrics": list(self.metrics.values()),
            "params": _pairs(self.parameters),
            "tags": _pairs(self.tags),
        }
        return {"info": self.info(), "data": data, "inputs": {}}


def _pairs(found: Dict[str, str]) -> List[Json]:
    return [{"key": key, "value": value} for key, value in found.items()]


class TrackingApi:
    """The calls of one run's jobs.

    Args:
        emit: takes a line of reports.
        clock: seconds since the epoch.
    """

    def __init__(self, emit: Callable[[bytes], None], clock: Callable[[], float]) -> None:
        self._emit, self._clock = emit, clock
        self._experiments: Dict[str, str] = {"0": "Default"}
        self._runs: Dict[str, TrackedRun] = {}
        self._calls: Dict[Tuple[str, str], Callable[[Json], Json]] = {
            ("POST", "experiments/create"): self._create_experiment,
            ("GET", "experiments/get"): self._get_experiment,
            ("GET", "experiments/get-by-name"): self._get_experiment_by_name,
            ("POST", "experiments/search"): self._search_experiments,
            ("GET", "experiments/search"): self._search_experiments,
            ("POST", "experiments/set-experiment-tag"): lambda _: {},
            ("POST", "runs/create"): self._create_run,
            ("GET", "runs/get"): lambda given: {"run": self._run(given).to_json()},
            ("POST", "runs/update"): self._update_run,
            ("POST", "runs/search"): self._search_runs,
            ("POST", "runs/log-metric"): self._log_metric,
            ("POST", "runs/log-batch"): self._log_batch,
            ("POST", "runs/log-parameter"): self._log_parameter,
            ("POST", "runs/set-tag"): self._set_tag,
            ("POST", "runs/delete-tag"): self._delete_tag,
            ("POST", "runs/log-inputs"): self._log_inputs,
        }

    def answer(self, method: str, path: str, query: Dict[str, str], body: bytes) -> Answer:
        """Return the response to a request; never raises."""
        try:
            call = self._call(method, path)
            given = query if method == "GET" else _parsed(body)
            return Answer(200, call(given))
        except CallError as error:
            return error.answer

    def _call(self, method: str, path: str) -> Callable[[Json], Json]:
        if "artifacts" in path:
            raise CallError(501, "NOT_IMPLEMENTED", NO_ARTIFACTS)
        rest = next((path[len(one) :] for one in _PREFIXES if path.startswith(one)), "")
        call = self._calls.get((method, rest[len("mlflow/") :]))
        if call is None or not rest.startswith("mlflow/"):
            message = f"{method} {path[:100]} is not one of the supported calls of MLflow."
            raise CallError(404, "ENDPOINT_NOT_FOUND", message)
        return call

    # -- experiments ---------------------------------------------------------------------------

    def _create_experiment(self, given: Json) -> Json:
        name = _text(given, "name", LONGEST_NAME)
        if not name:
            raise _invalid("An experiment needs a name.")
        if name in self._experiments.values():
            raise CallError(400, "RESOURCE_ALREADY_EXISTS", f"Experiment {name!r} exists already.")
        number = str(max(map(int, self._experiments)) + 1)
        self._add_experiment(number, name)
        return {"experiment_id": number}

    def _add_experiment(self, number: str, name: str) -> None:
        if len(self._experiments) >= MOST_EXPERIMENTS:
            raise _invalid(f"A job has at most {MOST_EXPERIMENTS} experiments.")
        self._experiments[number] = name

    def _known_experiment(self, number: str) -> str:
        if number not in self._experiments:
            if not _EXPERIMENT_ID.fullmatch(number):
                raise _missing("experiment", number)
            self._add_experiment(number, f"experiment {number}")
        return number

    def _get_experiment(self, given: Json) -> Json:
        number = self._known_experiment(_text(given, "experiment_id", 20) or "0")
        return {"experiment": self._experiment(number)}

    def _get_experiment_by_name(self, given: Json) -> Json:
        name = _text(given, "experiment_name", LONGEST_NAME)
        for number, known in self._experiments.items():
            if known == name:
                return {"experiment": self._experiment(number)}
        raise _missing("experiment", name)

    def _search_experiments(self, given: Json) -> Json:
        _refuse_filter(given)
        return {"experiments": [self._experiment(number) for number in self._experiments]}

    def _experiment(self, number: str) -> Json:
        return {
            "experiment_id": number,
            "name": self._experiments[number],
            "artifact_location": f"{ARTIFACT_SCHEME}:/",
            "lifecycle_stage": "active",
        }

    # -- runs ----------------------------------------------------------------------------------

    def _create_run(self, given: Json) -> Json:
        experiment = self._known_experiment(_text(given, "experiment_id", 20) or "0")
        run = self._add_run(uuid.uuid4().hex, experiment)
        run.started = _whole(given.get("start_time")) or int(1000 * self._clock())
        run.tags = _read_pairs(given.get("tags"), MOST_TAGS)
        name = _text(given, "run_name", LONGEST_NAME) or run.tags.get("mlflow.runName", "")
        run.name = name or f"run-{run.process}"
        run.tags.setdefault("mlflow.runName", run.name)
        self._report(run, {}, run.tags)
        return {"run": run.to_json()}

    def _add_run(self, run_id: str, experiment: str) -> TrackedRun:
        if len(self._runs) >= MOST_RUNS:
            raise _invalid(f"A rank has at most {MOST_RUNS} runs of MLflow in an attempt.")
        run = self._runs[run_id] = TrackedRun(run_id, experiment, len(self._runs))
        return run

    def _run(self, given: Json) -> TrackedRun:
        run_id = _text(given, "run_id", 100) or _text(given, "run_uuid", 100)
        run = self._runs.get(run_id)
        if run is None:
            if not _RUN_ID.fullmatch(run_id):
                raise _missing("run", run_id)
            run = self._add_run(run_id, "0")  # of an earlier attempt
            run.started = int(1000 * self._clock())
        return run

    def _update_run(self, given: Json) -> Json:
        run = self._run(given)
        status = _text(given, "status", 20)
        if status and status not in STATUSES:
            raise _invalid(f"Unknown status {status!r}. Use one of {', '.join(STATUSES)}.")
        run.status = status or run.status
        run.ended = _whole(given.get("end_time")) or run.ended
        run.name = _text(given, "run_name", LONGEST_NAME) or run.name
        self._report(run, {}, {})
        return {"run_info": run.info()}

    def _search_runs(self, given: Json) -> Json:
        _refuse_filter(given)
        wanted = given.get("experiment_ids")
        numbers = [str(one) for one in wanted] if isinstance(wanted, list) else []
        found = [run.to_json() for run in self._runs.values() if run.experiment in numbers]
        return {"runs": found}

    # -- values --------------------------------------------------------------------------------

    def _log_metric(self, given: Json) -> Json:
        run = self._run(given)
        self._add_metrics(run, [given])
        return {}

    def _log_parameter(self, given: Json) -> Json:
        return self._add_values(self._run(given), [given], [])

    def _set_tag(self, given: Json) -> Json:
        return self._add_values(self._run(given), [], [given])

    def _log_inputs(self, given: Json) -> Json:
        """Accept descriptions of data sets, which autologging sends; they are not stored."""
        self._run(given)
        return {}

    def _log_batch(self, given: Json) -> Json:
        run = self._run(given)
        metrics = _objects(given.get("metrics"), MOST_METRICS_A_BATCH)
        self._add_values(run, given.get("params"), given.get("tags"))
        self._add_metrics(run, metrics)
        return {}

    def _delete_tag(self, given: Json) -> Json:
        run, key = self._run(given), _text(given, "key", LONGEST_KEY)
        if run.tags.pop(key, None) is None:
            raise _missing("tag", key)
        self._report(run, {}, {key: ""})
        return {}

    def _add_values(self, run: TrackedRun, params: object, tags: object) -> Json:
        parameters = _read_pairs(params, MOST_PARAMETERS, known=run.parameters)
        found = _read_pairs(tags, MOST_TAGS, known=run.tags)
        run.parameters.update(parameters)
        run.tags.update(found)
        if parameters or found:
            self._report(run, parameters, found)
        return {}

    def _add_metrics(self, run: TrackedRun, found: List[Json]) -> None:
        values = [_metric(one, self._clock()) for one in found]
        names = {one.name for one in values} - run.metrics.keys()
        if len(names) + len(run.metrics) > MOST_NAMES:
            raise _invalid(f"A run has at most {MOST_NAMES} metrics.")
        for one in values:
            run.metrics[one.name] = {
                "key": one.name,
                "value": one.value if math.isfinite(one.value) else _word(one.value),
                "timestamp": int(1000 * one.time),
                "step": one.step,
            }
        for line in report_lines(values, process=run.process):
            self._emit(line)

    def _report(self, run: TrackedRun, params: Dict[str, str], tags: Dict[str, str]) -> None:
        """Emit changed parameters and tags, in lines of a bounded size."""
        for some, others in _pieces(params, tags):
            line = {
                "time": round(self._clock(), 3),
                "event": EVENT,
                "run": run.run_id,
                "process": run.process,
                "name": run.name,
                "status": run.status.lower(),
                "params": some,
                "tags": others,
            }
            self._emit(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")


def _pieces(
    params: Dict[str, str], tags: Dict[str, str]
) -> Iterator[Tuple[Dict[str, str], Dict[str, str]]]:
    parts: Tuple[Dict[str, str], Dict[str, str]] = ({}, {})
    size = 0
    for place, found in enumerate((params, tags)):
        for key, value in found.items():
            if size > MOST_LINE_BYTES - 16 * (LONGEST_KEY + LONGEST_VALUE):
                yield parts
                parts, size = ({}, {}), 0
            parts[place][key] = value
            size += 12 * (len(key) + len(value)) + 8  # JSON escapes take up to 12 bytes
    yield parts


def _parsed(body: bytes) -> Json:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _invalid("The body is not a JSON object.")
    return found


def _invalid(message: str) -> CallError:
    return CallError(400, "INVALID_PARAMETER_VALUE", message)


def _missing(what: str, name: str) -> CallError:
    return CallError(404, "RESOURCE_DOES_NOT_EXIST", f"No {what} {name[:100]!r} in this job.")


def _refuse_filter(given: Json) -> None:
    if given.get("filter"):
        raise _invalid("Filters are not supported; leave `filter` empty.")


def _text(given: Json, name: str, most: int) -> str:
    found = given.get(name)
    return found[:most] if isinstance(found, str) else ""


def _whole(value: object) -> int:
    """Return a number of int64, which JSON of protocol buffers may write as a text; 0 if none."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0
    return number if abs(number) <= LARGEST_STEP else 0


def _objects(found: object, most: int) -> List[Json]:
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _invalid("A list of objects is required.")
    if len(found) > most:
        raise _invalid(f"A call has at most {most} values.")
    return found


def _read_pairs(
    found: object, most: int, *, known: Optional[Dict[str, str]] = None
) -> Dict[str, str]:
    """Read keys and values; longer values are cut."""
    pairs: Dict[str, str] = {}
    for one in _objects(found, most):
        key, value = _text(one, "key", LONGEST_KEY + 1), one.get("value")
        if not key or len(key) > LONGEST_KEY:
            raise _invalid(f"A key has 1 to {LONGEST_KEY} characters.")
        pairs[key] = str("" if value is None else value)[:LONGEST_VALUE]
    if len({*pairs, *(known or {})}) > most:
        raise _invalid(f"A run has at most {most} parameters or tags of one kind.")
    return pairs


def _metric(given: Json, now: float) -> Value:
    name, value = metric_name(_text(given, "key", LONGEST_KEY)), _number(given.get("value"))
    step = _whole(given.get("step"))
    if not name or value is None:
        raise _invalid("A metric needs a key, and a number as its value.")
    if step < 0:
        raise _invalid("A step is at least 0.")
    return Value(name, step, _whole(given.get("timestamp")) / 1000 or now, value)


def _number(value: object) -> Optional[float]:
    if isinstance(value, str):
        sign = -1.0 if value.startswith("-") else 1.0
        word = _WORDS.get(value.lstrip("+-").lower())
        return None if word is None else sign * word
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
