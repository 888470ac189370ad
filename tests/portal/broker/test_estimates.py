"""The contract of `EstimateRequests`, with keys in this process and in Redis."""

import pytest
import redis

from portal.broker.connection import Keys, RedisKeys
from portal.broker.requests import BrokerEstimateRequests, EstimateMessage
from scheduling.ports import EstimateRequests

REST = 30.0


class Estimates:
    def __init__(self, keys: Keys) -> None:
        self.sent: list[EstimateMessage] = []
        self.requests: EstimateRequests = BrokerEstimateRequests(keys, self.sent.append)

    def new_waits(self) -> list[object]:
        """Wait of each message for new waits; time passes in Redis."""
        assert all(one.expires > one.countdown for one in self.sent)
        return [pytest.approx(one.countdown, abs=20.0) for one in self.sent if one.new_waits]


@pytest.fixture
def estimates(keys: Keys) -> Estimates:
    return Estimates(keys)


def test_many_rounds_request_all_estimates_once(estimates: Estimates) -> None:
    for _ in range(5):
        estimates.requests.request(changed=True)

    assert [one.new_waits for one in estimates.sent] == [False]


def test_rounds_that_change_nothing_have_a_rate_of_their_own(estimates: Estimates) -> None:
    estimates.requests.request(changed=True)
    estimates.requests.request(changed=False)
    estimates.requests.request(changed=False)

    assert len(estimates.sent) == 2


@pytest.mark.parametrize("changed", [True, False])
def test_nothing_is_requested_during_a_rest(estimates: Estimates, changed: bool) -> None:
    estimates.requests.rest(120.0)

    estimates.requests.request(changed=changed)

    assert estimates.sent == []


def test_many_rounds_request_new_waits_once_until_the_task_begins(estimates: Estimates) -> None:
    for _ in range(5):
        estimates.requests.request_new_waits()

    assert [one.countdown for one in estimates.sent] == [0.0]


def test_while_new_waits_are_estimated_requests_are_ignored(estimates: Estimates) -> None:
    estimates.requests.begin_new_waits()
    estimates.requests.request_new_waits()
    assert estimates.sent == []

    estimates.requests.finish_new_waits(rest_seconds=REST)
    estimates.requests.request_new_waits()

    assert estimates.new_waits() == [REST]


def test_new_waits_are_requested_again_by_other_processes_after_the_end(
    keys: Keys, estimates: Estimates
) -> None:
    other = Estimates(keys)
    estimates.requests.request_new_waits()
    other.requests.begin_new_waits()
    other.requests.finish_new_waits(rest_seconds=REST)

    other.requests.request_new_waits()
    estimates.requests.request_new_waits()

    assert (other.new_waits(), estimates.new_waits()) == ([REST], [0.0])


def test_nothing_fails_without_the_broker() -> None:
    def refuse() -> "redis.Redis[bytes]":
        raise redis.ConnectionError("refused")

    estimates = Estimates(RedisKeys(refuse))

    estimates.requests.request(changed=True)
    estimates.requests.rest(1.0)
    estimates.requests.request_new_waits()
    estimates.requests.begin_new_waits()
    estimates.requests.finish_new_waits(rest_seconds=1.0)

    assert estimates.sent == []
