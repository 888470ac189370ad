"""Start estimates begin at their gate, and unreliable ranges are not shown."""

import math
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.web.components import words
from scheduling.core.forecast import HORIZON
from scheduling.core.forecast.calibration import (
    COMPARED,
    Basis,
    Calibration,
    Forecast,
    PastEstimate,
)
from scheduling.estimates.models import EstimateRecord, StartEstimate
from scheduling.estimates.queries import calibration
from scheduling.estimates.services.corrections import lessons_of
from scheduling.estimates.services.estimates import estimate_starts
from scheduling.jobs.models import Job
from scheduling.jobs.queries.jobs import rows_of_jobs
from scheduling.jobs.queries.why import Why, why
from tessera.cli.jobs import in_words
from tessera.ranges import start_range
from tests.factories.cluster import NOW
from tests.factories.estimates import store_waits
from tests.factories.scheduling import CONFIG, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db
GATE = NOW + timedelta(hours=1)
LATER = NOW + timedelta(seconds=60)


def answer_of(job: Job) -> Why:
    return why(make_viewer("alice"), job.pk, now=LATER, round_seconds=1000.0)


def estimate(job: Job) -> StartEstimate:
    run_round(NOW)
    estimate_starts(config=CONFIG, now=LATER)
    return StartEstimate.objects.get(pk=job.pk)


def test_a_job_with_a_time_gate_alone_starts_at_its_gate() -> None:
    make_two_tenants(nodes=2)
    job = submit(devices=1, not_before=GATE.isoformat())

    row = estimate(job)

    assert (row.p10, row.p50, row.p90, row.basis) == (GATE, GATE, GATE, "gate")
    assert not EstimateRecord.objects.exists()
    eta = answer_of(job).eta
    assert eta is not None
    p10, _, p90 = eta.seconds(LATER)
    assert words.estimate(p10, p90, LATER, soonest=eta.opens_in(LATER)) == f"at {GATE:%H:%M}"
    body = {"p10": p10, "p90": p90, "gate": eta.opens_in(LATER)}
    assert in_words(body, LATER, utc=True) == f"at {GATE:%H:%M} UTC"


def test_a_job_after_a_gated_job_starts_no_earlier_than_that_gate() -> None:
    make_two_tenants(nodes=2)
    first = submit(devices=1, not_before=GATE.isoformat())
    second = submit(devices=1, after=[first.pk])

    row = estimate(second)

    assert row.opens_at == GATE
    assert row.p10 is None or row.p10 >= GATE


@pytest.mark.parametrize("soonest", [1.0, 59.5, 61.0, 1234.5, 50_000.0])
@pytest.mark.parametrize("longer", [0.0, 0.4, 10.0, 4000.0, math.inf])
def test_no_range_is_rounded_to_before_its_gate(soonest: float, longer: float) -> None:
    found = start_range(soonest, soonest + longer, soonest=soonest)

    assert found is not None
    assert found.low >= soonest
    assert found.high is None or found.high >= found.low
    assert found.is_point is (longer == 0.0)


def lessons(told: tuple[float, float, float], waits: list[float]) -> Calibration:
    """Estimates that came true one after another."""
    found, at = Calibration(), 0.0
    for number, wait in enumerate(waits):
        found.keep(number, PastEstimate(quantiles=told, wait=wait, made=at))
        found.close(number, now=at + wait)
        at += wait + 1.0
    return found


def test_the_usual_waits_replace_futures_that_were_farther_from_the_truth() -> None:
    waits = [30.0 + n % 7 for n in range(COMPARED + 20)]
    wrong = lessons((5_000.0, 20_000.0, 400_000.0), waits)
    few = lessons((5_000.0, 20_000.0, 400_000.0), waits[: COMPARED - 1])

    found = wrong.forecast((5_000.0, 20_000.0, 400_000.0), now=1e6)

    assert found.basis is Basis.WAITS
    assert 30.0 <= found.quantiles[0] <= found.quantiles[2] <= 36.0
    assert few.forecast((9.0, 9.0, 9.0), now=1e6).basis is Basis.FORECAST
    gated = wrong.forecast((600.0, 20_000.0, 400_000.0), now=1e6, soonest=600.0)
    assert min(gated.quantiles) >= 600.0


