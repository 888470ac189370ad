"""New jobs let costly rounds rest; everything else, and a small cluster, does not wait."""

from typing import Any

import pytest

from portal import wiring
from portal.pace import MOST_SECONDS, Pace, rest_left
from scheduling import tasks
from scheduling.tasks import run_round
from tests.support.broker import Broker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker().installed(monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> list[tuple[str, float]]:
    """Cause and wait of each round that is put on the queue."""
    rounds: list[tuple[str, float]] = []

    def enqueue(*, kwargs: dict[str, str], countdown: float, **_: Any) -> None:
        rounds.append((kwargs["cause"], countdown))

    monkeypatch.setattr(run_round, "apply_async", enqueue)
    return rounds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(wiring, "_pace", Pace(lambda: now[0]))
    return now


def run(clock: list[float], seconds: float) -> None:
    """A round of this process, as its signals tell of it."""
    wiring.forget_wanted_round()
    clock[0] += seconds
    wiring.let_rounds_rest()


def test_after_a_costly_round_new_jobs_wait_as_long_as_it_took(
    broker: Broker, asked: list[Any], clock: list[float]
) -> None:
    run(clock, 0.6)

    wiring.enqueue_round(cause="submit")
    wiring.enqueue_round(cause="submit")

    assert asked == [("submit", 0.6)]
    assert broker.pttl(wiring.ROUND_WANTED_KEY) > 600, "others must not ask again meanwhile"


def test_new_jobs_that_come_during_a_costly_round_let_the_next_one_rest_too(
    asked: list[Any], clock: list[float]
) -> None:
    run(clock, 0.6)
    wiring.forget_wanted_round()  # the next round begins

    wiring.enqueue_round(cause="submit")

    assert asked == [("submit", 1.2)]


def test_a_rest_has_an_end(broker: Broker, clock: list[float]) -> None:
    run(clock, 60.0)

    assert rest_left(broker) == MOST_SECONDS  # type: ignore[arg-type]


def test_a_small_cluster_starts_new_jobs_at_once(asked: list[Any], clock: list[float]) -> None:
    run(clock, 0.02)

    wiring.enqueue_round(cause="submit")

    assert asked == [("submit", 0.0)]


def test_what_frees_devices_does_not_wait_for_the_rest_of_new_jobs(
    asked: list[Any], clock: list[float]
) -> None:
    run(clock, 0.6)

    for cause in ("submit", "exit", "exit", "submit"):
        wiring.enqueue_round(cause=cause)

    assert asked == [("submit", 0.6), ("exit", 0.0)]


def test_who_comes_while_a_resting_round_is_claimed_does_not_rest_with_it(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, asked: list[Any], clock: list[float]
) -> None:
    run(clock, 0.6)
    store = broker.set

    def and_then_a_job_ends(key: str, value: Any, **options: Any) -> bool | None:
        claimed = store(key, value, **options)
        if key == wiring.ROUND_WANTED_KEY and options.get("nx"):
            monkeypatch.setattr(broker, "set", store)
            wiring.enqueue_round(cause="exit")
        return claimed

    monkeypatch.setattr(broker, "set", and_then_a_job_ends)

    wiring.enqueue_round(cause="submit")

    assert sorted(asked) == [("exit", 0.0), ("submit", 0.6)]


def test_rounds_that_have_become_quick_need_no_rest_any_more(
    asked: list[Any], clock: list[float]
) -> None:
    run(clock, 0.6)
    run(clock, 0.1)

    wiring.enqueue_round(cause="submit")
    wiring.forget_wanted_round()  # the next round begins
    wiring.enqueue_round(cause="submit")

    assert asked == [("submit", 0.0), ("submit", 0.0)]


def test_a_round_that_was_overtaken_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, clock: list[float]
) -> None:
    queue: list[dict[str, Any]] = []
    begun: list[str] = []
    monkeypatch.setattr(run_round, "apply_async", lambda *, kwargs, **_: queue.append(kwargs))
    run(clock, 0.6)

    for _ in range(20):  # new jobs and ends of others come during each round
        wiring.enqueue_round(cause="submit")
        wiring.enqueue_round(cause="exit")
        wanted = queue.pop(0)
        if not wiring.has_been_overtaken(after=wanted["after"]):
            begun.append(wanted["cause"])
            run(clock, 0.6)

    assert len(queue) <= 2, "rounds that nobody needs any more would pile up"
    assert len(begun) >= 10


@pytest.mark.parametrize(("is_again", "begins"), [(False, False), (True, True)])
def test_a_round_that_comes_again_since_its_worker_died_begins(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, is_again: bool, begins: bool
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(tasks.nodes, "finish_drains", lambda **_: None)
    monkeypatch.setattr(tasks.tuning, "choose_batches", lambda **_: None)
    monkeypatch.setattr(tasks.rounds, "run_round", lambda *, cause, **_: begun.append(cause))
    monkeypatch.setattr(tasks.round_begins, "send_robust", lambda **_: [])
    broker.incr(wiring.ROUNDS_BEGUN_KEY)
    run_round.push_request(delivery_info={"redelivered": is_again})

    try:
        run_round(cause="exit", after=0)
    finally:
        run_round.pop_request()

    assert begun == ["exit"] * begins
