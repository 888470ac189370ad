"""Early stops of sweeps on stored metrics, and the results of a sweep."""

from typing import Any

import pytest
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.early_stopping import EarlyStop, StopRule
from scheduling.core.objectives import Goal, Objective
from scheduling.core.sweeps import SweepOptions
from scheduling.jobs.models import Job, JobEvent, Sweep
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.sweeps.queries import sweep_detail
from scheduling.sweeps.services import submit_sweep
from tenants.models import AuditEntry, User
from tenants.roles import Role
from tenants.selectors import viewer_of
from tests.factories.cluster import job_document, make_shared_cluster
from tests.factories.metric_points import add_values, member_of_job
from tests.factories.running import put_into, run_attempt
from workers.early_stops import EARLY_STOP, end_losing_runs
from workers.sweep_results import sweep_results

pytestmark = pytest.mark.django_db
ASHA = EarlyStop(rule=StopRule.ASHA, first_step=5, reduction=2)


@pytest.fixture
def cluster(db: None) -> None:
    make_shared_cluster(alice=Role.MEMBER)


def viewer() -> Any:
    return viewer_of(User.objects.get(username="alice"))


def make_sweep(values: int, *, early_stop: EarlyStop | None = ASHA) -> list[Job]:
    """A sweep over SEED whose jobs all run."""
    sweep, _ = submit_sweep(
        viewer=viewer(),
        document=job_document(),
        grid={"SEED": [str(value) for value in range(values)]},
        max_parallel=None,
        submit_context=read_submit_context(viewer=viewer(), images_ignored=False),
        now=timezone.now(),
        options=SweepOptions(objective=Objective("loss", Goal.MIN), early_stop=early_stop),
    )
    jobs = list(Job.objects.unscoped().filter(pk__gte=sweep.first_job).order_by("pk"))
    node = Node.objects.get(name="node-1")
    for place, job in enumerate(jobs):
        run_attempt(job, node, now=timezone.now(), devices=(place,))
        put_into(job, "running", now=timezone.now())
    return jobs


def test_runs_below_the_best_half_end_with_their_reason(cluster: None) -> None:
    jobs = make_sweep(4)
    for place, job in enumerate(jobs):
        add_values(member_of_job(job), [float(place)] * 8)

    ended = end_losing_runs(now=timezone.now())

    assert ended == [jobs[2].pk, jobs[3].pk]
    stopped = Job.objects.unscoped().get(pk=jobs[3].pk)
    assert stopped.state == "stopping"
    assert "successive halving: at step 5 its best loss is 3." in stopped.end_message
    assert JobEvent.objects.filter(job=stopped, detail__rule=EARLY_STOP).count() == 1
    assert AuditEntry.objects.unscoped().filter(action="job.stop").count() == 2
    assert end_losing_runs(now=timezone.now()) == []


def test_waiting_jobs_and_jobs_before_the_first_step_go_on(cluster: None) -> None:
    jobs = make_sweep(4)
    for place, job in enumerate(jobs):
        add_values(member_of_job(job), [float(place)] * (8 if place < 2 else 4))

    assert end_losing_runs(now=timezone.now()) == [jobs[1].pk]


def test_a_sweep_without_early_stops_is_not_read(
    cluster: None, django_assert_num_queries: Any
) -> None:
    make_sweep(4, early_stop=None)

    with django_assert_num_queries(1):
        assert end_losing_runs(now=timezone.now()) == []


def test_an_ended_sweep_is_no_longer_watched(cluster: None) -> None:
    jobs = make_sweep(2)
    Job.objects.unscoped().filter(pk__in=[job.pk for job in jobs]).update(
        state="succeeded", finished_at=timezone.now()
    )

    assert end_losing_runs(now=timezone.now()) == []
    assert not Sweep.objects.unscoped().filter(is_watched=True).exists()


def test_the_results_have_the_best_run_first_and_name_early_ends(cluster: None) -> None:
    jobs = make_sweep(4)
    for job, value in zip(jobs, (2.0, 1.0, 7.0), strict=False):
        add_values(member_of_job(job), [9.0, value, value + 0.5, *[8.0] * 5])
    end_losing_runs(now=timezone.now())

    found = sweep_results(
        sweep_detail(viewer(), Sweep.objects.unscoped().get().pk), now=timezone.now()
    )

    assert [(run.job.id, run.best, run.step, run.ended_early) for run in found.runs] == [
        (jobs[1].pk, 1.0, 7, False),
        (jobs[0].pk, 2.0, 7, True),
        (jobs[2].pk, 7.0, 7, True),
        (jobs[3].pk, None, None, False),
    ]
    assert found.best is not None
    assert found.best.job.point == {"SEED": "1"}
