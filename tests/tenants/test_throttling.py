"""Throttled sign-ins: what a wait depends on, and what an attack of many addresses reaches."""

import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from tenants.audit_chain import verify
from tenants.models import User
from tenants.services.sign_in import (
    SignInAttempt,
    SignInSource,
    TooManyFailuresError,
    attempt_failed,
    attempt_succeeded,
    begin_attempt,
    forget_attempts,
)
from tenants.throttling import (
    ATTACKED_FROM,
    FREE_OF_PAIR,
    FREE_OF_SOURCE,
    LONGEST_WAIT,
    NAME_HALF_LIFE,
    PAIR_HALF_LIFE,
    ROOM,
    SITE_HALF_LIFE,
    SOURCE_HALF_LIFE,
    SOURCES_OF_SITE,
    FailureTally,
    seconds_to_wait,
)
from tests.factories.tenants import NOW, make_user
from tests.support.databases import at_once, migrated_template, real_database

__all__ = ["migrated_template", "real_database"]

counts = st.floats(0, 5000)
ages = st.timedeltas(timedelta(minutes=-5), timedelta(days=2))
tallies = st.builds(
    lambda failures, age: FailureTally(failures=failures, at=NOW - age), counts, ages
)
sizes = st.sampled_from([1, SOURCES_OF_SITE])


def wait_of(
    *,
    pair: FailureTally = FailureTally(),  # noqa: B008 frozen
    source: FailureTally = FailureTally(),  # noqa: B008 frozen
    name: FailureTally = FailureTally(),  # noqa: B008 frozen
    site: FailureTally = FailureTally(),  # noqa: B008 frozen
    of_site: int = 1,
    is_known: bool = False,
    now: datetime = NOW,
) -> float:
    return seconds_to_wait(
        pair=pair,
        source=source,
        name=name,
        site=site,
        sources_of_site=of_site,
        is_known=is_known,
        now=now,
    )


@given(pair=tallies, source=tallies, name=tallies, site=tallies, is_known=st.booleans())
def test_no_wait_is_longer_than_the_longest(pair, source, name, site, is_known):
    wait = wait_of(pair=pair, source=source, name=name, site=site, is_known=is_known)

    assert 0 <= wait <= LONGEST_WAIT


@given(pair=tallies, source=tallies, name=tallies, site=tallies, other=tallies)
def test_failures_of_others_never_delay_a_known_source(pair, source, name, site, other):
    one = wait_of(pair=pair, source=source, name=name, site=site, is_known=True)
    another = wait_of(pair=pair, source=other, name=other, site=other, is_known=True)

    assert one == another


@given(level=st.floats(0, ROOM[0] + 1), failures=st.integers(0, 2))
def test_sources_that_have_failed_leave_room_for_a_new_one(level, failures):
    name = FailureTally(failures=level, at=NOW)
    failed = FailureTally(failures=failures + 1, at=NOW)

    ahead = wait_of(name=name, site=FailureTally(failures=failures, at=NOW))
    behind = wait_of(name=name, site=failed)

    assert (level < ROOM[0]) == (wait_of(name=name) == 0)
    assert ahead <= behind
    assert (behind == 0) == (level < ROOM[failures + 1])


@given(failures=st.integers(0, 40), is_known=st.booleans())
def test_one_failure_more_never_shortens_the_wait(failures, is_known):
    def wait(count: int) -> float:
        tally = FailureTally(failures=count, at=NOW)
        return wait_of(pair=tally, source=tally, name=tally, site=tally, is_known=is_known)

    assert wait(failures) <= wait(failures + 1)


@given(failures=counts, age=st.timedeltas(timedelta(0), timedelta(days=2)), seconds=counts)
def test_a_wait_ends_when_it_said(failures, age, seconds):
    tally = FailureTally(failures=failures, at=NOW - age)
    wait = wait_of(pair=tally, is_known=True)
    later = NOW + timedelta(seconds=wait + seconds)

    assert wait_of(pair=tally, is_known=True, now=later) <= 1e-6


@given(level=st.floats(0, 1000), failures=st.integers(0, 4))
def test_a_wait_for_room_ends_when_it_said(level, failures):
    name, site = FailureTally(failures=level, at=NOW), FailureTally(failures=failures, at=NOW)
    wait = wait_of(name=name, site=site)

    if wait < LONGEST_WAIT:
        assert wait_of(name=name, site=site, now=NOW + timedelta(seconds=wait + 0.01)) == 0


def test_sources_of_one_ipv6_site_share_its_failures():
    full, site = (
        FailureTally(failures=ROOM[1], at=NOW),
        FailureTally(failures=SOURCES_OF_SITE, at=NOW),
    )

    assert wait_of(name=full, site=site, of_site=SOURCES_OF_SITE) > 0
    assert wait_of(name=full, site=FailureTally(failures=2, at=NOW), of_site=SOURCES_OF_SITE) == 0


