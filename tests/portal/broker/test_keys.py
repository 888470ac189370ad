"""Keys that processes share behave alike in this process and in Redis."""

import threading

import pytest

from portal.broker.connection import Keys, LocalKeys
from tests.support.waiting import wait_until

FAR = 600.0


def test_a_key_is_claimed_once_until_it_is_deleted(keys: Keys) -> None:
    assert keys.claim("a", "first", seconds=FAR)
    assert not keys.claim("a", "second", seconds=FAR)
    assert keys.get("a") == "first"

    keys.delete("a")

    assert keys.get("a") == ""
    assert keys.claim("a", "second", seconds=FAR)


def test_a_key_expires(keys: Keys) -> None:
    assert keys.claim("a", "x", seconds=0.05)
    keys.put("b", "x", seconds=0.05)

    wait_until(lambda: keys.get("a") == "" == keys.get("b"), 30, "the expiry of both")

    assert keys.seconds_left("a") == 0.0
    assert keys.claim("a", "y", seconds=FAR)


def test_a_key_that_is_put_replaces_value_and_expiry(keys: Keys) -> None:
    keys.claim("a", "x", seconds=FAR)

    keys.put("a", "y", seconds=2 * FAR)

    assert keys.get("a") == "y"
    assert FAR < keys.seconds_left("a") <= 2 * FAR


def test_no_time_at_all_is_the_shortest_that_a_key_can_live(keys: Keys) -> None:
    keys.put("a", "x", seconds=0.0)

    wait_until(lambda: keys.get("a") == "", 30, "its expiry")


def test_a_number_counts_from_zero_and_does_not_expire(keys: Keys) -> None:
    assert keys.get("n") == ""

    keys.increment("n")
    keys.increment("n")

    assert keys.get("n") == "2"


def test_a_missing_key_has_no_time_left_and_can_be_deleted(keys: Keys) -> None:
    keys.delete("none")

    assert keys.seconds_left("none") == 0.0


@pytest.mark.parametrize("attempt", range(5))
def test_one_of_many_threads_claims_a_key(attempt: int) -> None:
    keys, claimed, start = LocalKeys(), [], threading.Barrier(8)

    def claim() -> None:
        start.wait()
        if keys.claim("a", "x", seconds=FAR):
            claimed.append(1)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(claimed) == 1
