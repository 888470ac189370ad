"""One process at a time performs a duty; a holder that falls silent or dies is followed."""

from datetime import datetime, timedelta

import pytest
from django.db import OperationalError, connection

from tests.factories.cluster import NOW
from tests.support.databases import at_once, migrated_template, real_database
from workers.models import DutyLease
from workers.services.duties import LEASE, Duty, Taken, release_duty, take_duty
from workers.services.heartbeats import process_name

__all__ = ["migrated_template", "real_database"]


def take(owner: str, now: datetime = NOW, **state: str) -> Taken | None:
    return take_duty(name="beat", owner=owner, now=now, state=state)


@pytest.mark.django_db
def test_the_first_takes_the_duty_and_others_stand_by() -> None:
    assert take("one@elsewhere") == Taken(is_new=True, state={})
    assert take("two@elsewhere") is None
    assert take("one@elsewhere", NOW + LEASE / 2) == Taken(is_new=False, state={})
    assert take("two@elsewhere", NOW + LEASE) is None


@pytest.mark.django_db
def test_a_silent_holder_is_followed_and_its_state_handed_on() -> None:
    take("one@elsewhere")
    take("one@elsewhere", NOW, round="12:00")

    later = NOW + LEASE
    assert take("two@elsewhere", later) == Taken(is_new=True, state={"round": "12:00"})
    assert take("one@elsewhere", later) is None


@pytest.mark.django_db
def test_a_holder_that_comes_back_late_begins_anew() -> None:
    take("one@elsewhere")
    take("one@elsewhere", NOW, round="12:00")

    assert take("one@elsewhere", NOW + LEASE) == Taken(is_new=True, state={"round": "12:00"})


@pytest.mark.django_db
def test_a_lease_hours_from_now_is_broken() -> None:
    take("one@elsewhere", NOW + timedelta(hours=2))

    assert take("two@elsewhere") == Taken(is_new=True, state={})


@pytest.mark.django_db
def test_a_holder_that_has_ended_is_followed_at_once() -> None:
    ended = process_name("beat").rpartition(":")[0] + ":1"
    take(ended)

    assert take("two@elsewhere") is not None


@pytest.mark.django_db
def test_a_released_duty_is_taken_at_once() -> None:
    take("one@elsewhere")
    release_duty(name="beat", owner="two@elsewhere", now=NOW, state={})
    assert take("two@elsewhere") is None

    release_duty(name="beat", owner="one@elsewhere", now=NOW, state={"round": "12:00"})

    assert take("two@elsewhere") == Taken(is_new=True, state={"round": "12:00"})


def test_of_many_that_ask_at_once_one_gets_it(real_database: None) -> None:
    found = at_once(*(lambda name=f"{n}@elsewhere": take(name) for n in range(4)))

    assert [type(one) for one in found].count(Taken) == 1
    assert found.count(None) == 3


@pytest.mark.django_db
def test_a_database_that_is_away_takes_the_duty_only_after_its_lease() -> None:
    ticks = [100.0]
    begun: list[object] = []
    duty = Duty("beat", owner="one@elsewhere", clock=lambda: ticks[0])

    def away(*_: object) -> None:
        raise OperationalError("the server closed the connection")

    assert duty.hold(dict, begin=begun.append)
    with connection.execute_wrapper(away):
        ticks[0] += 4
        assert duty.hold(dict, begin=begun.append)
        ticks[0] += LEASE.total_seconds()
        assert not duty.hold(dict, begin=begun.append)
    assert duty.hold(dict, begin=begun.append)

    assert len(begun) == 1


@pytest.mark.django_db
def test_a_holder_that_was_followed_meanwhile_stands_by() -> None:
    ticks = [100.0]
    duty = Duty("beat", owner="one@elsewhere", clock=lambda: ticks[0])
    assert duty.hold(dict, begin=lambda _: None)

    DutyLease.objects.update(owner="two@elsewhere")
    ticks[0] += 4

    assert not duty.hold(dict, begin=lambda _: None)
