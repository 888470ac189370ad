"""Who begins to wait is answered at once, by one task at a time that rests between."""

from collections.abc import Callable
from typing import Any

import pytest

from portal import wiring
from scheduling import tasks
from scheduling.services import estimates
from scheduling.signals import new_waits_begin, new_waits_end
from scheduling.tasks import estimate_new_waits
from tests.support.broker import Broker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker().installed(monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> list[float]:
    """Seconds for which each task waits on its queue."""
    found: list[float] = []
    monkeypatch.setattr(
        estimate_new_waits, "apply_async", lambda *, countdown, **_: found.append(countdown)
    )
    return found


def test_a_round_that_makes_jobs_wait_asks_at_once_and_others_do_not(asked: list[float]) -> None:
    wiring.answer_new_waits(number=1, changed=True, stored=True, new_waits=False)
    assert asked == []

    wiring.answer_new_waits(number=2, changed=False, stored=True, new_waits=True)

    assert asked == [0.0]


def test_many_rounds_ask_once_until_the_task_begins(asked: list[float]) -> None:
    for _ in range(5):
        wiring.answer_new_waits(new_waits=True)

    assert asked == [0.0]


def test_while_one_is_at_work_nobody_asks_and_it_asks_itself_for_those_who_came(
    asked: list[float],
) -> None:
    wiring.begin_new_waits()
    wiring.answer_new_waits(new_waits=True)
    assert asked == []

    wiring.end_new_waits(seconds=2.4, others=lambda: True)

    assert asked == [2.4]


def test_after_its_end_the_next_one_waits_for_the_rest_to_be_over(asked: list[float]) -> None:
    wiring.begin_new_waits()
    wiring.end_new_waits(seconds=1.2, others=lambda: False)

    wiring.answer_new_waits(new_waits=True)

    assert asked == [1.2]


def test_a_round_that_ends_while_it_is_looked_for_others_asks_itself(asked: list[float]) -> None:
    wiring.begin_new_waits()

    def others() -> bool:
        wiring.answer_new_waits(new_waits=True)
        return False

    wiring.end_new_waits(seconds=1.2, others=others)

    assert asked == [1.2]


@pytest.mark.parametrize(("left", "more"), [({5, 6}, False), ({5, 6, 7}, True), (set(), False)])
def test_the_task_rests_four_times_as_long_as_it_took_and_tells_whether_others_have_come(
    monkeypatch: pytest.MonkeyPatch, asked: list[float], left: set[int], more: bool
) -> None:
    clock = iter([100.0, 100.5])
    monkeypatch.setattr(tasks, "monotonic", lambda: next(clock))
    monkeypatch.setattr(estimates, "estimate_new_waits", lambda **_: frozenset({5, 6}))
    monkeypatch.setattr(estimates, "new_waits", lambda: frozenset(left))
    ends: list[Any] = []

    def hear(*, seconds: float, others: Callable[[], bool], **_: Any) -> None:
        ends.append((seconds, others()))

    new_waits_end.connect(hear)
    try:
        estimate_new_waits()
    finally:
        new_waits_end.disconnect(hear)

    assert ends == [(2.0, more)]


def test_a_task_that_fails_lets_the_next_one_come(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("no database")

    monkeypatch.setattr(estimates, "estimate_new_waits", fail)
    monkeypatch.setattr(new_waits_begin, "receivers", [])

    with pytest.raises(RuntimeError):
        estimate_new_waits()

    assert not broker.exists(wiring.NEW_WAITS_GOING_KEY)
