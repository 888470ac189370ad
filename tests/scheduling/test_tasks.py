"""Requests of the scheduling tasks by their ports, and tasks that do nothing."""

import time
from dataclasses import dataclass, field

import pytest

from scheduling import ports, tasks
from scheduling.estimates.services import estimates
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.tasks import estimate_new_waits, run_round
from tenants.clock import database_now
from tests.factories.scheduling import make_two_tenants, start, submit
from tests.factories.scheduling import run_round as commit_round
from tests.support.interleaving import before_query, raising
from tests.support.request_ports import Requested

pytestmark = pytest.mark.django_db


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


class Clock:
    """The monotonic clock of this process; it advances by hand alone."""

    seconds = 100.0

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: found.seconds)
    return found


def submit_and_wait() -> Job:
    """A job that a round has left waiting."""
    job = submit(devices=8)
    commit_round(database_now())
    return job


@pytest.fixture
def waiting() -> Job:
    """A job that waits for devices of a cluster in which all are in use."""
    make_two_tenants(nodes=2)
    start(submit(devices=8, max_duration="30m"))
    return submit_and_wait()


WRITES_ESTIMATES = 'FROM "scheduling_estimaterecord"'
READS_NEW_WAITS = "LIMIT 1000"


def test_no_other_estimation_begins_during_one_and_for_four_times_as_long_afterwards(
    clock: Clock, recorded: list[object]
) -> None:
    def estimate() -> None:
        recorded.append("estimating")
        clock.advance(7.0)

    with before_query('FROM "scheduling_job"', estimate):
        tasks.estimate_starts()

    assert recorded == [("rest", tasks.MOST_ESTIMATING), "estimating", ("rest", 28.0)]


def test_new_waits_rest_four_times_as_long(
    clock: Clock, waiting: Job, recorded: list[object]
) -> None:
    with before_query(WRITES_ESTIMATES, lambda: clock.advance(0.5)):
        estimate_new_waits()

    assert recorded == ["begin", ("finish", 2.0)]


def test_new_waits_that_came_during_the_estimation_are_requested_again(
    clock: Clock, waiting: Job, recorded: list[object]
) -> None:
    with before_query(WRITES_ESTIMATES, submit_and_wait):
        estimate_new_waits()

    assert recorded == ["begin", ("finish", 0.0), "request new waits"]


def test_new_waits_whose_results_were_not_stored_are_not_requested_again(
    clock: Clock, waiting: Job, recorded: list[object]
) -> None:
    amended = Job.objects.unscoped().filter(pk=waiting.pk)

    with before_query(WRITES_ESTIMATES, lambda: amended.update(amendments=1)):
        estimate_new_waits()

    assert estimates.new_waits() == {waiting.pk}
    assert recorded == ["begin", ("finish", 0.0)]


def test_a_round_that_ends_while_others_are_looked_for_requests_by_itself(
    waiting: Job, requested: Requested
) -> None:
    requested.estimates.clear()

    def end_of_a_round() -> None:
        ports.bound().estimates.request_new_waits()

    with before_query(READS_NEW_WAITS, end_of_a_round, number=2):
        estimate_new_waits()

    assert [one.new_waits for one in requested.estimates] == [True]


def test_a_task_that_fails_lets_the_next_one_begin(clock: Clock, recorded: list[object]) -> None:
    def fail() -> None:
        clock.advance(0.5)
        raise RuntimeError("no database")

    with before_query('FROM "scheduling_job"', fail), pytest.raises(RuntimeError):
        estimate_new_waits()

    assert recorded == ["begin", ("finish", 2.0)]


def causes() -> list[str]:
    """Causes of the rounds that have been committed."""
    return list(Round.objects.order_by("number").values_list("cause", flat=True))


@pytest.fixture
def cluster(requested: Requested) -> Requested:
    make_two_tenants(nodes=2)
    submit()
    return requested


@pytest.mark.parametrize(("is_again", "begins"), [(False, False), (True, True)])
@pytest.mark.usefixtures("cluster")
def test_a_round_that_is_delivered_again_since_its_worker_died_begins(
    is_again: bool, begins: bool
) -> None:
    ports.bound().rounds.begin()
    run_round.push_request(delivery_info={"redelivered": is_again})  # type: ignore[call-arg]  # the stubs name no field

    try:
        run_round(cause="exit", after=0)
    finally:
        run_round.pop_request()

    assert causes() == ["exit"] * begins


@pytest.mark.usefixtures("cluster")
def test_sweeps_that_cannot_be_fed_stop_no_round(caplog: pytest.LogCaptureFixture) -> None:
    with before_query('FROM "scheduling_sweep"', raising(RuntimeError("no such sweep"))):
        run_round(cause="exit")

    assert causes() == ["exit"]
    assert "no sweep jobs were released" in caplog.text


def test_new_jobs_rest_after_a_costly_round(cluster: Requested) -> None:
    def take_a_second() -> None:
        cluster.seconds += 1.0

    with before_query('INSERT INTO "scheduling_round"', take_a_second):
        run_round(cause="exit")
    ports.bound().rounds.request("submit")

    assert cluster.rounds[-1].countdown == 1.0
