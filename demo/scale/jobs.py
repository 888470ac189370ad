"""Synthetic live jobs, placed by a real round and reported as running."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from django.conf import settings

from scheduling.clusters.models import VirtualCluster
from scheduling.core.jobspec import demand, parse
from scheduling.jobs.models import Job
from scheduling.rounds.services.rounds import run_round
from scheduling.rounds.snapshot import RoundConfig
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from scheduling.tasks import store_evidence
from tenants.models import User

SEED: Final = 7
_BATCH: Final = 500


def make_live_jobs(*, count: int, now: datetime) -> None:
    """Create ``count`` queued jobs of many sizes across virtual clusters and the last hours."""
    rng = random.Random(SEED)  # noqa: S311 made content, the same each time
    owners = _owners()
    Job.objects.unscoped().bulk_create(
        (
            _job(rng, owners, now - timedelta(seconds=2 * (count - number)))
            for number in range(count)
        ),
        batch_size=_BATCH,
    )


def start_what_fits(*, now: datetime) -> int:
    """Run one round and mark its members as running; return the number of members."""
    config = RoundConfig(
        round_seconds=settings.TESSERA.round_seconds,
        images_required=False,
        using=settings.SNAPSHOT_DATABASE,
    )
    run_round(now=lambda: now, config=config, store=store_evidence, cause="seed")
    ids = list(Member.objects.filter(step="waiting").values_list("id", flat=True))
    for begin in range(0, len(ids), _BATCH):
        part = ids[begin : begin + _BATCH]
        attempts.mark_preparing(member_ids=part, now=now)
    attempts.mark_all_prepared(member_ids=ids, now=now)
    starts = [
        attempts.ReportedStart(member_id=number, pid=number, boot_id="seed", started_at=now)
        for number in Member.objects.filter(pk__in=ids, step="starting").values_list(
            "id", flat=True
        )
    ]
    attempts.mark_all_running(starts=starts, now=now)
    return len(starts)


def _owners() -> Sequence[tuple[VirtualCluster, int]]:
    leads = dict(
        User.objects.filter(memberships__role="lead").values_list("memberships__tenant_id", "id")
    )
    clusters = VirtualCluster.objects.unscoped().filter(name__startswith="scale-").order_by("id")
    return [(cluster, leads[cluster.tenant_id]) for cluster in clusters]


def _job(rng: random.Random, owners: Sequence[tuple[VirtualCluster, int]], at: datetime) -> Job:
    cluster, owner_id = rng.choice(owners)
    devices, instances = rng.choice([1, 1, 1, 2, 4, 8]), rng.choice([1, 1, 1, 2])
    is_opportunistic = rng.random() < 0.2
    spec, wanted = _documents(cluster.name, devices, instances, is_opportunistic)
    return Job(
        name=spec["name"],
        tenant_id=cluster.tenant_id,
        virtual_cluster=cluster,
        owner_id=owner_id,
        state_since=at,
        job_class=spec["class"],
        priority=-1 if is_opportunistic else rng.choice([10, 100]),
        spec=spec,
        demand=wanted,
        devices=devices * instances,
        submitted_at=at,
    )


@cache
def _documents(
    virtual_cluster: str, devices: int, instances: int, is_opportunistic: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    role = {"instances": instances, "devices": devices, "command": "python train.py"}
    spec = parse(
        {
            "name": "train" if instances > 1 else "evaluate",
            "virtual_cluster": virtual_cluster,
            "class": "opportunistic" if is_opportunistic else "guaranteed",
            "roles": {"worker": role},
        }
    )
    return spec.to_json(), demand(spec).to_json()
