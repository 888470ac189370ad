"""Rows that give every metric a value."""

from datetime import timedelta

from django.utils import timezone

from scheduling.clusters.models import Device, VirtualCluster
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.runs.models import EvictionTally
from scheduling.what_if.models import WhatIf, WhatIfKind
from tests.factories.cluster import make_job
from workers.models import Heartbeat, NodeTelemetry


def fill_every_metric() -> None:
    """A job that waits, a round, an eviction, a host, a GPU, advice."""
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
    device = Device.objects.order_by("pk")[0]
    Device.objects.filter(pk=device.pk).update(uuid="GPU-a", is_gpu=True)
    NodeTelemetry.objects.create(
        node_id=device.node_id,
        at=now,
        span_seconds=60,
        samples=1,
        temperature=[60.0] * (device.index + 1),
    )
    for vc in VirtualCluster.objects.unscoped().all():
        WhatIf.objects.create(
            tenant_id=vc.tenant_id,
            virtual_cluster=vc,
            kind=WhatIfKind.ADVICE,
            policy="fifo",
            since=now - timedelta(days=1),
            until=now,
            asked_at=now,
            finished_at=now,
            result={"regret": {"best": "srtf", "seconds": 60.0, "share": 0.1}},
        )
