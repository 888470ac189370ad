"""Totals of use: the same before and after days are summed up and months closed."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from scheduling.jobs.models import Job
from scheduling.notices.services.quotas import gpu_hours_since, month_start
from scheduling.runs.models import Lease
from scheduling.usage.queries.device_hours import use_by_person, use_by_tenant
from scheduling.usage.services.usage import close_months, sum_all_usage, sum_usage
from tenants.models import Tenant, UsedSoFar
from tests.factories.scheduling import NOW, end, make_two_tenants, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
LATER = NOW + timedelta(days=70)


@pytest.fixture
def job():
    make_two_tenants()
    made = submit(devices=2)
    start(made)
    return made


def everything(now):
    viewer, vision = make_viewer("root"), Tenant.objects.unscoped().get(name="vision")
    found = (use_by_tenant(viewer, now=now), use_by_person(viewer, vision.pk, now=now))
    return [{who: round(use.hours.slot, 6) for who, use in each.items()} for each in found]


def test_readers_see_the_same_before_and_after_it_is_summed_up(job):
    end(job, at=NOW + HOUR)
    before = everything(NOW + 2 * HOUR)
    assert before[0][job.tenant_id] == pytest.approx(2.0)

    sum_usage(now=NOW + 2 * HOUR)

    Lease.objects.all().delete()
    assert everything(NOW + 2 * HOUR) == before
    assert job.tenant_id not in use_by_tenant(make_viewer("bob"), now=NOW + 2 * HOUR)


def test_what_runs_on_after_a_sum_is_counted_once(job):
    for minutes in (0, 15, 15, 70):
        sum_usage(now=NOW + timedelta(minutes=minutes))

    assert everything(NOW + 2 * HOUR)[0][job.tenant_id] == pytest.approx(4.0)
    assert use_by_tenant(make_viewer("root"), now=NOW + 2 * HOUR)[job.tenant_id].devices == 2


def test_what_is_summed_up_while_somebody_reads_is_counted_once(job):
    sum_usage(now=NOW + HOUR)
    later = NOW + 2 * HOUR
    is_summed: list[bool] = []

    def sum_up_before_days_are_read(execute, sql, params, many, context):
        if not is_summed and sql.startswith("SELECT") and "usageday" in sql:
            is_summed.append(True)
            sum_usage(now=later)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(sum_up_before_days_are_read):
        read = use_by_tenant(make_viewer("root"), now=later)

    assert is_summed
    assert read[job.tenant_id].hours.slot == pytest.approx(4.0)


def test_closed_months_are_added_once_and_read_the_same(job):
    end(job, at=NOW + HOUR)
    sum_all_usage(now=LATER)
    before = everything(LATER)

    closed = close_months(now=LATER)
    close_months(now=LATER + HOUR)

    assert closed
    assert everything(LATER) == before
    row = UsedSoFar.objects.unscoped().get()
    assert row.seconds == pytest.approx(2 * 3600)
    assert row.until.day == 1


def test_hours_of_a_month_stay_when_the_jobs_of_it_are_forgotten(job):
    Lease.objects.all()[0].device.__class__.objects.update(is_gpu=True)
    end(job, at=NOW + HOUR)
    ask: dict[str, Any] = {"now": NOW + 2 * HOUR, "tenant_ids": {job.tenant_id}}
    before = gpu_hours_since(month_start(NOW), **ask)
    assert before == {job.tenant_id: pytest.approx(2.0)}
    sum_usage(now=NOW + 90 * HOUR / 60)

    Job.objects.unscoped().all().delete()

    assert gpu_hours_since(month_start(NOW), **ask) == before
