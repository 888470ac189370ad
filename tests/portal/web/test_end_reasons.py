"""Preempted attempts are counted and named alike on all pages and in REST, whatever their exit."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import EVICTED, EndReason, PreemptionRule, end_reason
from scheduling.estimates.services.run_times import run_times
from scheduling.jobs.models import Job
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from scheduling.runs.services.progress import record_training_events
from scheduling.runs.services.stopping import preempt_job
from tenants.roles import Role
from tessera import protocol
from tests.factories.cluster import make_job, make_shared_cluster
from tests.factories.running import put_into, run_attempt
from tests.support.cluster_pages import read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice(client: Client) -> Client:
    make_shared_cluster(alice=Role.MEMBER)
    return sign_in(client, "alice")


def evicted_job(cause: PreemptionRule, *, code: int = 0, step: int | None = 1234) -> Job:
    """A job that saves a checkpoint and leaves in time."""
    now = timezone.now()
    node = Node.objects.order_by("id")[0]
    job = make_job(worker={"devices": 1})
    run_attempt(job, node, now=now, devices=(len(Job.objects.unscoped()) - 1,))
    put_into(job, "running", now=now)
    assert preempt_job(job_id=job.pk, for_job=0, rule="A rule", cause=cause, now=now)
    if step is not None:
        note = ("checkpoint", f"step {step}", {"step": step, "sha256": "ab" * 32})
        record_training_events(job_id=job.pk, attempt=1, notes=[note], now=now)
    record = protocol.ExitRecord(
        cause=protocol.CAUSE_STOPPED, failure="", at=now.timestamp(), code=code,
        message=f"the job was stopped: preempt (exit code {code})",
    )  # fmt: skip
    member = Member.objects.get(attempt__job=job)
    attempts.mark_exited(member_id=member.pk, record=record, now=now + timedelta(seconds=1))
    return job


def attempt_of(client: Client, job: Job) -> Mapping[str, Any]:
    (found,) = client.get(f"/api/v1/jobs/{job.pk}/attempts/").json()["results"]
    return found


def test_the_timeline_counts_preemptions_that_exit_cleanly(alice: Client) -> None:
    jobs = [evicted_job(PreemptionRule.INTRA_VC) for _ in range(2)]
    evicted_job(PreemptionRule.RESIZE)

    words = words_of(read(alice, "/timeline/"))
    table = words_of(read(alice, "/timeline/?view=table"))
    runs = alice.get("/api/v1/timeline/").json()["runs"]

    assert "Ended early 3 2 preempted, 1 resized, 0 failed" in words
    assert table.count("Preempted") == 2
    assert [run["state"] for run in runs if run["job"] in {job.pk for job in jobs}] == [
        "preempted",
        "preempted",
    ]


def test_attempts_receipts_and_events_name_the_same_end(alice: Client) -> None:
    job = evicted_job(PreemptionRule.INTER_VC)

    page = words_of(read(alice, f"/jobs/{job.pk}/attempts/"))
    events = alice.get(f"/api/v1/jobs/{job.pk}/events/").json()["results"]
    receipts = alice.get(f"/api/v1/jobs/{job.pk}/preemptions/").json()["results"]
    attempt = attempt_of(alice, job)

    assert (attempt["end_reason"], attempt["outcome"]) == ("preempted", "stopped")
    assert (attempt["suspended_by"], attempt["suspensions"]) == ("T5", 0)
    assert attempt["end_text"] == "Preempted, checkpoint at step 1,234"
    assert "Preempted, checkpoint at step 1,234" in page
    assert "Stopped" not in page
    assert "the job was stopped" not in page
    assert [one["attempt"] for one in receipts] == [1]
    (released,) = [event for event in events if event["kind"] == "released"]
    assert (released["text"], released["detail"]["end_reason"]) == ("Preempted.", "preempted")
    assert "Preempted." in words_of(read(alice, f"/jobs/{job.pk}/events/"))


@pytest.mark.parametrize(
    ("cause", "step", "reason", "text"),
    [
        (PreemptionRule.DRAIN, 7, "drained", "Drained, checkpoint at step 7"),
        (PreemptionRule.RESIZE, 7, "resized", "Resized, checkpoint at step 7"),
        (PreemptionRule.POLICY, None, "preempted", "Preempted, no checkpoint"),
    ],
)
def test_the_rule_of_the_eviction_names_the_end(
    alice: Client, cause: PreemptionRule, step: int | None, reason: str, text: str
) -> None:
    attempt = attempt_of(alice, evicted_job(cause, step=step))

    assert (attempt["end_reason"], attempt["end_text"]) == (reason, text)


def test_a_preempted_run_says_only_that_its_job_needs_longer(alice: Client) -> None:
    before = run_times(now=timezone.now()).remaining((), [0.5])[0]

    evicted_job(PreemptionRule.INTRA_VC)

    assert run_times(now=timezone.now()).remaining((), [0.5])[0] >= before


@pytest.mark.parametrize("rule", list(PreemptionRule))
@pytest.mark.parametrize("failure", ["", "preempted", "user"])
def test_only_success_outweighs_an_eviction(rule: PreemptionRule, failure: str) -> None:
    def reason(outcome: str) -> EndReason:
        return end_reason(outcome=outcome, failure_class=failure, evicted_by=rule.value)

    assert reason("succeeded") is EndReason.SUCCEEDED
    assert {reason("stopped"), reason("failed"), reason("")} <= EVICTED


def test_without_an_eviction_the_outcome_counts() -> None:
    def reason(outcome: str, failure: str = "") -> EndReason:
        return end_reason(outcome=outcome, failure_class=failure, evicted_by=None)

    assert reason("failed", "user") is EndReason.FAILED
    assert reason("failed", "preempted") is EndReason.PREEMPTED
    assert reason("") is EndReason.STOPPED