def test_failures_fade_by_half():
    tally = FailureTally(failures=8, at=NOW)

    assert tally.faded(NOW + PAIR_HALF_LIFE, PAIR_HALF_LIFE) == 4
    assert tally.plus_one(NOW + PAIR_HALF_LIFE, PAIR_HALF_LIFE).failures == 5


@pytest.mark.parametrize(("failures", "wait"), [(4, 0), (5, 2), (6, 4), (9, 32), (30, 900)])
def test_waits_of_a_pair_double(failures, wait):
    tally = FailureTally(failures=failures, at=NOW)

    assert wait == wait_of(pair=tally, is_known=True)


@pytest.mark.parametrize(("of_name", "wait"), [(ATTACKED_FROM - 1, 0), (ATTACKED_FROM + 1, 15)])
def test_unknown_sources_of_an_attacked_name_wait_earlier(of_name, wait):
    pair, name = FailureTally(failures=1, at=NOW), FailureTally(failures=of_name, at=NOW)

    assert wait == wait_of(pair=pair, name=name)


@pytest.mark.parametrize(("of_source", "wait"), [(FREE_OF_SOURCE - 1, 0), (FREE_OF_SOURCE, 4)])
def test_a_source_that_fails_with_many_names_waits(of_source, wait):
    source = FailureTally(failures=of_source, at=NOW)

    assert wait == wait_of(source=source)


def attempt(name: str, source: SignInSource, seconds: float) -> SignInAttempt | float:
    """An attempt that was let through, or the seconds it has to wait."""
    try:
        return begin_attempt(username=name, source=source, now=NOW + timedelta(seconds=seconds))
    except TooManyFailuresError as refused:
        return float(refused.retry_after or 0)


def address_of(number: int) -> str:
    """An address in a network of its own."""
    return f"198.{18 + number // 65_536}.{number // 256 % 256}.{number % 256}"


