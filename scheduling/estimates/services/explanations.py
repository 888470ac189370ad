"""Explanations of waiting jobs: certificates of reasons, and remedies that start a job now."""

import time
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from scheduling.clusters.models import Device, VcLimit, VirtualCluster
from scheduling.common.time_limits import time_limit
from scheduling.core.explanations.certificates import Certificate, CertificateError, certify, check
from scheduling.core.explanations.trials import Trials
from scheduling.core.explanations.unblocking import Sought, seek
from scheduling.core.explanations.variants import JobChange, OwnerOptions
from scheduling.core.jobspec import InvalidJobSpecError
from scheduling.core.jobspec.amending import AmendError, amended
from scheduling.core.jobspec.parsing import parse_stored
from scheduling.core.messages import sentence
from scheduling.core.reasons import Reason
from scheduling.core.round.stored import UnreadableRoundError, read_stored
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot, QueuedJob, VcFacts
from scheduling.estimates.models import StartEstimate
from scheduling.estimates.services.cached_decision import standing_now
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round
from scheduling.rounds.snapshot import RoundConfig
from scheduling.storage.base import FileStorage
from tenants.errors import NotFoundError
from tessera.messages import plain
from tessera.reasons import ReasonCode

LOOKED_AT: Final = 3
"""Maximum number of stored rounds to read: files of a large cluster are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCertificate:
    """A certificate and the result of its check.

    Attributes:
        file: path of the snapshot relative to the data directory.
    """

    certificate: Certificate
    holds: bool
    file: str


def checked_reason(
    *, job: Job, storage: FileStorage, number: int | None = None
) -> CheckedCertificate:
    """Return the certificate of a job's reason, checked against its stored round.

    Args:
        job: the job; the caller has checked the rights.
        storage: has the files of rounds.
        number: number of the round; None selects the newest one in which the job waited.

    Raises:
        NotFoundError: the job waited in no stored round.
    """
    rounds = Round.objects.exclude(snapshot_path="").filter(started_at__gte=job.submitted_at)
    if number is not None:
        rounds = rounds.filter(number=number)
    for stored in rounds.order_by("-number")[:LOOKED_AT]:
        snapshot, result = _read(storage, stored)
        if snapshot is None or result is None:
            continue
        try:
            found = certify(job.pk, snapshot, result, sha256=stored.snapshot_sha256)
        except CertificateError:
            continue
        return CheckedCertificate(
            certificate=found, holds=check(found, snapshot), file=stored.snapshot_path
        )
    raise NotFoundError(sentence("no-stored-wait"), field="id", value=job.pk)


def _read(
    storage: FileStorage, stored: Round
) -> tuple[ClusterSnapshot | None, RoundResult | None]:
    try:
        return read_stored(read_round(storage=storage, stored=stored))
    except (FileNotFoundError, ValueError, UnreadableRoundError):
        return None, None


SECONDS: Final = 1.0
"""Time limit of a request."""

POLICY_SECONDS: Final = 2.0
_CODES: Final = frozenset(code.value for code in ReasonCode)


def seek_now(*, job: Job, config: RoundConfig, now: Any) -> Sought:
    """Return steps for one job on the current snapshot, and store them if the job is unchanged.

    Args:
        job: the job as the caller read it.
        config: the settings of rounds.
        now: the current time.
    """
    standing = standing_now(config=config, now=now)
    snapshot = standing.snapshot
    waiting = next((one for one in snapshot.queued if one.id == job.pk), None)
    if waiting is None or job.reason_code not in _CODES:  # no reason, or one of the next release
        return Sought()
    trials = Trials(snapshot, standing.moving, limit=time_limit(POLICY_SECONDS))
    deadline = time.monotonic() + SECONDS
    found = seek(
        waiting,
        Reason(code=ReasonCode(job.reason_code), message=plain(job.reason_text)),
        Rooms(snapshot).of(waiting),
        trials.refusal,
        may=lambda step: _is_well_formed(job.spec, step),
        go_on=lambda: time.monotonic() < deadline,
    )
    columns = {
        **stored(found),
        "sought": max(snapshot.round_number - 1, 1),
        "sought_for": job.reason_code,
        "amendments": job.amendments,
    }
    if not Job.objects.unscoped().filter(pk=job.pk, amendments=job.amendments).exists():
        return found
    StartEstimate.objects.filter(pk=job.pk).exclude(amendments=job.amendments).delete()
    StartEstimate.objects.update_or_create(
        job_id=job.pk,
        defaults=columns,
        create_defaults={**columns, "round_number": 0, "made_at": now},
    )
    return found


def stored(found: Sought) -> dict[str, Any]:
    """Return the columns of a search result."""
    return {
        "steps": [step.to_json() for step in found.steps],
        "proof": [refused.to_json() for refused in found.proof],
    }


class Rooms:
    """Virtual clusters and device types that the owners of waiting jobs may use, from one read."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._vcs = {vc.id: vc for vc in snapshot.vcs}
        self._types = sorted(
            Device.objects.filter(retired_at=None).values_list("device_type", flat=True).distinct()
        )
        self._open = set(
            VirtualCluster.objects.unscoped().filter(archived_at=None).values_list("id", flat=True)
        )
        self._limits: dict[tuple[int, int], set[int]] = {}
        rows = VcLimit.objects.values_list(
            "membership__tenant_id", "membership__user_id", "virtual_cluster_id"
        )
        for tenant, user, vc in rows:
            self._limits.setdefault((tenant, user), set()).add(vc)

    def of(self, job: QueuedJob) -> OwnerOptions:
        """Return other virtual clusters that the owner may use, and existing device types."""
        allowed = self._limits.get((job.tenant, job.owner))
        others: list[VcFacts] = [
            vc
            for vc in self._vcs.values()
            if vc.tenant == job.tenant
            and vc.id != job.vc
            and vc.id in self._open
            and (allowed is None or vc.id in allowed)
        ]
        return OwnerOptions(home=self._vcs[job.vc], clusters=others, types=self._types)


