"""History of the demo: rounds and services of the product, driven by a simulated clock.

The jobs of a day (``past_jobs``) are submitted, decided by real rounds and stored by the services
that also handle live jobs. Only the nodes are simulated: their reports come at simulated times.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import orjson
from django.db import transaction

from demo.past_jobs import HOURS, STEP, PastJob, past_jobs
from scheduling.clusters.models import Device, Node
from scheduling.clusters.services.node_contact import contact_back
from scheduling.clusters.services.node_holds import cordon_node, uncordon_node
from scheduling.core.lifecycle import LIVE
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.submission import Submission, submit_jobs
from scheduling.rounds.services import evidence, rounds
from scheduling.rounds.snapshot import RoundConfig
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from scheduling.runs.services.stopping import stop_job
from scheduling.storage.base import FileStorage
from scheduling.usage.services.fleet import record_sample
from scheduling.usage.services.usage import sum_all_usage
from tenants.engines.chaining import BeforeCommit
from tenants.models import User
from tenants.selectors import viewer_of
from tenants.viewers import Viewer
from tessera import protocol
from workers.services import goodput
from workers.services.dispatch import MemberRef, rank_of
from workers.services.job_reports import Happened
from workers.services.reports import ReportTally
from workers.services.training_events import TrainingEvent

SAMPLE_SECONDS: Final = 900.0
START_SECONDS: Final = 4.0
LEAVE_SECONDS: Final = 20.0
POINTS: Final = 12
"""Points of each metric of an attempt."""
POINTS_PER_REPORT: Final = 3
"""Points that arrive together. A report costs about 20 statements, whatever it contains."""
CORDON: Final = (6.5 * 3600, 8.0 * 3600, "demo-3", "A fan is loud.")
BEFORE_NOW: Final = timedelta(minutes=2)


def add_history(*, storage: FileStorage, now: datetime) -> int:
    """Store a day that ends shortly before ``now``; returns the number of its jobs.

    Args:
        storage: receives the stored rounds.
        now: time of the first start. No job of the history is live then.
    """
    began = now - BEFORE_NOW - timedelta(hours=HOURS)
    day = PastDay(
        began=began.timestamp() // STEP * STEP,
        storage=storage,
        config=RoundConfig(round_seconds=STEP, images_required=False, using="default"),
    )
    with transaction.atomic():
        day.run(past_jobs())
        sum_all_usage(now=now)
        _forget_signals()
    return len(day.jobs)


def _forget_signals() -> None:
    """Drop the steps after the commit, except the chain of the audit.

    No page, worker or service listens before the start, and the set-up requests the first round.
    """
    connection = transaction.get_connection()
    connection.run_on_commit = [
        hook for hook in connection.run_on_commit if isinstance(hook[1], BeforeCommit)
    ]


@dataclass(slots=True)
class _Run:
    """A job of the history while it is live.

    Attributes:
        done: seconds of work that earlier attempts have saved.
        attempt: number of the running attempt; 0 if none.
        since: start of this attempt.
    """

    past: PastJob
    done: float = 0.0
    attempt: int = 0
    since: float = 0.0
    members: tuple[MemberRef, ...] = ()
    devices: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(slots=True)
class PastDay:
    """A simulated clock, and the nodes of the demo as its events."""

    began: float
    storage: FileStorage
    config: RoundConfig
    jobs: dict[int, _Run] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _planned: int = 0
    _is_changed: bool = False
    _clock: float = 0.0
    _chance: random.Random = field(default_factory=lambda: random.Random(11))  # noqa: S311

    @property
    def now(self) -> datetime:
        """Simulated time."""
        return datetime.fromtimestamp(self._clock, UTC)

    def run(self, jobs: Sequence[PastJob]) -> None:
        """Handle all events of the day, with a round after each one while jobs wait."""
        end = self.began + HOURS * 3600
        viewers = {name: _viewer(name) for name in {job.kind.owner for job in jobs}}
        for job in jobs:
            self._at(self.began + job.at, partial(self._submit, job, viewers[job.kind.owner]))
        for number in range(int(HOURS * 3600 / SAMPLE_SECONDS)):
            self._at(self.began + number * SAMPLE_SECONDS, self._sample)
        self._plan_cordon()
        self._contact(self.began)
        while self._due and self._due[0][0] < end:
            self._clock = self._due[0][0]
            while self._due and self._due[0][0] == self._clock:
                what = heapq.heappop(self._due)[2]
                self._is_changed |= what != self._sample
                what()
            # Without a change or a waiting job, a round would change nothing.
            if self._is_changed and any(not self.jobs[job_id].attempt for job_id in self.live):
                self._round()
            self._is_changed = False
        self._contact(end)
        self._withdraw(viewers)

    def _contact(self, at: float) -> None:
        """Set the clock, and record that the nodes respond; their probe has just shown it."""
        self._clock = at
        for node_id in Node.objects.filter(removed_at=None).values_list("id", flat=True):
            contact_back(node_id=node_id, boot_id="", now=self.now)

    def _at(self, at: float, what: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._due, (at, self._planned, what))

    def _submit(self, past: PastJob, viewer: Viewer) -> None:
        context = read_submit_context(viewer=viewer, images_ignored=True)
        (job,) = submit_jobs(
            submissions=[Submission(document=past.document)],
            viewer=viewer,
            submit_context=context,
            now=self.now,
        )
        self.jobs[job.pk] = _Run(past=past)
        self.live.add(job.pk)

    def _round(self) -> None:
        outcome = rounds.run_round(
            now=lambda: self.now, config=self.config, store=self._store, cause="demo history"
        )
        for job_id in outcome.preempted:
            run = self.jobs[job_id]
            self._at(self._clock + LEAVE_SECONDS, partial(self._leave, job_id, run.attempt))
        if outcome.started:
            self._start(outcome.started)

    def _store(self, *args: Any) -> tuple[str, str, int]:
        number, reading, result = args
        return evidence.store_round(
            storage=self.storage, number=number, reading=reading, result=result
        )

    def _start(self, job_ids: Sequence[int]) -> None:
        """Report that the nodes have prepared and started these jobs."""
        rows = Member.objects.filter(attempt__job__in=job_ids, attempt__ended_at=None)
        members = list(rows.select_related("attempt__job"))
        ids = [member.pk for member in members]
        attempts.mark_preparing(member_ids=ids, now=self.now)
        attempts.mark_all_prepared(member_ids=ids, now=self.now)
        began = self.now + timedelta(seconds=START_SECONDS)
        attempts.mark_all_running(
            starts=[
                attempts.ReportedStart(
                    member_id=member.pk,
                    pid=None,
                    boot_id="",
                    started_at=began,
                    isolation=member.least_isolation,
                )
                for member in members
            ],
            now=began,
        )
        for job_id in job_ids:
            mine = [member for member in members if member.attempt.job_id == job_id]
            run = self.jobs[job_id]
            run.members = tuple(rank_of(member) for member in mine)
            run.devices = {member.node_id: member.devices for member in mine}
            run.attempt, run.since = mine[0].attempt.number, began.timestamp()
            left = run.past.seconds - run.done
            self._at(self._clock + STEP + left, partial(self._finish, job_id, run.attempt))

    def _finish(self, job_id: int, attempt: int) -> None:
        """End an attempt that has done all its work; one that was preempted has another number."""
        run = self.jobs[job_id]
        if run.attempt != attempt:
            return
        self._report(run, run.past.seconds)
        failure = protocol.USER if run.past.code else ""
        self._exit(run, protocol.CAUSE_EXITED, code=run.past.code, failure=failure)
        self.live.discard(job_id)

    def _leave(self, job_id: int, attempt: int) -> None:
        """End an attempt that has been asked to leave; a training saves its work first."""
        run = self.jobs[job_id]
        if run.attempt != attempt:
            return
        done = min(run.past.seconds, run.done + self._clock - run.since)
        self._report(run, done)
        training = run.past.kind.training
        if training is not None:
            step = int(done / training.step_seconds)
            self._happened(run, "acknowledged", {"step": step})
            digest = hashlib.sha256(f"{job_id}/{step}".encode()).hexdigest()
            self._happened(run, "checkpoint", {"step": step, "sha256": digest, "bytes": 94 << 20})
            run.done = done
        self._exit(run, protocol.CAUSE_STOPPED)

    def _happened(self, run: _Run, kind: str, facts: Mapping[str, str | int | float]) -> None:
        event = TrainingEvent(kind=kind, facts=MappingProxyType(dict(facts)))
        rank = run.members[0]
        Happened(node_id=rank.node_id, rank=rank, happenings=[event]).write(self.now)

    def _report(self, run: _Run, until: float) -> None:
        """Report the steps of an attempt up to ``until`` seconds of work, through its parser."""
        training = run.past.kind.training
        if training is None or run.past.code:
            return
        tally, first = ReportTally(), int(run.done / training.step_seconds)
        last = int(until / training.step_seconds)
        total = int(run.past.seconds / training.step_seconds)
        stops = sorted({first + (last - first) * part // POINTS for part in range(1, POINTS + 1)})
        for number, (before, step) in enumerate(pairwise([first, *stops]), start=1):
            if step > before:
                at = run.since + (step - first) * training.step_seconds
                line = {
                    "step": step - 1,
                    "steps": step - before,
                    "samples": training.samples,
                    "step_seconds": training.step_seconds,
                    "time": at,
                    "loss": training.loss(step, total, self._chance.uniform(-1.0, 1.0)),
                }
                tally.take(orjson.dumps(line) + b"\n")
            is_full = number % POINTS_PER_REPORT == 0 or step == last
            if is_full and (progress := tally.sum_up()) is not None:
                at = run.since + (step - first) * training.step_seconds
                moment = datetime.fromtimestamp(at, UTC)
                goodput.add_progress(rank=run.members[0], progress=progress, at=moment)

    def _exit(self, run: _Run, cause: str, *, code: int = 0, failure: str = "") -> None:
        record = protocol.ExitRecord(cause=cause, failure=failure, at=self._clock, code=code)
        ids = [member.member_id for member in run.members]
        attempts.mark_all_exited(records=dict.fromkeys(ids, record), now=self.now)
        attempts.mark_removed(member_ids=ids, now=self.now)
        run.attempt, run.devices = 0, {}

    def _sample(self) -> None:
        """Add a sample of the fleet, with the utilisation that the running jobs cause."""
        busy: dict[int, list[float | None]] = {
            node_id: [0.01] * devices for node_id, devices in _device_counts().items()
        }
        for job_id in self.live:
            run = self.jobs[job_id]
            for node_id, devices in run.devices.items():
                for index in devices:
                    noise = self._chance.uniform(-0.06, 0.05)
                    busy[node_id][index] = run.past.kind.busy + noise
        record_sample(now=self.now, busy=busy)

    def _plan_cordon(self) -> None:
        """Plan the repair of a node by an admin."""
        begin, end, name, reason = CORDON
        node_id, admin = Node.objects.get(name=name, removed_at=None).pk, Viewer.system("demo")

        def cordon() -> None:
            cordon_node(viewer=admin, node_id=node_id, reason=reason, now=self.now)

        def uncordon() -> None:
            uncordon_node(viewer=admin, node_id=node_id, now=self.now)

        self._at(self.began + begin, cordon)
        self._at(self.began + end, uncordon)

    def _withdraw(self, viewers: Mapping[str, Viewer]) -> None:
        """End the day: owners stop jobs that still wait or run."""
        for job_id in sorted(self.live):
            job = Job.objects.unscoped().get(pk=job_id)
            run = self.jobs[job_id]
            stop_job(job=job, viewer=viewers[run.past.kind.owner], now=self.now)
            if run.attempt:
                self._exit(run, protocol.CAUSE_STOPPED)
        if Job.objects.unscoped().filter(pk__in=self.jobs, state__in=LIVE).exists():
            raise RuntimeError("a job of the demo's history is still live")


def _viewer(name: str) -> Viewer:
    return viewer_of(User.objects.get(username=name))


def _device_counts() -> Mapping[int, int]:
    found: dict[int, int] = {}
    for node_id in Device.objects.filter(retired_at=None).values_list("node_id", flat=True):
        found[node_id] = found.get(node_id, 0) + 1
    return found
