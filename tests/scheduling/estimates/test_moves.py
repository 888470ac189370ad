"""Moves against fragmentation: submissions of the last day, and their execution."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.core.lifecycle import JobState
from scheduling.estimates.models import FragmentationForecast
from scheduling.estimates.services.fragmentation import store_forecast
from scheduling.estimates.services.moves import carry_out_moves, recent_submissions
from scheduling.jobs.models import Job
from scheduling.runs.models import Preemption
from tenants.errors import ConflictError, ForbiddenError, NotFoundError
from tenants.models import AuditEntry, User
from tenants.selectors import viewer_of
from tenants.viewers import Viewer
from tests.factories.scheduling import CONFIG
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db
ADDRESS = "/api/v1/fragmentation/moves/"


@pytest.fixture
def stage() -> Stage:
    """Alice holds 2 devices of one node, bob 4 of another one, and one job of alice waits."""
    return make_stage(3)


def jobs(state: JobState) -> list[Job]:
    return list(Job.objects.unscoped().filter(state=state).order_by("id"))


def store_proposal(**other: Any) -> FragmentationForecast:
    """Store a proposal to move the first running job for the job that waits."""
    (waiting, *_), (running, *_) = jobs(JobState.QUEUED), jobs(JobState.RUNNING)
    move = {
        "job_id": running.pk,
        "devices": running.devices,
        "since": running.state_since.timestamp(),
        "lost": 60.0,
        "restart": 30.0,
        "before": [],
        "after": [],
        **other,
    }
    proposal = {
        "job_id": waiting.pk,
        "devices": waiting.devices,
        "moves": [move],
        "gain": 7200.0,
        "cost": 360.0,
        "sure": 1.0,
        "futures": 20,
        "after": [],
    }
    stored = store_forecast(config=CONFIG, now=timezone.now(), defragmentation="off", futures=1)
    stored.moves = [proposal]
    stored.save()
    return stored


def carry_out(stored: FragmentationForecast, viewer: Viewer | None = None) -> None:
    carry_out_moves(
        viewer=viewer or Viewer.system("tests"),
        job_id=stored.moves[0]["job_id"],
        round_number=stored.round_number,
        now=stored.made_at,
    )


def test_submissions_of_the_last_day_are_drawn_from(stage: Stage) -> None:
    now = timezone.now()
    every = Job.objects.unscoped()
    every.exclude(state=JobState.QUEUED).update(submitted_at=now - timedelta(hours=23))
    every.filter(state=JobState.QUEUED).update(submitted_at=now - timedelta(hours=25))

    found = recent_submissions(now=now)

    assert {one.job.id for one in found.jobs} == {
        job.pk for job in Job.objects.unscoped().exclude(state=JobState.QUEUED)
    }
    assert found.seconds == timedelta(hours=24).total_seconds()


def test_a_moved_job_is_preempted_for_the_waiting_one(stage: Stage) -> None:
    stored = store_proposal()
    moved = stored.moves[0]["moves"][0]["job_id"]

    carry_out(stored)

    assert Job.objects.unscoped().get(pk=moved).state == JobState.PREEMPTING
    receipt = Preemption.objects.get(job_id=moved)
    assert (receipt.cause, receipt.for_job_id) == ("move", stored.moves[0]["job_id"])
    assert receipt.rule == f"It moves, so that job {receipt.for_job_id} can start."
    assert AuditEntry.objects.unscoped().filter(action="job.move", object_id=str(moved)).exists()
    with pytest.raises(ConflictError, match="has changed its state"):
        carry_out(stored)
    assert Preemption.objects.count() == 1


def test_a_run_that_has_ended_since_is_not_moved(stage: Stage) -> None:
    stored = store_proposal(since=1.0)

    with pytest.raises(ConflictError, match="has changed its state"):
        carry_out(stored)

    assert not Preemption.objects.exists()


def test_of_two_moves_none_happens_if_one_cannot(stage: Stage) -> None:
    stored = store_proposal()
    gone = {**stored.moves[0]["moves"][0], "job_id": 10**6}
    stored.moves[0]["moves"].append(gone)
    stored.save()

    with pytest.raises(ConflictError):
        carry_out(stored)

    assert not jobs(JobState.PREEMPTING)
    assert not Preemption.objects.exists()


def test_old_unknown_and_foreign_proposals_are_refused(stage: Stage) -> None:
    stored = store_proposal()
    stored.made_at -= timedelta(hours=1)
    stored.save()
    system, job_id = Viewer.system("tests"), stored.moves[0]["job_id"]
    now = timezone.now()

    with pytest.raises(ConflictError, match="older than 20 minutes"):
        carry_out_moves(viewer=system, job_id=job_id, round_number=stored.round_number, now=now)
    with pytest.raises(NotFoundError):
        carry_out_moves(
            viewer=system, job_id=job_id, round_number=stored.round_number + 1, now=now
        )
    with pytest.raises(ForbiddenError):
        carry_out(stored, viewer=viewer_of(User.objects.get(username="alice")))


def test_by_setting_the_best_moves_are_carried_out(stage: Stage) -> None:
    proposal = store_proposal().moves[0]

    def store(defragmentation: str) -> None:
        store_forecast(
            config=CONFIG,
            now=timezone.now(),
            defragmentation=defragmentation,
            futures=1,
            find=lambda *_, **__: [proposal],
        )

    store("propose")
    assert not jobs(JobState.PREEMPTING)
    store("carry-out")
    store("carry-out")

    assert [job.pk for job in jobs(JobState.PREEMPTING)] == [proposal["moves"][0]["job_id"]]
    assert Preemption.objects.get().by == "defragmentation"


def test_admins_see_the_moves_and_members_do_not(client: Client, stage: Stage) -> None:
    stored = store_proposal()
    (moved,) = stored.moves[0]["moves"]
    sign_in(client, "alice")
    assert "Moves that free devices" not in words_of(read(client, "/fragmentation/"))
    assert client.get(ADDRESS).status_code == 403
    carried = f"/api/v1/fragmentation/{stored.moves[0]['job_id']}/carry-out/"
    body = {"round_number": stored.round_number}
    assert client.post(carried, body, "application/json").status_code == 403

    sign_in(client, "root")
    text = words_of(read(client, "/fragmentation/"))
    assert "Mean gain 2.0 device-hours, mean cost 0.1 device-hours" in text
    (found,) = client.get(ADDRESS).json()
    assert found["moves"][0]["job_id"] == moved["job_id"]
    assert client.post(carried, body, "application/json").status_code == 204
    assert [job.pk for job in jobs(JobState.PREEMPTING)] == [moved["job_id"]]


def test_whole_cells_after_the_moves_are_one_tile(client: Client, stage: Stage) -> None:
    stored = store_proposal()
    sign_in(client, "root")
    stored.moves[0]["after"] = [device.address for device in stage.nodes[2].devices.all()]
    stored.save()

    text = words_of(read(client, "/fragmentation/"))

    assert f"{stage.waiting.pk} waits-here" in text
    assert "8 free" in text


def test_the_button_carries_the_moves_out(client: Client, stage: Stage) -> None:
    stored = store_proposal()
    sign_in(client, "root")
    address = f"/fragmentation/moves/{stored.moves[0]['job_id']}/"

    bad = client.post(address, {"round": "x"}, follow=True)
    good = client.post(address, {"round": stored.round_number}, follow=True)

    assert "has no moves for job" in words_of(bad.content.decode())
    assert "got a notice to release their devices" in words_of(good.content.decode())
    assert len(jobs(JobState.PREEMPTING)) == 1
