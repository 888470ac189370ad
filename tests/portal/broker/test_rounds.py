"""The contract of `RoundRequests`, with keys in this process and in Redis.

New jobs let costly rounds rest; every other cause, and a small cluster, does not wait.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from portal.broker.connection import Keys, LocalKeys, RedisKeys
from portal.broker.requests import MOST_REST_SECONDS, BrokerRoundRequests, RoundMessage
from scheduling.ports import RoundRequests

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)
COSTLY = MOST_REST_SECONDS


class Rounds:
    """A round worker's requests, the messages that it sends, and how long its rounds take."""

    def __init__(self, keys: Keys) -> None:
        self.sent: list[RoundMessage] = []
        self.seconds = 100.0
        self.requests: RoundRequests = BrokerRoundRequests(
            keys, self.sent.append, clock=lambda: self.seconds
        )

    def run(self, seconds: float) -> None:
        self.requests.begin()
        self.seconds += seconds
        self.requests.finish()

    def sent_causes(self) -> list[tuple[str, object]]:
        """Cause and wait of each message; time passes in Redis, at most a second of a rest."""
        return [(one.cause, pytest.approx(one.countdown, abs=1.0)) for one in self.sent]


@pytest.fixture
def rounds(keys: Keys) -> Rounds:
    return Rounds(keys)


def test_one_round_is_requested_until_it_begins(rounds: Rounds) -> None:
    for cause in ("submit", "exit", "exit"):
        rounds.requests.request(cause)
    assert rounds.sent == [RoundMessage(cause="submit", after=0)]

    rounds.requests.begin()
    rounds.requests.request("exit")

    assert rounds.sent[1:] == [RoundMessage(cause="exit", after=1)]


def test_requests_of_two_processes_are_one(keys: Keys, rounds: Rounds) -> None:
    other = Rounds(keys)

    rounds.requests.request("submit")
    other.requests.request("exit")

    assert (len(rounds.sent), other.sent) == (1, [])


def test_a_round_for_an_instant_is_requested_once(rounds: Rounds) -> None:
    for at in (AT, AT + timedelta(milliseconds=300), AT + timedelta(seconds=1)):
        rounds.requests.request_at(at)

    assert [(one.cause, one.after, one.at) for one in rounds.sent] == [
        ("wake", None, AT),
        ("wake", None, AT + timedelta(seconds=1)),
    ]


def test_after_a_costly_round_new_jobs_wait_as_long_as_it_took(rounds: Rounds) -> None:
    rounds.run(COSTLY)

    rounds.requests.request("submit")
    rounds.requests.request("submit")

    assert rounds.sent_causes() == [("submit", COSTLY)]


def test_new_jobs_that_come_during_a_costly_round_let_the_next_one_rest_too(
    rounds: Rounds,
) -> None:
    rounds.run(COSTLY)
    rounds.requests.begin()

    rounds.requests.request("submit")

    assert rounds.sent_causes() == [("submit", 2 * COSTLY)]


def test_a_rest_has_an_end(rounds: Rounds) -> None:
    rounds.run(60.0)

    rounds.requests.request("submit")

    assert rounds.sent[0].countdown <= MOST_REST_SECONDS


def test_a_small_cluster_starts_new_jobs_at_once(rounds: Rounds) -> None:
    rounds.run(0.02)

    rounds.requests.request("submit")

    assert rounds.sent == [RoundMessage(cause="submit", after=1)]


def test_other_causes_do_not_wait_for_the_rest_of_new_jobs(rounds: Rounds) -> None:
    rounds.run(COSTLY)

    for cause in ("submit", "exit", "exit", "submit"):
        rounds.requests.request(cause)

    assert rounds.sent_causes() == [("submit", COSTLY), ("exit", 0.0)]


class BetweenTwoCommands:
    """Keys that let something happen right after the first claim."""

    def __init__(self, keys: Keys, happen: Callable[[], None]) -> None:
        self._keys = keys
        self._happen: list[Callable[[], None]] = [happen]

    def __getattr__(self, name: str) -> object:
        return getattr(self._keys, name)

    def claim(self, key: str, value: str, *, seconds: float) -> bool:
        claimed = self._keys.claim(key, value, seconds=seconds)
        while self._happen:
            self._happen.pop()()
        return claimed


def test_a_cause_that_comes_while_a_resting_round_is_claimed_does_not_rest_with_it(
    keys: Keys, rounds: Rounds
) -> None:
    rounds.run(COSTLY)
    between = BetweenTwoCommands(keys, lambda: rounds.requests.request("exit"))
    other = Rounds(between)  # type: ignore[arg-type] # the rest by `__getattr__`

    other.requests.request("submit")

    assert rounds.sent_causes() == [("exit", 0.0)]
    assert other.sent_causes() == [("submit", COSTLY)]


def test_rounds_that_have_become_quick_need_no_rest_any_more(rounds: Rounds) -> None:
    rounds.run(COSTLY)
    rounds.run(0.1)

    rounds.requests.request("submit")
    rounds.requests.begin()
    rounds.requests.request("submit")

    assert [one.countdown for one in rounds.sent] == [0.0, 0.0]


def test_a_round_that_ends_without_a_begin_changes_nothing(rounds: Rounds) -> None:
    rounds.run(COSTLY)

    rounds.requests.finish()
    rounds.requests.request("submit")

    assert rounds.sent_causes() == [("submit", COSTLY)]


def test_a_round_is_overtaken_by_one_that_began_since_its_request(rounds: Rounds) -> None:
    rounds.requests.begin()
    rounds.requests.request("exit")
    after = rounds.sent[0].after
    assert after is not None
    assert not rounds.requests.is_overtaken(after)

    rounds.requests.begin()

    assert rounds.requests.is_overtaken(after)


def test_rounds_that_nobody_needs_any_more_do_not_pile_up(rounds: Rounds) -> None:
    begun = 0
    rounds.run(COSTLY)

    for _ in range(20):  # new jobs and ends of others come during each round
        rounds.requests.request("submit")
        rounds.requests.request("exit")
        message = rounds.sent.pop(0)
        if not rounds.requests.is_overtaken(message.after or 0):
            begun += 1
            rounds.run(COSTLY)

    assert len(rounds.sent) <= 2
    assert begun >= 10


def test_nothing_fails_without_the_broker() -> None:
    def refuse() -> "redis.Redis[bytes]":
        raise redis.ConnectionError("refused")

    rounds = Rounds(RedisKeys(refuse))

    rounds.requests.request("exit")
    rounds.requests.request_at(AT)
    rounds.run(COSTLY)

    assert not rounds.requests.is_overtaken(0)
    assert rounds.sent == []


def test_a_message_that_cannot_be_sent_fails_nothing() -> None:
    def refuse(_: RoundMessage) -> None:
        raise ConnectionRefusedError

    BrokerRoundRequests(LocalKeys(), refuse).request("exit")
