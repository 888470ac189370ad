"""The times of a job's events never go backwards, whatever the clocks of their writers say."""

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.lifecycle import JobEventKind
from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.services.lifecycle import (
    Note,
    admit_jobs,
    record_job_events,
    try_job_event,
    try_job_events,
)
from tests.factories.scheduling import NOW, make_two_tenants, submit

pytestmark = pytest.mark.django_db

KINDS = (
    JobEventKind.DISPATCH,
    JobEventKind.ALL_RUNNING,
    JobEventKind.CONTACT_LOST,
    JobEventKind.CONTACT_BACK,
    JobEventKind.PREEMPT,
    JobEventKind.RELEASED,
    JobEventKind.STOP,
)
ACTS = st.tuples(
    st.sampled_from(["one", "many", "note", "admit"]),
    st.sampled_from(KINDS),
    st.integers(-7200, 7200).map(lambda seconds: NOW + timedelta(seconds=seconds)),
)


@pytest.fixture
def jobs() -> list[Job]:
    make_two_tenants()
    return [submit(), submit()]


def act(name: str, jobs: list[Job], kind: JobEventKind, now: datetime) -> None:
    notes = {job.pk: Note() for job in jobs}
    if name == "one":
        try_job_event(job_id=jobs[0].pk, event=kind, now=now)
    elif name == "many":
        try_job_events(jobs=notes, event=kind, now=now)
    elif name == "note":
        record_job_events(notes=notes, kind="checkpoint", now=now)
    else:
        queued = Job.objects.unscoped().filter(state="queued").values_list("pk", flat=True)
        admit_jobs(jobs={pk: Note() for pk in queued}, now=now) if queued else None


def check(job: Job) -> None:
    job.refresh_from_db()
    events = list(JobEvent.objects.filter(job=job).order_by("id"))
    assert all(before.at <= after.at for before, after in pairwise(events))
    assert job.event_at in {None, events[-1].at}
    moves = [event for event in events if event.state]
    assert job.state_since == moves[-1].at
    if job.finished_at is not None:
        assert job.finished_at == job.state_since


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts=st.lists(ACTS, min_size=2, max_size=12))
def test_times_of_events_and_states_never_go_backwards(
    jobs: list[Job], acts: list[tuple[str, JobEventKind, datetime]]
) -> None:
    with transaction.atomic():
        for name, kind, now in acts:
            act(name, jobs, kind, now)

        for job in jobs:
            check(job)
        transaction.set_rollback(True)


def test_events_keep_their_own_times_where_clocks_agree(jobs: list[Job]) -> None:
    times = [NOW + timedelta(seconds=n) for n in (60, 70, 80)]
    admit_jobs(jobs={jobs[0].pk: Note()}, now=times[0])
    try_job_event(job_id=jobs[0].pk, event=JobEventKind.DISPATCH, now=times[1])
    try_job_events(jobs={jobs[0].pk: Note()}, event=JobEventKind.ALL_RUNNING, now=times[2])

    events = JobEvent.objects.filter(job=jobs[0]).order_by("id").values_list("at", flat=True)
    assert list(events)[1:] == times
