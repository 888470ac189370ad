"""Past days of a virtual cluster as a trace, from stored rounds and attempts.

The stored rounds contain the jobs and guarantees, the attempts the work of each job. Jobs that had
not ended count with their work so far.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from scheduling.clusters.models import VirtualCluster
from scheduling.core.cells import CellEngine
from scheduling.core.charging import charged_seconds
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.lifecycle import TERMINAL
from scheduling.core.messages import sentence
from scheduling.core.round.declared_terms import read_terms
from scheduling.core.round.engine_setup import guaranteed_devices
from scheduling.core.round.stored import read_stored
from scheduling.core.simulator import NodeGroup, SimCluster, Trace, TraceJob
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round
from scheduling.runs.models import Attempt
from tenants.errors import InvalidError

MOST_ROUNDS: Final = 20_000
MOST_JOBS: Final = 5_000
_OPPORTUNISTIC: Final = "opportunistic"
_FORGOTTEN: Final = "deleted"
_NEVER_RAN: Final = "never ran"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """Actual history of a job, in seconds from the start of the period.

    Attributes:
        finished: time of its end; None if it has not ended.
        has_ended: whether its work is complete.
    """

    job_id: int
    started: float | None
    finished: float | None
    restarts: int
    has_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDays:
    """A period of a virtual cluster's history, ready for a simulation.

    Attributes:
        trace: the guaranteed jobs, named by their job IDs.
        cluster: the guarantee in the newest round of the period.
        policy: the policy of the newest round.
        lived: actual history by the job's name in the trace.
        rounds: number of stored rounds in the period.
    """

    trace: Trace
    cluster: SimCluster
    policy: str
    policy_args: Mapping[str, Any]
    lived: Mapping[str, Lived]
    rounds: int


def recorded_days(
    *, vc: VirtualCluster, since: datetime, until: datetime, data_dir: Path, now: datetime
) -> RecordedDays:
    """Return the stored rounds and attempts of a virtual cluster in a period, as a trace.

    Raises:
        InvalidError: the period has no stored rounds, or too many.
    """
    stored = list(
        Round.objects.filter(started_at__gte=since, started_at__lte=until)
        .exclude(snapshot_path="")
        .order_by("number")[: MOST_ROUNDS + 1]
    )
    if len(stored) > MOST_ROUNDS:
        raise _span_error(
            sentence("more-than-stored-rounds", most=format(MOST_ROUNDS, ",")), since
        )
    seen, newest = _seen(vc.pk, stored, data_dir)
    if newest is None:
        raise _span_error(sentence("no-round-of-cluster"), since)
    cluster, policy, args = newest
    if not cluster.groups:
        raise _span_error(sentence("nothing-guaranteed-virtual-cluster"), since)
    reading = _Reading(vc=vc, since=since, now=now)
    jobs = list(reading.jobs(seen))
    if len(jobs) > MOST_JOBS:
        raise _span_error(sentence("more-than-jobs", most=format(MOST_JOBS, ",")), since)
    jobs.sort(key=lambda pair: (pair[0].submitted, pair[1].job_id))
    return RecordedDays(
        trace=Trace(
            name=f"{vc.name} from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}",
            format="rounds",
            jobs=tuple(job for job, _ in jobs),
            left_out=dict(sorted(reading.left_out.items())),
        ),
        cluster=cluster,
        policy=policy,
        policy_args=args,
        lived={job.name: lived for job, lived in jobs},
        rounds=len(stored),
    )


_Newest = tuple[SimCluster, str, Mapping[str, Any]]


def _seen(
    vc_id: int, stored: list[Round], data_dir: Path
) -> tuple[dict[int, str], _Newest | None]:
    """Return the class of each job in stored rounds by job ID, and the newest guarantee."""
    found: dict[int, str] = {}
    newest: Mapping[str, Any] | None = None
    for row in stored:
        try:
            document = read_round(data_dir=data_dir, stored=row)
        except (FileNotFoundError, ValueError):
            continue  # pruned meanwhile, or damaged: the other rounds are still valid
        snapshot = document["snapshot"]
        if any(vc["id"] == vc_id for vc in snapshot["vcs"]):
            newest = document
        for job in (*snapshot["queued"], *snapshot["holding"]):
            if job["vc"] == vc_id:
                found[job["id"]] = job["job_class"]
    return found, None if newest is None else _guarantee(vc_id, newest)


def _guarantee(vc_id: int, document: Mapping[str, Any]) -> _Newest:
    snapshot, _ = read_stored(document)
    (vc,) = (vc for vc in snapshot.vcs if vc.id == vc_id)
    engine = CellEngine(snapshot.spec)
    largest: dict[str, int] = {}
    for chain in engine.topology.chains.values():
        on_node = Counter(chain.node_of_leaf)
        most = max(on_node.values(), default=1)
        largest[chain.leaf_type] = max(largest.get(chain.leaf_type, 1), most)
    groups: dict[str, NodeGroup] = {}
    for kind, devices in sorted(guaranteed_devices(engine, vc.name).items()):
        # The largest equal nodes that add up to the guarantee exactly.
        per_node = max(n for n in range(1, largest[kind] + 1) if devices % n == 0)
        if devices:
            groups[kind] = NodeGroup(nodes=devices // per_node, devices=per_node)
    return SimCluster(groups=groups), vc.policy, vc.policy_args


class _Reading:
    """Reads jobs and attempts of one period; ``left_out`` counts jobs that cannot be simulated."""

    def __init__(self, *, vc: VirtualCluster, since: datetime, now: datetime) -> None:
        self._vc = vc
        self._since = since
        self._now = now
        self.left_out: Counter[str] = Counter()

    def jobs(self, seen: Mapping[int, str]) -> Iterator[tuple[TraceJob, Lived]]:
        wanted = [pk for pk, kind in seen.items() if kind == JobClass.GUARANTEED.value]
        self.left_out[_OPPORTUNISTIC] = len(seen) - len(wanted)
        rows = {
            job.pk: job
            for chunk in _chunks(sorted(wanted))
            for job in Job.objects.unscoped().filter(pk__in=chunk, virtual_cluster=self._vc)
        }
        self.left_out[_FORGOTTEN] = len(wanted) - len(rows)
        attempts: dict[int, list[Attempt]] = {}
        for chunk in _chunks(sorted(rows)):
            for attempt in Attempt.objects.filter(job__in=chunk).order_by("job_id", "number"):
                attempts.setdefault(attempt.job_id, []).append(attempt)
        for job_id, row in sorted(rows.items()):
            pair = self._job(row, attempts.get(job_id, []))
            if pair is None:
                self.left_out[_NEVER_RAN] += 1
            else:
                yield pair
        self.left_out = +self.left_out

    def _job(self, row: Job, attempts: list[Attempt]) -> tuple[TraceJob, Lived] | None:
        """Return one job with its work in the period and after it."""
        work = sum(
            charged_seconds(
                attempt.running_at, attempt.ended_at, since=self._since, until=self._now
            )
            * (attempt.devices or row.devices)
            for attempt in attempts
        )
        if work <= 0.0:
            return None
        demand = Demand.from_json(row.demand)
        terms = read_terms(row.terms, demand, row.tenant_id)
        allowed = {kind for member in demand.members for kind in member.device_types}
        job = TraceJob(
            name=str(row.pk),
            submitted=max(0.0, self._offset(row.submitted_at)),
            devices=row.devices,
            duration=work / row.devices,
            application=terms.application or "",
            kind=terms.kind,
            scale=terms.scale,
            priority=max(0, row.priority),
            tenant=str(row.owner_id),
            estimate=terms.estimate,
            deadline=None if terms.deadline is None else terms.deadline - self._since.timestamp(),
            types=tuple(sorted(allowed)),
        )
        has_ended = row.state in {state.value for state in TERMINAL}
        lived = Lived(
            job_id=row.pk,
            started=self._offset(attempts[0].created_at),
            finished=self._offset(row.finished_at) if row.finished_at is not None else None,
            restarts=len(attempts) - 1,
            has_ended=has_ended,
        )
        return job, lived

    def _offset(self, at: datetime) -> float:
        return (at - self._since).total_seconds()


def _chunks(ids: list[int], size: int = 500) -> Iterator[list[int]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _span_error(words: str, since: datetime) -> InvalidError:
    return InvalidError(
        words,
        field="since",
        value=since.isoformat(),
        remedy=sentence("choose-another-span"),
    )
