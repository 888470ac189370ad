"""The database's time: few questions, no drift with a wrong host clock, and certain skews."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from tenants.clock import ServerClock, database_now, estimated_now, host_skew, is_skewed

START = 1_700_000_000.0


class Server:
    """A server whose answers take ``trip`` seconds of the host's ticks."""

    def __init__(self, *, trip: float = 0.0, share: float = 0.5) -> None:
        self.ticks = 1000.0
        self.trip = trip
        self.share = share
        self.asked = 0
        self.is_away = False

    @property
    def time(self) -> float:
        return START + self.ticks

    def ask(self) -> float:
        if self.is_away:
            raise OperationalError("the server closed the connection")
        self.asked += 1
        self.ticks += self.trip * self.share
        at = self.time
        self.ticks += self.trip * (1 - self.share)
        return at

    def clock(self) -> ServerClock:
        return ServerClock(ticks=lambda: self.ticks, every=5.0)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_a_server_is_asked_once_in_five_seconds() -> None:
    server = Server()
    clock = server.clock()

    for _ in range(20):
        assert clock.now(server.ask) == moment(server.time)
        server.ticks += 0.5

    assert server.asked == 2


@given(
    trip=st.floats(0, 3),
    share=st.floats(0, 1),
    pauses=st.lists(st.floats(0, 20), max_size=8),
)
def test_the_time_is_off_by_at_most_half_of_the_way(
    trip: float, share: float, pauses: list[float]
) -> None:
    server = Server(trip=trip, share=share)
    clock = server.clock()

    for pause in pauses:
        server.ticks += pause
        found = clock.now(server.ask).timestamp()
        assert abs(found - server.time) <= trip / 2 + 1e-3


def test_a_slow_answer_is_asked_for_again() -> None:
    server = Server(trip=4.0, share=0.0)
    clock, first = server.clock(), server.ask

    def ask() -> float:
        at = first()
        server.trip = 0.0
        return at

    assert clock.now(ask) == moment(server.time)
    assert server.asked == 2


def test_a_server_that_is_away_keeps_its_last_time_running() -> None:
    server = Server()
    clock = server.clock()
    clock.now(server.ask)
    server.is_away = True
    server.ticks += 60

    assert clock.now(server.ask) == moment(server.time)
    assert clock.estimate() == moment(server.time)


def test_a_server_that_has_never_answered_has_no_time() -> None:
    server = Server()
    server.is_away = True
    clock = server.clock()

    assert clock.estimate() is None
    with pytest.raises(OperationalError):
        clock.now(server.ask)


@pytest.mark.parametrize("hours", [2, -2])
def test_a_host_that_is_hours_off_is_told_so_and_its_time_is_not_used(hours: int) -> None:
    server = Server()
    clock = server.clock()

    ahead = clock.ahead(lambda: moment(server.time) + timedelta(hours=hours), server.ask)

    assert ahead == timedelta(hours=hours)
    assert is_skewed(ahead)
    assert clock.now(server.ask) == moment(server.time)


@given(trip=st.floats(0, 100), share=st.floats(0, 1), seconds=st.floats(-1.9, 1.9))
def test_a_slow_server_makes_no_host_look_skewed(
    trip: float, share: float, seconds: float
) -> None:
    server = Server(trip=trip, share=share)
    host = timedelta(seconds=seconds)

    assert not is_skewed(server.clock().ahead(lambda: moment(server.time) + host, server.ask))


@pytest.mark.django_db
def test_the_database_is_asked_below_the_counted_queries_and_within_a_transaction() -> None:
    with CaptureQueriesContext(connection) as queries:
        now = database_now()

    assert len(queries) == 0
    assert abs(timezone.now() - now) < timedelta(seconds=2)
    assert abs(estimated_now() - now) < timedelta(seconds=2)
    assert abs(host_skew()) < timedelta(seconds=2)
