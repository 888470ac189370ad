"""Rows that give every metric a value."""

from django.utils import timezone

from scheduling.clusters.models import VirtualCluster
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.runs.models import EvictionTally
from tests.factories.cluster import make_job
from workers.models import Heartbeat


def fill_every_metric() -> None:
    """A job that waits, a round, an eviction, a host."""
    now = timezone.now()
    job = make_job("alice")
    Job.objects.unscoped().filter(pk=job.pk).update(reason_code="held", reason_text="Held.")
    Round.objects.create(number=1, started_at=now, committed_at=now, duration_ms=12.0)
    for vc in VirtualCluster.objects.unscoped().all():
        EvictionTally.objects.create(virtual_cluster=vc, reason="preempted", count=4)
    Heartbeat.objects.create(
        process="web@host:1",
        kind="web",
        pid=1,
        host="host",
        started_at=now,
        at=now,
        skew_seconds=0.1,
        disk_free_bytes=1 << 30,
        disk_total_bytes=1 << 40,
    )
