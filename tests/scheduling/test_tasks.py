"""What tasks of the scheduling room request by their ports, and when they do nothing."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from scheduling import ports, tasks
from scheduling.estimates.services import estimates
from scheduling.tasks import estimate_new_waits, run_round
from tests.support.request_ports import Requested


@dataclass
class RecordedEstimates:
    """Implements `scheduling.ports.EstimateRequests`; notes its calls."""

    calls: list[object] = field(default_factory=list)

    def request(self, *, changed: bool) -> None:
        self.calls.append(("request", changed))

    def rest(self, seconds: float) -> None:
        self.calls.append(("rest", seconds))

    def request_new_waits(self) -> None:
        self.calls.append("request new waits")

    def begin_new_waits(self) -> None:
        self.calls.append("begin")

    def finish_new_waits(self, *, rest_seconds: float) -> None:
        self.calls.append(("finish", rest_seconds))


@pytest.fixture
def recorded(requested: Requested) -> list[object]:
    """Calls of the port of estimates."""
    port, others = RecordedEstimates(), ports.bound()
    ports.bind(ports.RequestPorts(rounds=others.rounds, estimates=port, what_ifs=others.what_ifs))
    return port.calls


def took(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    clock = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr(tasks, "monotonic", lambda: next(clock))


def test_estimates_keep_others_off_while_they_are_made_and_four_times_as_long(
    monkeypatch: pytest.MonkeyPatch, recorded: list[object]
) -> None:
    took(monkeypatch, 7.0)
    monkeypatch.setattr(estimates, "estimate_starts", lambda **_: recorded.append("made"))

    tasks.estimate_starts()

    assert recorded == [("rest", tasks.MOST_ESTIMATING), "made", ("rest", 28.0)]


@pytest.mark.parametrize(("left", "more"), [({5, 6}, False), ({5, 6, 7}, True), (set(), False)])
def test_new_waits_rest_four_times_as_long_and_are_requested_again_if_others_have_come(
    monkeypatch: pytest.MonkeyPatch, recorded: list[object], left: set[int], more: bool
) -> None:
    took(monkeypatch, 0.5)
    monkeypatch.setattr(estimates, "estimate_new_waits", lambda **_: frozenset({5, 6}))
    monkeypatch.setattr(estimates, "new_waits", lambda: frozenset(left))

    estimate_new_waits()

    assert recorded == ["begin", ("finish", 2.0), *(["request new waits"] * more)]


def test_a_round_that_ends_while_others_are_looked_for_requests_by_itself(
    monkeypatch: pytest.MonkeyPatch, requested: Requested
) -> None:
    def new_waits() -> frozenset[int]:
        ports.bound().estimates.request_new_waits()
        return frozenset()

    monkeypatch.setattr(estimates, "estimate_new_waits", lambda **_: frozenset({5}))
    monkeypatch.setattr(estimates, "new_waits", new_waits)

    estimate_new_waits()

    assert [one.new_waits for one in requested.estimates] == [True]


def test_a_task_that_fails_lets_the_next_one_come(
    monkeypatch: pytest.MonkeyPatch, recorded: list[object]
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("no database")

    took(monkeypatch, 0.5)
    monkeypatch.setattr(estimates, "estimate_new_waits", fail)

    with pytest.raises(RuntimeError):
        estimate_new_waits()

    assert recorded == ["begin", ("finish", 2.0)]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Causes of the rounds that are run."""
    causes: list[str] = []
    monkeypatch.setattr(tasks.nodes, "finish_drains", lambda *, now: None)
    monkeypatch.setattr(tasks.tuning, "choose_batches", lambda *, now: None)
    monkeypatch.setattr(tasks.rounds, "run_round", lambda *, cause, **_: causes.append(cause))
    monkeypatch.setattr(tasks.sweeps, "feed_sweeps", lambda: 0)
    monkeypatch.setattr(tasks, "database_now", lambda: datetime(2026, 11, 23, tzinfo=UTC))
    return causes


@pytest.mark.parametrize(("is_again", "begins"), [(False, False), (True, True)])
def test_a_round_that_comes_again_since_its_worker_died_begins(
    begun: list[str], requested: Requested, is_again: bool, begins: bool
) -> None:
    ports.bound().rounds.begin()
    run_round.push_request(delivery_info={"redelivered": is_again})

    try:
        run_round(cause="exit", after=0)
    finally:
        run_round.pop_request()

    assert begun == ["exit"] * begins


def test_a_sweep_that_cannot_be_fed_stops_no_round(
    monkeypatch: pytest.MonkeyPatch,
    begun: list[str],
    requested: Requested,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> int:
        raise RuntimeError("no such sweep")

    monkeypatch.setattr(tasks.sweeps, "feed_sweeps", fail)

    run_round(cause="exit")

    assert begun == ["exit"]
    assert "no sweep was fed" in caplog.text


def test_a_costly_round_lets_new_jobs_rest(
    monkeypatch: pytest.MonkeyPatch, begun: list[str], requested: Requested
) -> None:
    def take_a_second(*, cause: str, **_: object) -> None:
        requested.seconds += 1.0

    monkeypatch.setattr(tasks.rounds, "run_round", take_a_second)

    run_round(cause="exit")
    ports.bound().rounds.request("submit")

    assert [one.countdown for one in requested.rounds] == [1.0]
