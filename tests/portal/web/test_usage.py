"""The page of usage, its file and its REST twin."""

import csv
import io
import re
from datetime import date, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.jobs.models import Job
from scheduling.notices.models import GpuHourBudget
from scheduling.usage.models import UsageDay
from scheduling.usage.services.usage import sum_usage
from tenants.models import Tenant
from tests.factories.running import ran
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    made = make_stage(2)
    Job.objects.unscoped().filter(pk=made.running.pk).update(name="=1+1")
    start = timezone.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ran(made.running, start)
    ran(made.foreign, start)
    sum_usage(now=timezone.now())
    return made


def test_the_month_is_shown_by_tenant_person_job_and_day(client: Client, stage: Stage) -> None:
    sign_in(client, "root")

    for by, word in (
        ("tenant", "language"),
        ("person", "alice"),
        ("job", "secret-name"),
        ("virtual_cluster", "vision-a"),
        ("day", f"{timezone.now():%Y-%m}-01"),
    ):
        assert word in words_of(read(client, f"/usage/?by={by}")), by
    assert ">Day</th>" in read(client, "/usage/?by=day")
    for month in ("2026-13", "0000-01", "9999-12"):
        read(client, f"/usage/?month={month}", status=400)
    assert "No usage in this month" in read(client, "/usage/?month=2001-01")


def test_members_see_and_export_only_their_own_use(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    addresses = (
        "/usage/?by=job",
        "/usage/export.csv?by=job",
        "/api/v1/usage/?by=job",
        "/api/v1/usage/?by=job&format=csv",
    )
    for address in addresses:
        text = read(client, address)
        assert "secret-name" not in text
        assert not re.search(r"\bbob\b", text)
    assert "Your own usage only" in read(client, "/usage/")


def test_the_file_has_plain_texts_and_the_numbers_of_the_twin(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "root")

    rows = list(csv.DictReader(io.StringIO(read(client, "/usage/export.csv?by=job"))))
    twin = client.get("/api/v1/usage/?by=job").json()

    by_job = {int(row["job"]): row for row in rows}
    assert by_job[stage.running.pk]["name"] == "'=1+1"
    told = {line["job"]: line for line in twin["lines"]}
    unit = "slot_hours" if by_job[stage.foreign.pk]["unit"] == "slot" else "gpu_hours"
    assert float(by_job[stage.foreign.pk]["borrowed_hours"]) == pytest.approx(
        told[stage.foreign.pk][unit]["borrowed"], abs=0.001
    )
    assert client.get("/api/v1/usage/?by=colour").status_code == 400
    assert client.get("/api/v1/usage/?since=2020-01-01").status_code == 400
    last = client.get("/api/v1/usage/?since=9999-12-01&until=9999-12-31")
    assert (last.status_code, last.json()["errors"][0]["field"]) == (400, "since")


def test_the_twin_answers_with_the_file_too(client: Client, stage: Stage) -> None:
    sign_in(client, "root")
    address = "/api/v1/usage/?by=job"

    by_header = client.get(address, headers={"accept": "text/csv"})
    by_parameter = client.get(f"{address}&format=csv")

    assert by_header.content == by_parameter.content
    assert f"'=1+1,vision,{stage.running.pk},alice" in by_header.content.decode()
    assert by_header.content.decode().splitlines()[0].startswith("since,until,name,tenant")
    assert by_header.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in by_header.headers["Content-Disposition"]
    assert "private" in by_header.headers["Cache-Control"]
    wrong = client.get("/api/v1/usage/?by=colour&format=csv")
    assert (wrong.status_code, wrong.headers["Content-Type"]) == (400, "application/problem+json")
    assert wrong.json()["errors"][0]["field"] == "by"
    wrong = client.get(f"{address}&format=xml")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "format")
    for accept in ("*/*", "application/json"):
        assert client.get(address, headers={"accept": accept}).json()["lines"]
    assert client.get(f"{address}&format=json").json()["lines"]
    schema = client.get("/api/schema/", headers={"accept": "application/json"}).json()
    described = schema["paths"]["/api/v1/usage/"]["get"]["responses"]
    assert set(described["200"]["content"]) == {"application/json", "text/csv"}
    assert set(described["default"]["content"]) == {"application/problem+json"}


