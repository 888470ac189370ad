"""Sums of what people have used: never less, never twice."""

from datetime import timedelta

import pytest

from scheduling.models import Lease
from scheduling.selectors.tenant_use import use_by_person, use_by_tenant
from scheduling.services import use_totals
from scheduling.services.use_totals import MARGIN, roll_up_use
from tenants.models import Tenant, UsedSoFar
from tests.factories.scheduling import NOW, end, make_two_tenants, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def job():
    make_two_tenants()
    made = submit(devices=2)
    start(made)
    return made


def everything(now):
    viewer, vision = make_viewer("root"), Tenant.objects.unscoped().get(name="vision")
    return use_by_tenant(viewer, now=now), use_by_person(viewer, vision.pk, now=now)


def test_readers_see_the_same_before_and_after_it_is_summed_up(job):
    end(job, at=NOW + HOUR)
    before = everything(NOW + 2 * HOUR)
    assert before[0][job.tenant_id].hours.slot == pytest.approx(2.0)

    assert roll_up_use(now=NOW + 2 * HOUR) == 1

    Lease.objects.all().delete()
    assert everything(NOW + 2 * HOUR) == before
    assert job.tenant_id not in use_by_tenant(make_viewer("bob"), now=NOW + 2 * HOUR)


def test_what_was_summed_up_is_not_summed_up_again(job):
    end(job, at=NOW + HOUR)
    before = everything(NOW + 2 * HOUR)

    for minutes in (0, 0, 30, 60):
        roll_up_use(now=NOW + 2 * HOUR + timedelta(minutes=minutes))

    assert everything(NOW + 2 * HOUR) == before


def test_what_runs_or_has_just_ended_waits_for_the_next_time(job):
    now = NOW + HOUR

    assert roll_up_use(now=now) == 0
    end(job, at=now - MARGIN / 2)
    assert roll_up_use(now=now) == 0
    seen = everything(now)
    assert roll_up_use(now=now + MARGIN) == 1
    assert everything(now) == seen


def test_of_two_who_sum_up_at_once_one_writes_nothing(job, monkeypatch):
    end(job, at=NOW + HOUR)
    now = NOW + 2 * HOUR
    before, ended = everything(now), use_totals._ended

    def overtaken(since, until):
        found = ended(since, until)
        monkeypatch.setattr(use_totals, "_ended", ended)
        assert roll_up_use(now=now) == 1
        return found

    monkeypatch.setattr(use_totals, "_ended", overtaken)

    assert roll_up_use(now=now) == 0
    assert everything(now) == before
    assert UsedSoFar.objects.unscoped().count() == 1
