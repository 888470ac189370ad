"""A node that some services cannot reach comes to one that does, and is not passed around."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from workers.services.reach import (
    LONGEST_BACKOFF,
    Silence,
    backoff_seconds,
    is_given_up,
    may_claim,
    others_to_try,
)

LOOK, PATIENCE, FIRST_CONTACT = 2, 8, 10
FIRST_BACKOFF = 15.0
SERVICES = ("a", "b", "c")


@dataclass
class Cluster:
    """Services, one node, and a clock in whole seconds; eager services look each second."""

    reaches: set[str]
    eager: set[str] = field(default_factory=set)
    living: set[str] = field(default_factory=lambda: set(SERVICES))
    carrier: str = ""
    now: int = 0
    heard_at: int = 0
    was_heard: bool = False
    tries: dict[str, tuple[float, int]] = field(default_factory=dict)
    given_up: Counter[str] = field(default_factory=Counter)
    free_seconds: int = 0

    def pass_second(self) -> None:
        self.now += 1
        if self.carrier in self.reaches:
            self.heard_at, self.was_heard = self.now, True
        for number, name in enumerate(sorted(self.living)):
            self._try(name)
            if name in self.eager or (self.now + number) % LOOK == 0:
                self._look(name)
        self.free_seconds = 0 if self.carrier else self.free_seconds + 1

    def _try(self, name: str) -> None:
        due, failures = self.tries.get(name, (self.now + 1, 0))
        if due <= self.now and name in self.reaches:
            del self.tries[name]
        elif due <= self.now:
            self.tries[name] = (
                self.now + backoff_seconds(failures + 1, FIRST_BACKOFF),
                failures + 1,
            )

    def _look(self, name: str) -> None:
        living, backing_off = self.living, set(self.tries)
        if self.carrier == name:
            patience = PATIENCE if self.was_heard else FIRST_CONTACT
            silence = Silence(self.now - self.heard_at, patience)
            others = others_to_try(name, living=living, backing_off=backing_off)
            if is_given_up(silence, others=others):
                self.carrier = ""
                self.tries[name] = self.now + backoff_seconds(0, FIRST_BACKOFF), 0
                self.given_up[name] += 1
        elif not self.carrier and may_claim(name, living=living, backing_off=backing_off):
            self.carrier, self.heard_at, self.was_heard = name, self.now, False
            self.tries.pop(name, None)


names = st.sets(st.sampled_from(SERVICES))


@given(st.lists(st.tuples(names, st.integers(0, 400)), max_size=6), names, names)
def test_a_node_comes_to_a_service_that_reaches_it_and_is_given_up_at_most_once_by_each(
    past: list[tuple[set[str], int]], reaches: set[str], eager: set[str]
) -> None:
    cluster = Cluster(reaches=set(SERVICES), eager=eager)
    for reached, seconds in past:
        cluster.reaches = reached
        for _ in range(seconds):
            cluster.pass_second()
    cluster.reaches = reaches
    cluster.given_up.clear()

    for _ in range(int(LONGEST_BACKOFF) + 3 * (FIRST_CONTACT + 2 * LOOK)):
        cluster.pass_second()
        assert cluster.free_seconds <= LOOK
    settled = cluster.carrier
    for _ in range(1000):
        cluster.pass_second()
        assert cluster.carrier == settled

    assert settled in reaches or not reaches
    assert max(cluster.given_up.values(), default=0) <= 1


@given(st.sampled_from(SERVICES), st.integers(0, 100))
def test_another_service_carries_a_node_that_is_lost_to_one_within_fifteen_seconds(
    lost: str, seconds: int
) -> None:
    cluster = Cluster(reaches=set(SERVICES), carrier=lost)
    for _ in range(seconds + 1):
        cluster.pass_second()
    cluster.reaches = set(SERVICES) - {lost}

    for _ in range(15):
        cluster.pass_second()

    assert cluster.carrier in cluster.reaches


@given(names)
def test_a_service_without_others_carries_a_node_that_it_has_given_up(reaches: set[str]) -> None:
    cluster = Cluster(reaches=reaches - {"c"}, carrier="c")
    for _ in range(60):
        cluster.pass_second()
    cluster.living, cluster.carrier = {"c"}, ""

    for _ in range(100):
        cluster.pass_second()
        assert cluster.free_seconds <= LOOK

    assert cluster.given_up["c"] == 1


def test_backoffs_grow_up_to_a_bound() -> None:
    found = [backoff_seconds(failures, FIRST_BACKOFF) for failures in range(20)]

    assert found[:5] == [15.0, 30.0, 60.0, 120.0, 240.0]
    assert found[0] == FIRST_BACKOFF
    assert set(found[5:]) == {LONGEST_BACKOFF}
    assert backoff_seconds(10**9, FIRST_BACKOFF) == LONGEST_BACKOFF