def test_charts_show_use_by_day_and_the_budget_that_is_left(client: Client, stage: Stage) -> None:
    first = timezone.now().date().replace(day=1)
    UsageDay.objects.unscoped().all().delete()
    for job in (stage.running, stage.foreign):
        UsageDay.objects.create(
            tenant=job.tenant,
            virtual_cluster=job.virtual_cluster,
            owner=job.owner,
            is_gpu=True,
            day=first,
            guaranteed=7200.0,
        )
    GpuHourBudget.objects.create(tenant=stage.vision, hours=8.0)
    GpuHourBudget.objects.create(tenant=stage.language, hours=4.0)
    sign_in(client, "root")

    days = client.get("/usage/days.json").json()
    budget = client.get("/usage/budget.json").json()

    bars = {trace["name"]: trace["y"][0] for trace in days["data"] if trace["type"] == "bar"}
    assert bars == {"vision": 2.0, "language": 2.0}
    (pace,) = [trace["y"][0] for trace in days["data"] if trace["name"] == "budget per day"]
    assert pace == round(12 / len(days["data"][0]["x"]), 2)
    left = {trace["name"]: trace["y"][0] for trace in budget["data"]}
    assert (left["vision"], left["language"]) == (75.0, 50.0)
    assert budget["summary"].startswith("Lowest remaining budget: language")
    GpuHourBudget.objects.unscoped().filter(tenant=stage.language).update(hours=1.0)
    over = client.get("/usage/budget.json").json()["summary"]
    assert words_of(over) == "language is over its budget by 100 %."
    assert client.get("/usage/nothing.json").status_code == 404
    assert client.get("/usage/days.json?month=2026-13").status_code == 400
    sign_in(client, "alice")
    for chart in ("days", "budget"):
        assert "language" not in client.get(f"/usage/{chart}.json").content.decode()
    # A member sees only their own use, so the budget of the tenant would look too full.
    assert client.get("/usage/budget.json").json()["data"] == []


def test_days_of_a_cluster_without_gpus_are_slot_hours(client: Client, stage: Stage) -> None:
    UsageDay.objects.unscoped().update(is_gpu=False, guaranteed=7200.0, borrowed=0.0)
    GpuHourBudget.objects.create(tenant=stage.vision, hours=8.0)
    sign_in(client, "root")

    days = client.get("/usage/days.json").json()

    assert {trace["name"] for trace in days["data"]} == {"language", "vision"}
    hours = 2.0 * UsageDay.objects.unscoped().count()
    assert sum(sum(trace["y"]) for trace in days["data"]) == hours
    assert days["layout"]["yaxis"]["title"]["text"] == "slot-hours"
    assert "slot-hours in this month; most by" in days["summary"]
    assert '<span class="remark">slot-hours</span>' in read(client, "/usage/")


def test_months_begin_with_the_first_use_of_the_viewers_tenants(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")
    this = timezone.now().date().replace(day=1)

    def months() -> list[str]:
        return re.findall(r"month=(\d{4}-\d\d)&amp;by=", read(client, "/usage/"))

    assert set(months()) == {f"{this:%Y-%m}"}
    last = (this - timedelta(days=1)).replace(day=1)

    def move(tenant: Tenant, day: date) -> None:
        rows = UsageDay.objects.unscoped().filter(tenant=tenant)
        rows.exclude(pk=rows.values_list("pk", flat=True)[0]).delete()
        rows.update(day=day)

    move(stage.language, last)
    assert set(months()) == {f"{this:%Y-%m}"}
    move(stage.vision, last)
    assert set(months()) == {f"{this:%Y-%m}", f"{last:%Y-%m}"}
    move(stage.vision, date(2001, 1, 1))
    assert len(set(months())) == 6


def test_members_are_not_told_that_their_tenant_has_no_budget(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")

    def summary() -> str:
        return str(client.get("/usage/budget.json").json()["summary"])

    GpuHourBudget.objects.create(tenant=stage.language, hours=4.0)
    assert summary() == "No tenant has a budget of GPU-hours."
    GpuHourBudget.objects.create(tenant=stage.vision, hours=8.0)
    assert summary() == "Only leads of a tenant see the burn-down of its budget."
