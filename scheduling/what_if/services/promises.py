"""Audits of the sharing promise: exports of recorded days, and audits of whole days in storage."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from django.db.models import Q

from scheduling.clusters.models import VirtualCluster
from scheduling.common.time_limits import time_limit
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.messages import sentence
from scheduling.core.promises.audit import audit
from scheduling.core.promises.export import (
    AuditedJob,
    DeviceReturn,
    Eviction,
    JobRun,
    OtherUse,
    PromiseExport,
    merged_spec,
)
from scheduling.core.simulation import ClusterChange, QueueChange
from scheduling.core.values import HeldLeaf, QueuedJob
from scheduling.enums import LeaseKind, PreemptionCause
from scheduling.jobs.models import JobDependency
from scheduling.runs.models import Attempt, Lease, Preemption
from scheduling.storage.base import FileStorage
from scheduling.what_if.models import PromiseAudit
from scheduling.what_if.services.recorded_days import RecordedDays, recorded_days
from tenants.errors import InvalidError

logger = logging.getLogger(__name__)

GRACE: Final = 30.0
"""Grace in seconds of a job that declares none."""

DAYS_BACK: Final = 7
"""Whole days before today whose missing audits are computed."""

AUDIT_SECONDS: Final = 300.0
"""Maximum duration of the audit of one day."""

DAY: Final = timedelta(days=1)


def promise_export(
    *, vc: VirtualCluster, since: datetime, until: datetime, storage: FileStorage, now: datetime
) -> PromiseExport:
    """Return all facts of an audit from stored rounds, attempts, leases and preemptions.

    The span begins with its first stored round.

    Args:
        vc: the virtual cluster.
        since: start of the span.
        until: end of the span.
        storage: has the files of rounds.
        now: the current time.

    Raises:
        InvalidError: the span has no stored rounds with this virtual cluster, or too many.
    """
    days = recorded_days(vc=vc, since=since, until=until, storage=storage, now=now)
    return _Exporting(days, vc, until).export()


def audit_missing_days(*, storage: FileStorage, now: datetime) -> int:
    """Audit the last whole days of each virtual cluster that have no audit, and store the results.

    A day without stored rounds gets no audit. A day whose audit exceeds its time limit gets an
    empty one.

    Returns:
        The number of stored audits.
    """
    today = now.astimezone(UTC).date()
    stored = 0
    for back in range(DAYS_BACK, 0, -1):
        day = today - back * DAY
        known = PromiseAudit.objects.filter(day=day).values_list("virtual_cluster_id", flat=True)
        clusters = VirtualCluster.objects.unscoped().exclude(pk__in=set(known))
        missing = list(clusters.filter(archived_at=None).order_by("pk"))
        if missing:
            stored += _audit_day(missing, day, storage, now)
    return stored


def _audit_day(
    clusters: list[VirtualCluster], day: date, storage: FileStorage, now: datetime
) -> int:
    """Audit one day of several virtual clusters; the stored rounds are read once."""
    since = datetime.combine(day, time(), tzinfo=UTC)
    until, days, stored = since + DAY, None, 0
    for vc in clusters:
        try:
            if days is None:
                days = recorded_days(vc=vc, since=since, until=until, storage=storage, now=now)
            with time_limit(AUDIT_SECONDS)():
                result = audit(_Exporting(days, vc, until).export()).to_json()
        except InvalidError:
            continue  # no stored rounds with this virtual cluster
        except TimeoutError:
            logger.warning("audit of %s on %s took more than %g s", vc.name, day, AUDIT_SECONDS)
            result = {}
        except Exception:  # the audits of other virtual clusters and days must not stop
            logger.exception("audit of %s on %s failed", vc.name, day)
            result = {}
        PromiseAudit.objects.update_or_create(
            virtual_cluster=vc, day=day, defaults={"audited_at": now, "result": result}
        )
        stored += 1
    return stored


class _Exporting:
    """Joins recorded days with the rows of one virtual cluster."""

    def __init__(self, days: RecordedDays, vc: VirtualCluster, until: datetime) -> None:
        self._days, self._vc, self._until = days, vc, until
        if all(one.id != vc.pk for one in days.snapshot.vcs):
            raise InvalidError(sentence("no-round-of-cluster"), field="virtual_cluster")
        self._since = datetime.fromtimestamp(days.snapshot.now, tz=UTC)
        self._own = {
            job_id: job
            for job_id, job in days.queued.items()
            if job.vc == vc.pk and job.job_class is JobClass.GUARANTEED
        }
        self._changes = [event for event in days.events if isinstance(event, ClusterChange)]
        self._members = _members(self._own)

    def export(self) -> PromiseExport:
        """Return the export."""
        snapshot, own = self._days.snapshot, self._own
        facts = {**snapshot.known, **{job.id: known for job, known in self._days.arrivals}}
        victims = list(self._victims())
        graces: dict[int, float] = defaultdict(float)
        for row in victims:
            graces[row.for_job_id or 0] = max(
                graces[row.for_job_id or 0], float(row.grace_seconds)
            )
        return PromiseExport(
            vc=self._vc.pk,
            since=snapshot.now,
            until=self._until.timestamp(),
            grace=GRACE,
            snapshot=replace(
                snapshot,
                spec=merged_spec(snapshot.spec, self._vc.name),
                vcs=tuple(vc for vc in snapshot.vcs if vc.id == self._vc.pk),
                queued=tuple(job for job in snapshot.queued if job.id in own),
                holding=tuple(job for job in snapshot.holding if job.id in own),
                cpu_queued=(),
                cpu_holding=(),
                known={pk: known for pk, known in snapshot.known.items() if pk in own},
            ),
            jobs=tuple(
                replace(job, known=facts[job.job.id], grace=graces.get(job.job.id))
                for job in self._jobs()
            ),
            changes=tuple(
                replace(
                    change,
                    spec=merged_spec(change.spec, self._vc.name),
                    vcs=tuple(vc for vc in change.vcs if vc.id == self._vc.pk),
                )
                for change in self._changes
                if any(vc.id == self._vc.pk for vc in change.vcs)
            ),
            latest={pk: known for pk, known in self._days.latest.items() if pk in own},
            other_use=tuple(self._other_use()),
            evictions=tuple(self._evictions()),
            returns=tuple(
                DeviceReturn(
                    job=row.for_job_id or 0,
                    devices=row.attempt.devices,
                    asked=row.asked_at.timestamp(),
                    released=row.released_at.timestamp(),
                )
                for row in victims
                if row.released_at is not None and row.cause == PreemptionCause.OPPORTUNISTIC
            ),
        )

    def _jobs(self) -> Iterator[AuditedJob]:
        runs = self._runs()
        opened = self._opened()
        for job_id, job in self._own.items():
            recorded = self._days.jobs[job_id]
            last = self._last_version(job_id)
            held = tuple(runs.get(job_id, ()))
            yield AuditedJob(
                job=replace(last or job, claims=None, waiting_for=()),
                eligible=max(job.submitted, job.not_before or 0.0, opened.get(job_id, 0.0)),
                runs=held,
                work=recorded.work if recorded.has_ended and held else None,
                start_seconds=recorded.overhead.start,
                withdrawn=None if held else recorded.finished,
            )

    def _last_version(self, job_id: int) -> QueuedJob | None:
        last = None
        for event in self._days.events:
            if isinstance(event, QueueChange) and event.job_id == job_id and event.job:
                last = event.job
        return last

    def _opened(self) -> Mapping[int, float]:
        """Return when the gates of jobs opened: holds, amendments and dependencies.

        A job whose gate is still closed opens at the end of the span.
        """
        found: dict[int, float] = defaultdict(float)
        end = self._until.timestamp()
        for job in self._own.values():
            if job.held:
                found[job.id] = end
        for event in self._days.events:
            if isinstance(event, QueueChange) and event.job is not None:
                found[event.job_id] = end if event.job.held else event.at
        rows = JobDependency.objects.filter(job__in=list(self._own))
        for job_id, finished in rows.values_list("job_id", "after__finished_at"):
            at = end if finished is None else finished.timestamp()
            found[job_id] = max(found[job_id], at)
        return found

    def _attempts(self) -> Iterator[Attempt]:
        overlapping = Attempt.objects.filter(
            Q(ended_at=None) | Q(ended_at__gt=self._since), created_at__lt=self._until
        )
        yield from (
            overlapping.filter(job__tenant=self._vc.tenant_id)
            .order_by("job_id", "number")
            .select_related("job")
        )

    def _runs(self) -> Mapping[int, list[JobRun]]:
        runs: dict[int, list[JobRun]] = defaultdict(list)
        for attempt in self._attempts():
            if attempt.job_id in self._own and attempt.pk in self._members:
                demand = None if attempt.demand is None else Demand.from_json(attempt.demand)
                runs[attempt.job_id].append(
                    JobRun(
                        start=attempt.created_at.timestamp(),
                        end=None if attempt.ended_at is None else attempt.ended_at.timestamp(),
                        members=self._members[attempt.pk],
                        demand=demand,
                    )
                )
        return runs

    def _other_use(self) -> Iterator[OtherUse]:
        (vc,) = [one for one in self._days.snapshot.vcs if one.id == self._vc.pk]
        if vc.max_devices_per_user is None and all(
            job.user_cap is None for job in self._own.values()
        ):
            return
        for attempt in self._attempts():
            if attempt.job_id not in self._own:
                yield OtherUse(
                    owner=attempt.job.owner_id,
                    in_vc=attempt.job.virtual_cluster_id == self._vc.pk,
                    devices=attempt.devices,
                    start=attempt.created_at.timestamp(),
                    end=None if attempt.ended_at is None else attempt.ended_at.timestamp(),
                )

    def _victims(self) -> Iterator[Preemption]:
        rows = Preemption.objects.filter(
            for_job__in=list(self._own), asked_at__gte=self._since, asked_at__lt=self._until
        )
        yield from rows.select_related("attempt").order_by("asked_at", "pk")

    def _evictions(self) -> Iterator[Eviction]:
        """Yield preemptions of guaranteed jobs for others, except jobs without their guarantee."""
        rows = Preemption.objects.filter(
            job__in=list(self._own),
            cause=PreemptionCause.INTER_VC,
            asked_at__gte=self._since,
            asked_at__lt=self._until,
        ).exclude(for_job__virtual_cluster=self._vc)
        for row in rows.order_by("asked_at", "pk"):
            members = self._members.get(row.attempt_id, ())
            if members and all(leaf.virtual for leaves in members for leaf in leaves):
                yield Eviction(job=row.job_id, at=row.asked_at.timestamp())


def _members(jobs: Mapping[int, QueuedJob]) -> Mapping[int, tuple[tuple[HeldLeaf, ...], ...]]:
    """Return the leaves of attempts by member."""
    found: dict[int, dict[int, list[HeldLeaf]]] = defaultdict(lambda: defaultdict(list))
    rows = Lease.objects.filter(job__in=list(jobs), kind=LeaseKind.USING).order_by(
        "attempt_id", "member__node_rank", "device__index"
    )
    for attempt, rank, address, virtual in rows.values_list(
        "attempt_id", "member__node_rank", "device__address", "virtual_cell"
    ):
        found[attempt][rank].append(HeldLeaf(address=address, virtual=virtual))
    return {
        attempt: tuple(tuple(leaves) for _, leaves in sorted(ranks.items()))
        for attempt, ranks in found.items()
    }