HOME, LAPTOP, CAFE = "192.0.2.10", "laptop", "203.0.113.5"


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Guesses spread evenly over a span, by a pool of addresses in turn.

    Attributes:
        moving: addresses of the pool that are replaced by new ones each minute.
        honest: times (in seconds) at which alice comes from an address that nobody has used.
    """

    guesses: int
    addresses: int
    names: int
    minutes: float = 10
    moving: float = 0
    honest: tuple[float, ...] = ()

    def address(self, number: int, seconds: float) -> str:
        """Of a guess; the places of the pool are given to new addresses in turn."""
        place = number % self.addresses
        given = int(seconds / 60 * self.moving)
        replaced = max(0, given - place + self.addresses - 1) // self.addresses
        return address_of(place + replaced * self.addresses)


@dataclass(kw_only=True)
class Honest:
    """Alice, who comes to the login page and tries again when she is told."""

    address: str
    next_at: float
    came_at: float
    waited: float | None = None

    def act(self, now: float, rng: random.Random) -> None:
        """Try, and sign in when the password is checked."""
        if self.waited is not None or now < self.next_at:
            return
        found = attempt("alice", SignInSource(address=self.address), now)
        if isinstance(found, SignInAttempt):
            attempt_succeeded(attempt=found, user=User.objects.get(), via="page")
            self.waited = now - self.came_at
        else:
            self.next_at = now + found + rng.uniform(0, 3)


def under_attack(attack: Attack, rng: random.Random) -> tuple[int, list[Honest]]:
    """How many of the guesses are checked, and how alice fares meanwhile."""
    every = attack.minutes * 60 / attack.guesses
    people = [
        Honest(address=f"203.0.{113 + at // 250:.0f}.{number + 1}", next_at=at, came_at=at)
        for number, at in enumerate(attack.honest)
    ]
    checked = 0
    for number in range(attack.guesses):
        now = number * every
        name = "alice" if attack.names == 1 else f"user{rng.randrange(attack.names)}"
        source = SignInSource(address=attack.address(number, now))
        checked += isinstance(attempt(name, source, now), SignInAttempt)
        for person in people:
            person.act(now, rng)
    return checked, people


def survives(attack: Attack, most_checked: float) -> None:
    """The attack is throttled, and alice signs in wherever she is."""
    alice = make_user("alice")
    home = SignInSource(address=HOME, device=LAPTOP)
    first = attempt("alice", home, -3600)
    assert isinstance(first, SignInAttempt)
    attempt_succeeded(attempt=first, user=alice, via="page")

    checked, people = under_attack(attack, random.Random(7))

    waits = [person.waited for person in people]
    print(f"{attack}: {checked} checked, alice waited {waits} s")
    assert checked < most_checked * attack.guesses
    assert None not in waits
    assert all(wait is not None and wait <= 60 for wait in waits)
    end = attack.minutes * 60
    for known in (SignInSource(address=HOME), SignInSource(address=address_of(0), device=LAPTOP)):
        found = attempt("alice", known, end)
        assert isinstance(found, SignInAttempt), known
        attempt_succeeded(attempt=found, user=User.objects.get(), via="page")


def arrivals(seed: int, seconds: float) -> tuple[float, ...]:
    """When alice comes: at ten times, the last of them a minute before the attack ends."""
    rng = random.Random(seed)
    return tuple(sorted(rng.uniform(5, seconds - 60) for _ in range(10)))


@pytest.mark.django_db
@pytest.mark.parametrize("names", [1, 20])
def test_an_attack_of_many_addresses_is_throttled_and_its_victim_is_not(names):
    survives(
        Attack(guesses=1_500, addresses=20, names=names, minutes=5, honest=arrivals(1, 300)),
        most_checked=0.25,
    )


@pytest.mark.soak
@pytest.mark.django_db
@pytest.mark.parametrize("names", [1, 200])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_20000_guesses_from_200_addresses_are_throttled_and_their_victim_is_not(names, seed):
    survives(
        Attack(guesses=20_000, addresses=200, names=names, honest=arrivals(seed, 600)),
        most_checked=0.25,
    )


@pytest.mark.soak
@pytest.mark.django_db
@pytest.mark.parametrize("moving", [20, 50])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_attack_whose_200_addresses_are_replaced_all_the_time_delays_nobody(moving, seed):
    honest = arrivals(seed, 600)
    survives(
        Attack(guesses=20_000, addresses=200, names=1, moving=moving, honest=honest),
        most_checked=0.05,
    )


def guesses_checked(addresses: int, hours: float) -> int:
    """Guesses over one name that are checked, if each address guesses as often as it may.

    Computed without a database, from the functions that decide.
    """
    name, pairs = FailureTally(), [(FailureTally(), FailureTally(), FailureTally())] * addresses
    queue = [(index * 0.01, index) for index in range(addresses)]
    checked = 0
    while queue and queue[0][0] < hours * 3600:
        seconds, index = heappop(queue)
        now = NOW + timedelta(seconds=seconds)
        pair, source, site = pairs[index]
        wait = wait_of(pair=pair, source=source, name=name, site=site, now=now)
        if wait == 0:
            checked += 1
            name = name.plus_one(now, NAME_HALF_LIFE)
            pairs[index] = (
                pair.plus_one(now, PAIR_HALF_LIFE),
                source.plus_one(now, SOURCE_HALF_LIFE),
                site.plus_one(now, SITE_HALF_LIFE),
            )
        # All of them together try 50 times a second, so that none of the room is left.
        heappush(queue, (seconds + max(wait, addresses / 50), index))
    return checked


def test_few_guesses_over_a_name_are_checked_in_an_hour() -> None:
    assert guesses_checked(20, 1) <= 3 * 20 + 130


@pytest.mark.soak
@pytest.mark.parametrize(
    ("addresses", "most"), [(1, 250), (200, 4_000), (2_000, 17_000), (20_000, 65_000)]
)
def test_the_guesses_over_a_name_in_a_day_are_limited(addresses: int, most: int) -> None:
    checked = guesses_checked(addresses, 24)

    print(f"{addresses} addresses: {checked} guesses checked in a day")
    assert checked <= most


@pytest.mark.usefixtures("real_database")
def test_attempts_at_once_are_counted_before_any_password_is_checked():
    def go():
        return begin_attempt(username="alice", source=SignInSource(address=CAFE), now=NOW)

    outcomes = at_once(*[go] * 12)

    assert sum(isinstance(outcome, SignInAttempt) for outcome in outcomes) == FREE_OF_PAIR
    others = [outcome for outcome in outcomes if not isinstance(outcome, SignInAttempt)]
    assert {type(outcome) for outcome in others} == {TooManyFailuresError}


@pytest.mark.usefixtures("real_database")
def test_sign_ins_of_one_name_at_once_neither_fail_nor_block_each_other():
    alice = make_user("alice")
    sources = [SignInSource(address=CAFE), SignInSource(address=HOME, device=LAPTOP)]

    def sign_in(turn):
        def act():
            for number in range(8):
                now = NOW + timedelta(seconds=3600 * number)
                source = sources[(turn + number) % 2]
                found = begin_attempt(username="alice", source=source, now=now)
                if (turn + number) % 3:
                    attempt_succeeded(attempt=found, user=alice, via="page")
                else:
                    attempt_failed(attempt=found, via="page")
                forget_attempts(now=now + timedelta(days=3))

        return act

    assert at_once(*(sign_in(turn) for turn in range(4))) == [None] * 4
    assert verify() is None


@pytest.mark.usefixtures("real_database")
def test_an_attempt_that_has_to_wait_takes_no_lock_of_a_writer():
    make_user("alice")
    for _ in range(FREE_OF_PAIR):
        begin_attempt(username="alice", source=SignInSource(address=CAFE), now=NOW)
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite has one writer")
    with closing(sqlite3.connect(connection.settings_dict["NAME"])) as writer:
        writer.execute("BEGIN IMMEDIATE")
        (outcome,) = at_once(
            lambda: begin_attempt(username="alice", source=SignInSource(address=CAFE), now=NOW)
        )
        writer.rollback()

    assert isinstance(outcome, TooManyFailuresError)
