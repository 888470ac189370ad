"""Simulated decisions against live rounds on the same rows: random clusters, jobs and faults."""

import pytest

from tests.factories.cluster import NOW
from tests.support.simulated_rounds import RandomCase, summary

pytestmark = pytest.mark.django_db

MOST_ROUNDS = 16


def check(seed):
    case = RandomCase(seed)
    for _ in range(MOST_ROUNDS):
        live = case.live_decision()
        simulated = case.world.decide()
        assert summary(simulated) == summary(live), (seed, case.world.now - NOW.timestamp())
        due = case.world.next_time()
        if due is None:
            break
        case.advance(due)


@pytest.mark.parametrize("seed", range(30))
def test_simulated_rounds_decide_as_live_rounds_on_the_same_rows(seed):
    check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_simulated_rounds_decide_as_live_rounds(seed):
    check(seed)