@pytest.mark.parametrize(
    ("p10", "p90", "is_reliable"),
    [(0.0, 7200.0, True), (0.0, 7201.0, False), (3600.0, 28_800.0, True), (3600.0, 28_801, False)],
)
def test_a_range_of_more_than_eight_times_is_unreliable(
    p10: float, p90: float, is_reliable: bool
) -> None:
    found = Forecast(quantiles=(p10, p90 / 2, p90), basis=Basis.FORECAST)

    assert found.is_reliable is is_reliable


@pytest.fixture
def unreliable() -> Job:
    """A job that waits for one of alice's without a time limit, with a range of two weeks."""
    make_two_tenants(nodes=2)
    first = submit(devices=8, name="train-8")
    start(first)
    second = submit(devices=8, name="train-9")
    run_round(NOW)
    store_waits((60.0,) * 6 + (4_000.0,) * 8 + (1_000_000.0,) * 6, of=second, now=LATER)
    return second


def test_a_range_of_two_weeks_is_not_shown_and_names_its_cause(unreliable: Job) -> None:
    running = Job.objects.unscoped().get(name="train-8")

    answer = answer_of(unreliable)
    row = rows_of_jobs(make_viewer("alice"), [unreliable.pk])[unreliable.pk]

    assert answer.eta is None
    assert answer.no_eta == "No reliable estimate: 1 running job has no time limit."
    assert answer.unlimited == (running.pk,)
    assert f"Set max_duration on job {running.pk} to get a start estimate." in answer.unblock
    assert (row.eta, row.no_eta) == (None, answer.no_eta)


def test_jobs_of_others_are_counted_and_not_named(unreliable: Job) -> None:
    foreign = submit(username="bob")
    StartEstimate.objects.filter(pk=unreliable.pk).update(unlimited=[foreign.pk])

    answer = answer_of(unreliable)

    assert answer.no_eta == "No reliable estimate: 1 running job has no time limit."
    assert answer.unlimited == ()


def test_rest_and_pages_show_the_same_text(client: Client, unreliable: Job) -> None:
    running = Job.objects.unscoped().get(name="train-8")
    client.force_login(running.owner)
    Job.objects.unscoped().filter(pk=unreliable.pk).update(reason_text="It waits.")
    now = timezone.now()
    for one in (StartEstimate.objects.get(pk=unreliable.pk),):
        one.made_at = now
        one.save()
    run_round(now)

    body: dict[str, Any] = client.get(f"/api/v1/jobs/{unreliable.pk}/why/").json()
    page = " ".join(client.get(f"/jobs/{unreliable.pk}/").content.decode().split())
    listed = client.get(f"/api/v1/jobs/{unreliable.pk}/").json()

    assert body["eta"] is None
    assert body["no_eta"] == {
        "text": "No reliable estimate: 1 running job has no time limit.",
        "jobs": [running.pk],
    }
    assert "No reliable estimate: 1 running job has no time limit." in page
    assert f'Running jobs without a time limit: <a href="/jobs/{running.pk}/">' in page
    assert listed["expected_start"] is None


def test_forecasts_that_were_not_shown_do_not_count_as_shown(unreliable: Job) -> None:
    EstimateRecord.objects.update(wait=100.0, closed_at=LATER)

    (found,) = calibration(make_viewer("alice"), now=LATER)

    assert (found.estimates, found.withheld) == (0, 1)


def test_a_job_without_an_estimate_has_its_reason_and_teaches_its_wait() -> None:
    make_two_tenants(nodes=2)
    start(submit(devices=8))
    waiting = submit(devices=8)
    run_round(NOW)

    assert store_waits((math.inf,) * 5, of=waiting, now=LATER) == 0

    answer = answer_of(waiting)
    assert answer.eta is None
    assert answer.no_eta == (
        "No start estimate: too few jobs of this virtual cluster have started after a wait."
    )
    record = EstimateRecord.objects.get(job=waiting)
    assert (record.shown, record.raw_p10) == (False, HORIZON)
    EstimateRecord.objects.update(wait=100.0, closed_at=LATER)
    learned = lessons_of([waiting.virtual_cluster_id], now=LATER + timedelta(seconds=200))
    (found,) = learned.values()
    assert found._waits == [pytest.approx(100.0 + record.waited)]
    assert found.usual_miss == 0.0
