"""The form of a random search with early stops, and the page of its runs, best first."""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job, Sweep
from tests.factories.metric_points import add_values, member_of_job
from tests.factories.running import put_into, run_attempt
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of
from workers.early_stops import end_losing_runs

pytestmark = pytest.mark.django_db
YAML = """
name: detector
virtual_cluster: vision-a
class: opportunistic
roles: {worker: {devices: 1, command: echo $LR}}
"""
FORM = {
    "yaml": YAML,
    "parameters": "LR = loguniform(1e-4, 1e-1)",
    "samples": "4",
    "seed": "3",
    "metric": "val/loss",
    "goal": "min",
    "rule": "asha",
    "first_step": "5",
    "reduction": "2",
}


@pytest.fixture
def stage() -> Stage:
    return make_stage(3)


@pytest.fixture
def sweep(client: Client, stage: Stage) -> Sweep:
    """Four runs, of which the last two are the worst."""
    sign_in(client, "alice")
    response = client.post("/sweeps/new/", FORM)
    assert response.status_code == 302, response.content
    found = Sweep.objects.unscoped().get()
    jobs = Job.objects.unscoped().filter(pk__gte=found.first_job).order_by("pk")
    for place, job in enumerate(jobs):
        node = Node.objects.get(name="node-3")
        run_attempt(job, node, now=timezone.now(), devices=(place,))
        put_into(job, "running", now=timezone.now())
        add_values(member_of_job(job), [2.0 + place] * 8, name="val/loss")
    return found


def test_the_page_names_the_best_run_and_early_ends(client: Client, sweep: Sweep) -> None:
    ended = end_losing_runs(now=timezone.now())

    page = read(client, f"/sweeps/{sweep.pk}/")

    text = words_of(page)
    assert ended == [sweep.first_job + 2, sweep.first_job + 3]
    for part in (
        "Best val/loss 2 detector 1, step 7",
        "Ended early 2",
        "random search, seed 3: LR",
    ):
        assert part in text, part
    rows = re.findall(r'<td class="lead">.*?/jobs/(\d+)/', page, re.DOTALL)
    assert list(map(int, rows)) == list(range(sweep.first_job, sweep.first_job + 4))
    assert text.count("ended early") == 2
    best = ",".join(str(sweep.first_job + place) for place in range(4))
    assert f"/jobs/compare/?jobs={best}&amp;name=val/loss" in page
    assert f"/submit/?clone={sweep.first_job}" in page


def test_the_points_are_drawn_within_the_range(sweep: Sweep) -> None:
    jobs = Job.objects.unscoped().filter(pk__gte=sweep.first_job)
    rates = {float(job.spec["roles"]["worker"]["env"]["LR"]) for job in jobs}

    assert len(rates) == sweep.jobs == 4
    assert all(1e-4 <= rate <= 0.1 for rate in rates)


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": "x"},
        {"samples": "1001"},
        {"goal": "best"},
        {"rule": "other"},
        {"first_step": "0"},
        {"reduction": "1"},
        {"metric": ""},
        {"parameters": "LR = loguniform(0, 1)"},
        {"samples": ""},
    ],
)
def test_wrong_options_are_refused(client: Client, stage: Stage, wrong: dict[str, Any]) -> None:
    sign_in(client, "alice")

    assert client.post("/sweeps/new/", {**FORM, **wrong}).status_code == 422
    assert not Sweep.objects.unscoped().exists()


def test_another_tenant_gets_404(client: Client, sweep: Sweep) -> None:
    assert sign_in(client, "bob").get(f"/sweeps/{sweep.pk}/").status_code == 404
