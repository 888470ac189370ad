"""Measured paces of pairs: means, bounds, and one observation a minute."""

import math
from datetime import timedelta

import pytest

from scheduling.core.sharing.pairs import Paces
from scheduling.jobs.models import Job
from scheduling.runs.models import PairPace
from scheduling.runs.services import pairs
from scheduling.runs.services.pairs import PairObservation, observe_pairs
from tenants.roles import Role
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import make_tenant

pytestmark = pytest.mark.django_db
MINUTE = timedelta(seconds=60)


@pytest.fixture
def jobs() -> tuple[Job, Job]:
    make_cluster(1)
    make_priority_classes()
    make_virtual_cluster(tenant=make_tenant("vision", alice=Role.MEMBER))
    return make_job(name="bert"), make_job(name="resnet")


def seen(jobs: tuple[Job, Job], holder: float, guest: float) -> PairObservation:
    return PairObservation(jobs[0].pk, jobs[1].pk, "A100", Paces(holder, guest))


def test_observations_of_a_pair_are_averaged_one_a_minute(jobs: tuple[Job, Job]) -> None:
    added = [
        observe_pairs([seen(jobs, 1.0, 0.2)], now=NOW),
        observe_pairs([seen(jobs, 0.0, 0.0)], now=NOW + MINUTE / 2),
        observe_pairs([seen(jobs, 0.9, 0.4)], now=NOW + MINUTE),
    ]

    (row,) = PairPace.objects.all()
    assert added == [1, 0, 1]
    assert row.record.holder == pytest.approx(0.95)
    assert row.record.guest == pytest.approx(0.3)
    assert row.observations == 2.0


def test_hostile_values_are_limited_or_dropped(jobs: tuple[Job, Job]) -> None:
    assert observe_pairs([seen(jobs, math.nan, 0.2)], now=NOW) == 0
    assert observe_pairs([seen(jobs, 1e300, -5.0)], now=NOW) == 1

    assert PairPace.objects.values_list("holder_pace", "guest_pace").get() == (1.0, 0.0)


def test_jobs_of_one_application_share_their_observations(jobs: tuple[Job, Job]) -> None:
    other = make_job(name="other", labels={"application": "x"})
    again = make_job(name="again", labels={"application": "x"})

    observe_pairs([seen((other, jobs[1]), 1.0, 0.2)], now=NOW)
    observe_pairs([seen((again, jobs[1]), 1.0, 0.4)], now=NOW + MINUTE)

    assert PairPace.objects.get().observations == 2.0


def test_old_pairs_are_deleted_and_their_number_is_limited(
    jobs: tuple[Job, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "MOST_PAIRS", 1)
    observe_pairs([seen(jobs, 1.0, 0.2)], now=NOW)

    assert observe_pairs([seen((jobs[1], jobs[0]), 1.0, 0.2)], now=NOW + MINUTE) == 0
    assert observe_pairs([seen((jobs[1], jobs[0]), 1.0, 0.2)], now=NOW + pairs.KEPT * 2) == 1
    assert PairPace.objects.count() == 1