def seek_for_all(
    *,
    snapshot: ClusterSnapshot,
    moving: Iterable[int],
    reasons: dict[int, Reason],
    seconds: float,
    wanted: Collection[int] | None = None,
    first: Collection[int] = frozenset(),
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, Sought]:
    """Search steps for waiting jobs within the time limit; jobs with equal demands share a search.

    Args:
        snapshot: the snapshot.
        moving: jobs that start in the next round, or for which it preempts others.
        reasons: reasons of the other waiting jobs.
        seconds: time limit of the search.
        wanted: the jobs to search steps for; None selects all waiting jobs.
        first: jobs to try before the others.
        clock: monotonic time in seconds.
    """
    deadline = clock() + seconds
    trials = Trials(snapshot, set(moving), limit=time_limit(POLICY_SECONDS))
    rooms = Rooms(snapshot)
    known: dict[Hashable, Sought] = {}
    found: dict[int, Sought] = {}
    jobs = [job for job in snapshot.queued if wanted is None or job.id in wanted]
    jobs.sort(key=lambda job: (job.id not in first, -job.priority, job.id))
    is_over = False
    for job in jobs[:MOST_SOUGHT]:
        reason = reasons.get(job.id)
        if reason is None:
            continue
        key = _question(job, reason)
        if key not in known:
            is_over = is_over or clock() > deadline
            spec = _spec(job.id) if not is_over else None
            if spec is None:
                continue
            answer = seek(
                job,
                reason,
                rooms.of(job),
                trials.refusal,
                may=partial(_is_well_formed, spec),
                go_on=lambda: clock() < deadline,
            )
            if not answer.is_whole and not answer.steps:
                is_over = True
                continue
            known[key] = answer
        found[job.id] = known[key]
    return found


def _question(job: QueuedJob, reason: Reason) -> Hashable:
    """Return a cache key: jobs with equal demands have equal steps."""
    return (
        job.vc,
        job.owner,
        job.demand,
        job.priority,
        job.job_class,
        job.excluded_nodes,
        job.held,
        job.not_before,
        job.after,
        job.user_cap,
        reason.code,
    )


def _spec(job_id: int) -> Any:
    """Return the specification of a job, or None if it was deleted."""
    return Job.objects.unscoped().filter(pk=job_id).values_list("spec", flat=True).first()


MOST_SOUGHT: Final = 2000
"""Waiting jobs for which remedies are searched in advance; for others on demand."""


def _is_well_formed(spec: Any, step: JobChange) -> bool:
    """Return whether the changed specification is valid, for example its elastic bounds."""
    try:
        parse_stored(amended(spec, step.changes), ignores_unknown=False)
    except (AmendError, InvalidJobSpecError):
        return False
    return True
