"""Throttled sign-ins: what a wait depends on, and what an attack of many addresses reaches."""

import random
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.models import User
from tenants.services.sign_in import (
    Attempt,
    Source,
    TooManyFailuresError,
    attempt_succeeded,
    begin_attempt,
)
from tenants.throttling import (
    ATTACKED_FROM,
    CROWD,
    FREE_OF_PAIR,
    FREE_OF_SOURCE,
    LONGEST_CROWD_WAIT,
    LONGEST_WAIT,
    PAIR_HALF_LIFE,
    Tally,
    seconds_to_wait,
)
from tests.factories.tenants import NOW, make_user
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

counts = st.floats(0, 5000)
ages = st.timedeltas(timedelta(minutes=-5), timedelta(days=2))
tallies = st.builds(lambda failures, age: Tally(failures=failures, at=NOW - age), counts, ages)


@given(pair=tallies, source=tallies, name=tallies, is_known=st.booleans())
def test_no_wait_is_longer_than_the_longest(pair, source, name, is_known):
    wait = seconds_to_wait(pair=pair, source=source, name=name, is_known=is_known, now=NOW)

    assert 0 <= wait <= LONGEST_WAIT


@given(pair=tallies, source=tallies, name=tallies, other=tallies)
def test_failures_of_others_never_delay_a_known_source(pair, source, name, other):
    one = seconds_to_wait(pair=pair, source=source, name=name, is_known=True, now=NOW)
    another = seconds_to_wait(pair=pair, source=other, name=other, is_known=True, now=NOW)

    assert one == another


@given(name=tallies)
def test_failures_with_a_name_never_lock_it(name):
    wait = seconds_to_wait(pair=Tally(), source=Tally(), name=name, is_known=False, now=NOW)

    assert wait <= LONGEST_CROWD_WAIT
    if name.failures < CROWD:
        assert wait == 0


@given(failures=st.integers(0, 40), is_known=st.booleans())
def test_one_failure_more_never_shortens_the_wait(failures, is_known):
    def wait(count: int) -> float:
        tally = Tally(failures=count, at=NOW)
        return seconds_to_wait(pair=tally, source=tally, name=tally, is_known=is_known, now=NOW)

    assert wait(failures) <= wait(failures + 1)


@given(failures=counts, age=st.timedeltas(timedelta(0), timedelta(days=2)), seconds=counts)
def test_a_wait_ends_when_it_said(failures, age, seconds):
    tally = Tally(failures=failures, at=NOW - age)
    wait = seconds_to_wait(pair=tally, source=Tally(), name=Tally(), is_known=True, now=NOW)
    later = NOW + timedelta(seconds=wait + seconds)

    left = seconds_to_wait(pair=tally, source=Tally(), name=Tally(), is_known=True, now=later)
    assert left <= 1e-6


def test_failures_fade_by_half():
    tally = Tally(failures=8, at=NOW)

    assert tally.faded(NOW + PAIR_HALF_LIFE, PAIR_HALF_LIFE) == 4
    assert tally.plus_one(NOW + PAIR_HALF_LIFE, PAIR_HALF_LIFE).failures == 5


@pytest.mark.parametrize(("failures", "wait"), [(4, 0), (5, 2), (6, 4), (9, 32), (30, 900)])
def test_waits_of_a_pair_double(failures, wait):
    tally = Tally(failures=failures, at=NOW)

    assert wait == seconds_to_wait(
        pair=tally, source=Tally(), name=Tally(), is_known=True, now=NOW
    )


@pytest.mark.parametrize(("of_name", "wait"), [(ATTACKED_FROM - 1, 0), (ATTACKED_FROM + 1, 15)])
def test_unknown_sources_of_an_attacked_name_wait_earlier(of_name, wait):
    pair, name = Tally(failures=1, at=NOW), Tally(failures=of_name, at=NOW)

    assert wait == seconds_to_wait(pair=pair, source=Tally(), name=name, is_known=False, now=NOW)


@pytest.mark.parametrize(("of_source", "wait"), [(FREE_OF_SOURCE - 1, 0), (FREE_OF_SOURCE, 4)])
def test_a_source_that_fails_with_many_names_waits(of_source, wait):
    source = Tally(failures=of_source, at=NOW)

    assert wait == seconds_to_wait(
        pair=Tally(), source=source, name=Tally(), is_known=False, now=NOW
    )


@dataclass(frozen=True)
class Attack:
    """Guesses spread evenly over a span, from addresses in turn."""

    guesses: int
    addresses: int
    names: int
    minutes: int = 10


def attempt(name: str, source: Source, seconds: float) -> Attempt | float:
    """An attempt that was let through, or the seconds it has to wait."""
    try:
        return begin_attempt(username=name, source=source, now=NOW + timedelta(seconds=seconds))
    except TooManyFailuresError as refused:
        return float(refused.retry_after or 0)


def passwords_checked(attack: Attack, rng: random.Random) -> int:
    """How many of the guesses are checked at all."""
    every = attack.minutes * 60 / attack.guesses
    checked = 0
    for number in range(attack.guesses):
        name = "alice" if attack.names == 1 else f"user{rng.randrange(attack.names)}"
        source = Source(address=address_of(number % attack.addresses))
        checked += isinstance(attempt(name, source, number * every), Attempt)
    return checked


def address_of(number: int) -> str:
    return f"198.18.{number // 250}.{number % 250 + 1}"


HOME, LAPTOP, CAFE = "192.0.2.10", "laptop", "203.0.113.5"


def survives(attack: Attack, most_checked: float) -> None:
    """The attack is throttled, and alice signs in wherever she is."""
    alice = make_user("alice")
    rng = random.Random(7)
    home = Source(address=HOME, device=LAPTOP)
    first = attempt("alice", home, -3600)
    assert isinstance(first, Attempt)
    attempt_succeeded(attempt=first, user=alice, via="page")

    checked = passwords_checked(attack, rng)

    assert checked < most_checked * attack.guesses
    end = attack.minutes * 60
    for known in (Source(address=HOME), Source(address=address_of(0), device=LAPTOP)):
        found = attempt("alice", known, end)
        assert isinstance(found, Attempt), known
        attempt_succeeded(attempt=found, user=User.objects.get(), via="page")
    new = attempt("alice", Source(address=CAFE), end)
    if not isinstance(new, Attempt):
        assert new <= 60
        assert isinstance(attempt("alice", Source(address=CAFE), end + new), Attempt)


@pytest.mark.django_db
@pytest.mark.parametrize("names", [1, 20])
def test_an_attack_of_many_addresses_is_throttled_and_its_victim_is_not(names):
    survives(Attack(guesses=2_000, addresses=20, names=names), most_checked=0.25)


@pytest.mark.soak
@pytest.mark.django_db
@pytest.mark.parametrize("names", [1, 200])
def test_20000_guesses_from_200_addresses_are_throttled_and_their_victim_is_not(names):
    survives(Attack(guesses=20_000, addresses=200, names=names), most_checked=0.25)


@pytest.mark.usefixtures("real_database")
def test_attempts_at_once_are_counted_before_any_password_is_checked():
    def go():
        return begin_attempt(username="alice", source=Source(address=CAFE), now=NOW)

    outcomes = at_once(*[go] * 12)

    assert sum(isinstance(outcome, Attempt) for outcome in outcomes) == FREE_OF_PAIR
    others = [outcome for outcome in outcomes if not isinstance(outcome, Attempt)]
    assert {type(outcome) for outcome in others} == {TooManyFailuresError}
