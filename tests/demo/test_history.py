"""The demo's history: decided by rounds, marked, and complete when the portal starts."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from demo.content import announce_history, ask_example, furnish
from demo.history import BEFORE_NOW, add_history
from demo.nodes import prepare_node
from demo.past_jobs import HOURS, MARK, NOTE, past_jobs
from demo.places import NODES
from scheduling.clusters.models import Node
from scheduling.clusters.services.nodes import add_node
from scheduling.core.lifecycle import LIVE
from scheduling.jobs.models import Job
from scheduling.maintenance.invariants import violations
from scheduling.rounds.models import Round
from scheduling.runs.models import Attempt, Lease, Preemption
from scheduling.storage.directory import DirectoryStorage
from scheduling.usage.models import FleetInterval
from scheduling.what_if.models import WhatIf
from scheduling.what_if.services.what_if import answer_what_if
from tenants.clock import database_now
from tenants.models import Announcement
from tenants.viewers import Viewer
from tessera.node import probe

pytestmark = pytest.mark.django_db


def make_demo(folder: Path, now: datetime) -> None:
    """Create the demo's nodes, people and shares, without SSH servers."""
    found = {}
    for node in NODES:
        running = prepare_node(folder, node)
        known = running.describe(node.address, 22)
        row = add_node(
            viewer=Viewer.system("tests"), name=node.name, host=node.address, port=22,
            user="tessera", host_key=known["host_key"],
            fingerprint=known["host_key_fingerprint"], labels={"rack": "demo"}, now=now,
        )  # fmt: skip
        found[row.pk] = probe.inventory(str(running.home / ".tessera"))
    furnish(found, now)


def test_equal_seeds_give_equal_workloads_that_end_within_the_day() -> None:
    jobs = past_jobs()

    assert jobs == past_jobs()
    assert past_jobs(seed=8) != jobs
    assert len(jobs) > 45
    assert all(job.at >= 0 and job.at + job.seconds < HOURS * 3600 for job in jobs)
    assert {job.kind.owner for job in jobs} == {"alice", "bob"}


def test_a_day_lies_behind_the_demo_and_all_of_its_records_agree(tmp_path: Path) -> None:
    now, storage = database_now(), DirectoryStorage(tmp_path)
    make_demo(tmp_path, now)

    began = time.perf_counter()
    count = add_history(storage=storage, now=now)
    print(f"{count} jobs in {time.perf_counter() - began:.1f} s, {Round.objects.count()} rounds")
    announce_history(now)
    ask_example(now)

    jobs = list(Job.objects.unscoped())
    assert len(jobs) == count == len(past_jobs())
    assert {job.state for job in jobs} == {"succeeded", "failed", "stopped"}
    assert not Job.objects.unscoped().filter(state__in=LIVE).exists()
    assert all(job.spec["labels"] == MARK and job.spec["note"] == NOTE for job in jobs)
    assert violations() == ()
    assert not Lease.objects.filter(released_at=None).exists()
    assert max(job.finished_at for job in jobs if job.finished_at) <= now - BEFORE_NOW + timedelta(
        seconds=10
    )
    assert "simulated" in Announcement.objects.get().text
    assert set(Node.objects.values_list("state", flat=True)) == {"ready"}
    _has_waits_and_use(jobs)
    _has_receipts()
    _has_winners(storage, now)


def _has_waits_and_use(jobs: list[Job]) -> None:
    waits = [
        (job.first_started_at - job.submitted_at).total_seconds()
        for job in jobs
        if job.first_started_at
    ]
    assert sum(wait >= 300 for wait in waits) >= 5
    assert sum(wait < 60 for wait in waits) >= 20
    spans = [one.released_at - one.taken_at for one in Lease.objects.all() if one.released_at]
    share = sum(spans, timedelta()) / (24 * timedelta(hours=HOURS))
    assert 0.3 < share < 0.95
    assert FleetInterval.objects.filter(span_seconds=900).count() >= 95
    used = FleetInterval.objects.filter(span_seconds=86_400).order_by("at").last()
    assert used is not None
    assert any(cell for cell in used.virtual_clusters.values())
    assert not Attempt.objects.exclude(round_number__in=Round.objects.exclude(
        snapshot_path="").values("number")).exists()  # fmt: skip


def _has_receipts() -> None:
    """At least one training left for its devices' owner, saved its work and continued."""
    receipts = [one for one in Preemption.objects.select_related("job") if one.checkpoint_step]

    assert receipts
    for receipt in receipts:
        assert receipt.released_at is not None
        assert receipt.for_job_id is not None
        assert receipt.lost_steps is not None
        assert receipt.lost_steps <= 1
    assert any(one.job.attempts_made > 1 and one.job.state == "succeeded" for one in receipts)


def _has_winners(storage: DirectoryStorage, now: datetime) -> None:
    asked = WhatIf.objects.unscoped().get()

    assert answer_what_if(pk=asked.pk, storage=storage, now=now)

    asked.refresh_from_db()
    assert asked.fault == ""
    assert asked.result["winner"] >= 3
    assert asked.result["would_be"]["avg_jct_h"] < asked.result["was"]["avg_jct_h"]
