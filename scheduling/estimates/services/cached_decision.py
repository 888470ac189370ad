"""Snapshot cache: the newest snapshot and decision, for planning queries between rounds.

Reading and deciding 10,000 waiting jobs takes most of a second. The result is reused until a
cheap fingerprint of the database changes.
"""

import threading
from collections.abc import Hashable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connections, transaction
from django.db.models import Count, Max, Q, Sum, Transform
from django.db.models.fields.json import KeyTextTransform

from scheduling.clusters.models import Device, Node, VirtualCluster
from scheduling.common.time_limits import time_limit
from scheduling.core.jobspec import JobClass
from scheduling.core.round.decide import decide
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot, QueuedJob
from scheduling.jobs.models import Job, JobDependency
from scheduling.rounds.snapshot import RoundConfig, cluster_spec, next_round_number, take_snapshot
from scheduling.runs.models import CpuLease, Lease
from tenants.models import Membership
from tessera.reasons import ReasonCode


@dataclass(frozen=True, slots=True)
class CachedDecision:
    """A snapshot and the waiting jobs that the next round would move.

    Attributes:
        result: the decision of the next round, without searched reasons.
        moving: IDs of jobs that would start, or for which the round would preempt others.
    """

    snapshot: ClusterSnapshot
    result: RoundResult
    moving: frozenset[int]

    def without_bystanders(self, job: QueuedJob) -> ClusterSnapshot:
        """Return the snapshot without jobs that cannot affect one more job at the end.

        A job that would wait holds no devices. Only the policy of its virtual cluster and, if it
        borrows, the order of tenants consider it.
        """
        is_borrower = job.job_class is JobClass.OPPORTUNISTIC
        return replace(
            self.snapshot,
            queued=tuple(
                other
                for other in self.snapshot.queued
                if other.vc == job.vc
                or other.id in self.moving
                or (
                    is_borrower
                    and other.tenant == job.tenant
                    and other.job_class is JobClass.OPPORTUNISTIC
                )
            ),
        )


def standing_now(*, config: RoundConfig, now: datetime) -> CachedDecision:
    """Return the cached decision, computed again only after a change.

    Args:
        config: the settings of rounds.
        now: the current time.
    """
    return _NEWEST.at(config, now)


class _Newest:
    """Cache of the newest decision of this process and its fingerprint."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_from: Hashable = None
        self._standing: CachedDecision | None = None

    def at(self, config: RoundConfig, now: datetime) -> CachedDecision:
        """Return the cached decision; one thread at a time renews it."""
        with self._lock:
            made_from = (config, _fingerprint(config.using, now))
            if self._standing is None or made_from != self._made_from:
                self._standing = None
                self._standing = _read(config, now)
                self._made_from = made_from
            standing = self._standing
        # Waiting times grow; no other value depends on the current time.
        return replace(standing, snapshot=replace(standing.snapshot, now=now.timestamp()))


_NEWEST = _Newest()


def _read(config: RoundConfig, now: datetime) -> CachedDecision:
    number = next_round_number(config.using)
    snapshot = take_snapshot(number=number, now=now, config=config).snapshot
    result = decide(snapshot, limit=time_limit(config.policy_seconds), explain=())
    moving = {start.job_id for start in result.starts}
    moving |= {preemption.for_job for preemption in result.preemptions}
    moving |= {
        job_id
        for job_id, reason in result.reasons.items()
        if reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    }
    return CachedDecision(snapshot, result, frozenset(moving))


def _fingerprint(using: str, now: datetime) -> Hashable:
    """Return values that differ after any change that affects a round."""
    with transaction.atomic(using=using):
        version, spec = cluster_spec(using)
        shares = {
            name: (share.quotas, tuple(sorted(share.pinned.items())))
            for name, share in spec.virtual_clusters.items()
        }
        return (
            str(connections[using].settings_dict["NAME"]),
            next_round_number(using),
            version,
            tuple(sorted(shares.items())),
            _jobs(using, now),
            _rows(
                Node.objects.using(using).filter(removed_at=None),
                "id", "name", "state", "contact", "has_docker", "has_rdma",
                "driver_version", "cuda_version", "cpus", "memory_bytes",
                KeyTextTransform("devices", "inventory"),
            ),
            _rows(
                Device.objects.using(using)
                .filter(retired_at=None)
                .values("healthy", "device_type", "cpus", "memory_bytes")
                .annotate(number=Count("id"), sum=Sum("id"))
                .order_by("healthy", "device_type", "cpus", "memory_bytes"),
                "healthy", "device_type", "cpus", "memory_bytes", "number", "sum",
            ),
            _totals(Lease.objects.using(using).filter(released_at=None), Max("id"), Count("id")),
            _totals(
                CpuLease.objects.using(using).filter(released_at=None), Max("id"), Count("id")
            ),
            _rows(
                VirtualCluster.objects.unscoped().using(using),
                "id", "policy", "max_devices_per_user", "max_opportunistic_devices", "version",
            ),
            _rows(
                Membership.objects.unscoped().using(using).exclude(max_devices=None),
                "tenant_id", "user_id", "max_devices",
            ),
            _totals(
                JobDependency.objects.using(using).filter(job__state="queued"),
                Count("id"), Max("id"), Count("id", filter=Q(after__state="succeeded")),
            ),
        )  # fmt: skip


def _jobs(using: str, now: datetime) -> Hashable:
    closed = Q(not_before__gt=now) | Q(backoff_until__gt=now)
    return _totals(
        Job.objects.unscoped().using(using).live(),
        Count("id"),
        Max("id"),
        Sum("id"),
        Max("state_since"),
        Sum("priority"),
        Sum("devices"),
        Sum("amendments"),
        Count("id", filter=Q(held=True)),
        Count("id", filter=Q(state="queued")),
        Count("id", filter=closed),
    )


def _totals(rows: Any, *numbers: Any) -> Hashable:
    named = {f"n{place}": number for place, number in enumerate(numbers)}
    return tuple(rows.aggregate(**named).values())


def _rows(rows: Any, *columns: str | Transform) -> Hashable:
    return tuple(rows.values_list(*columns))
