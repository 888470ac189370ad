"""Any number of beats, one of which sends: what is handed on, and what a wrong clock does."""

from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from django.utils import timezone
from kombu.utils.imports import symbol_by_name

from portal import heartbeats
from portal.broker import connection
from portal.celery import app
from portal.heartbeats import HeartbeatScheduler
from scheduling.tasks import run_round
from tenants import clock
from tenants.clock import database_now
from tests.support.databases import migrated_template, real_database
from workers.models import DutyLease, Heartbeat
from workers.services.duties import Duty

__all__ = ["migrated_template", "real_database"]
HOURS = timedelta(hours=2)


class Beat(HeartbeatScheduler):
    """Notes what it sends instead of sending it; its process is on another host."""

    def __init__(self, host: str) -> None:
        self.sent: list[str] = []
        super().__init__(app, lazy=False)
        self._writer.process = f"beat@{host}:1"
        self._duty = Duty(heartbeats.BEAT_DUTY, owner=f"beat@{host}")

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        self.sent.append(entry.name)

    @property
    def producer(self) -> Any:
        return None

    def work(self, ticks: int = 20) -> list[str]:
        """The tasks sent in ``ticks`` ticks."""
        self.sent.clear()
        for _ in range(ticks):
            self.tick()
        return sorted(self.sent)


@pytest.fixture(autouse=True)
def no_rounds(real_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Missed rounds have tests of their own.
    monkeypatch.setattr(heartbeats.MissedRounds, "look", lambda *_, **__: False)


def test_one_beat_sends_and_the_other_is_on_standby() -> None:
    first, second = Beat("a"), Beat("b")
    long_ago(first)

    assert first.work() == sorted(app.conf.beat_schedule)
    assert second.work() == []
    assert {row.process for row in Heartbeat.objects.all()} == {"beat@a:1", "beat@b:1"}


def test_the_next_beat_continues_where_the_last_one_stopped() -> None:
    first, second = Beat("a"), Beat("b")
    long_ago(first)
    first.work()
    long_ago(second)

    first.close()

    assert second.work() == []
    assert DutyLease.objects.get().owner == "beat@b"


def test_a_beat_that_lost_its_lease_sends_nothing() -> None:
    first = Beat("a")
    first.work()
    long_ago(first)
    DutyLease.objects.update(owner="beat@b", expires_at=database_now() + timedelta(seconds=9))
    assert first._duty is not None
    first._duty._renew_at = float("-inf")

    assert first.work() == []


def test_without_a_reachable_broker_it_retains_the_lease_and_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Beat("a")
    long_ago(first)
    # The tests run without a broker.
    monkeypatch.setattr(connection, "broker_responds", lambda: False)
    assert first.work() == []
    assert DutyLease.objects.get().owner == "beat@a"

    monkeypatch.setattr(connection, "broker_responds", lambda: True)

    assert first.work() == sorted(app.conf.beat_schedule)


@pytest.mark.parametrize("jump", [HOURS, -HOURS])
def test_a_host_whose_clock_jumps_sends_neither_early_nor_late(
    monkeypatch: pytest.MonkeyPatch, jump: timedelta
) -> None:
    truth = [database_now()]
    # A server's time, and a host that is off by the jump.
    monkeypatch.setattr(clock, "_has_server", lambda: True)
    monkeypatch.setattr(clock, "_server", FixedServer(truth))
    monkeypatch.setattr(timezone, "now", lambda: truth[0] + jump)
    first = Beat("a")
    first.work()

    truth[0] += timedelta(seconds=30)

    assert set(first.work()) == {"round", "notices", "profiles", "early-stops"}


@pytest.mark.parametrize("ahead", [HOURS, -HOURS])
def test_a_worker_whose_clock_is_off_drops_no_task_and_delays_none(
    monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    truth = datetime(2026, 3, 2, 9, 30, tzinfo=database_now().tzinfo)
    monkeypatch.setattr(clock, "_has_server", lambda: True)
    monkeypatch.setattr(clock, "_server", FixedServer([truth]))
    monkeypatch.setattr(timezone, "now", lambda: truth + ahead)
    protocols = app.amqp.task_protocols  # type: ignore[attr-defined]  # the stubs leave it out
    sent = protocols[2]("id", "scheduling.tasks.run_round", countdown=3, expires=10)

    class Message:
        headers, body, payload = sent.headers, sent.body, sent.body
        delivery_info: ClassVar[dict[str, Any]] = {}
        properties = sent.properties

    made = symbol_by_name(run_round.Request)
    request = made(Message(), app=app, hostname="here", decoded=True, task=run_round)

    assert request.eta - timezone.now() == timedelta(seconds=3)
    assert request.expires - timezone.now() == timedelta(seconds=10)


class FixedServer:
    """A server whose time a test sets."""

    def __init__(self, truth: list[datetime]) -> None:
        self.truth = truth

    def now(self, _: Any) -> datetime:
        return self.truth[0]

    def estimate(self) -> datetime:
        return self.truth[0]

    def ahead(self, wall: Any, _: Any) -> timedelta:
        return wall() - self.truth[0]


def long_ago(beat: Beat) -> None:
    """Let all entries be due."""
    for entry in beat.schedule.values():
        entry.last_run_at = database_now() - timedelta(days=1)
    beat._heap = None
