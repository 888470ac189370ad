"""Tiresias: least attained service in space and time, in queues (Gu et al., NSDI '19, section 3).

A job's attained service is devices times seconds. In the first form (discretised 2D-LAS, section
3.2) a job starts in the first queue and sinks by one queue at every threshold; queues are served
in order, each first in, first out, running jobs included. In the second form (2D-Gittins, section
3.3) past jobs give the probability that a job with this service ends soon, and the most likely job
comes first. The index is updated only when a job changes its queue. Jobs are rigid.

Placement (section 3.3): a job with one dominant parameter tensor loses most on several nodes, so
only such jobs are consolidated. Its first run reports the sizes of the tensors.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Final

from scheduling.core.messages import sentence
from scheduling.core.policies.base import Need
from scheduling.core.policies.engines.greedy import sorted_policy
from scheduling.core.policies.engines.room import present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import Alloc, JobPhase, Plan, PolicyJob, Snapshot

_REMEMBERED: Final = 1_000
_UNKNOWN: Final = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """Runs the jobs with the least attained service first.

    Attributes:
        form: ``las``, or ``gittins`` for the order by the Gittins index of past jobs.
        queues: number of queues.
        threshold: device-seconds after which a job leaves the first queue.
        factor: ratio of each threshold to the previous one.
        promote: a job that has waited this many times as long as it has run starts again in the
            first queue (the paper's PromoteKnob); 0 for never.
        least_history: number of past jobs below which ``gittins`` behaves like ``las``.
        pack_limit: share of the largest tensor above which a job starts on one node (PackLimit).
        pack_seconds: wait after which it starts on several nodes, so that it cannot starve.
    """

    form: str = parameter("las", sentence("param-order"), choices=("las", "gittins"))
    queues: int = parameter(2, sentence("param-queues"), low=1, high=8)
    threshold: float = parameter(57_600.0, sentence("param-first-threshold"), low=1.0, high=1e9)
    factor: float = parameter(4.0, sentence("param-threshold-ratio"), low=1.1, high=1e3)
    promote: float = parameter(0.0, sentence("param-promote"), low=0.0, high=1e6)
    least_history: int = parameter(20, sentence("param-gittins-jobs"), low=1, high=1000)
    pack_limit: float = parameter(0.4, sentence("param-pack-limit"), low=0.0, high=1.0)
    pack_seconds: float = parameter(1800.0, sentence("param-pack-wait"), low=0.0, high=1e9)

    name: ClassVar[str] = "tiresias"
    aliases: ClassVar[tuple[str, ...]] = ("2d-las",)
    summary: ClassVar[str] = "least attained service first, in queues; or by the Gittins index"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY})
    stateless: ClassVar[bool] = False

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Demote jobs, then allocate each gang in order of the queues.

        The state contains each job's queue, its entry time, its index, and service and run time at
        the last promotion; and for ``gittins`` the service of past jobs.
        """
        jobs = present(snapshot)
        history = self._history(snapshot, state)
        index = _GittinsIndex(history) if len(history) >= self.least_history else None
        known = state.get("jobs", {})
        entries = {
            job.id: self._entry(job, known.get(str(job.id)), snapshot.now, index) for job in jobs
        }
        plan = sorted_policy(snapshot, lambda job: entries[job.id].order)
        by_id = {job.id: job for job in jobs}
        plan = replace(
            plan,
            allocs={
                i: self._consolidated(snapshot, by_id[i], _with_batch(alloc, by_id[i].terms.batch))
                for i, alloc in plan.allocs.items()
            },
            wake=self._next_demotion(snapshot.now, jobs, plan, entries),
        )
        after: dict[str, Any] = {"jobs": {str(i): entry.to_json() for i, entry in entries.items()}}
        if self.form == "gittins":
            after |= {"history": history, "last": _standing(snapshot, jobs, plan)}
        return plan, after

    def _entry(
        self,
        job: PolicyJob,
        known: Sequence[float] | None,
        now: float,
        index: "_GittinsIndex | None",
    ) -> "_Entry":
        """Return the current queue entry of a job."""
        before = _Entry(since=now) if known is None else _Entry.from_json(known)
        entry = self._promoted(job, before, now)
        service = job.facts.gpu_seconds - entry.base_service
        queue = entry.queue
        while queue < self.queues - 1 and service >= self._threshold(queue):
            queue += 1
        if queue != entry.queue:
            entry = replace(entry, queue=queue, since=now)
        if index is None:
            return replace(entry, index=_UNKNOWN)
        if entry.index == _UNKNOWN or entry.since != before.since:
            last = queue == self.queues - 1
            quantum = self.threshold if last else self._threshold(queue) - service
            entry = replace(entry, index=index.at(service, quantum))
        return entry

    def _promoted(self, job: PolicyJob, entry: "_Entry", now: float) -> "_Entry":
        """Return the job to the first queue if it has waited for too long."""
        ran = job.facts.executed - entry.base_executed
        waited = now - max(job.since, entry.since)
        starves = 0.0 < self.promote * ran <= waited
        if job.phase is not JobPhase.QUEUED or not starves:
            return entry
        return _Entry(
            since=now, base_service=job.facts.gpu_seconds, base_executed=job.facts.executed
        )

    def _consolidated(self, snapshot: Snapshot, job: PolicyJob, alloc: Alloc) -> Alloc:
        """Start a job with one dominant tensor on one node, if a node is large enough."""
        skew = job.facts.skew
        if job.phase is not JobPhase.QUEUED or skew is None or skew <= self.pack_limit:
            return alloc
        if snapshot.now - (job.facts.last_queued or job.since) >= self.pack_seconds:
            return alloc
        info = snapshot.pool.types.get(alloc.parts[0].type or "")
        mixes = len({part.type for part in alloc.parts}) > 1
        if info is None or mixes or alloc.devices > info.node_devices:
            return alloc
        return replace(alloc, one_node=True)

    def _threshold(self, queue: int) -> float:
        return self.threshold * self.factor**queue

    def _next_demotion(
        self, now: float, jobs: Sequence[PolicyJob], plan: Plan, entries: Mapping[int, "_Entry"]
    ) -> float | None:
        """Time of the first demotion among the jobs that get devices."""
        times = [
            now + (self._threshold(entry.queue) - served) / job.gang
            for job in jobs
            if job.id in plan.allocs
            and (entry := entries[job.id]).queue < self.queues - 1
            and (served := job.facts.gpu_seconds - entry.base_service) >= 0.0
        ]
        return min(times, default=None)

    def _history(self, snapshot: Snapshot, state: Mapping[str, Any]) -> list[float]:
        """Return the device-seconds of the last 1,000 departed jobs, in order of departure."""
        if self.form != "gittins":
            return []
        here = {str(job.id) for job in snapshot.jobs}
        last = state.get("last", {"at": snapshot.now, "jobs": {}})
        elapsed = snapshot.now - last["at"]
        # A job that ran has left at an unknown time since then; half of the time is the estimate.
        gone = [
            service + devices * elapsed / 2
            for job_id, (service, devices) in last["jobs"].items()
            if job_id not in here
        ]
        return [*state.get("history", ()), *gone][-_REMEMBERED:]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A job's place in the queues."""

    queue: int = 0
    since: float
    index: float = _UNKNOWN
    base_service: float = 0.0
    base_executed: float = 0.0

    @property
    def order(self) -> tuple[float, ...]:
        """Return the sort key: larger index, then queues in order, each first in, first out."""
        return -self.index, self.queue, self.since

    @classmethod
    def from_json(cls, values: Sequence[float]) -> "_Entry":
        queue, since, index, service, executed = values
        return cls(
            queue=int(queue),
            since=since,
            index=index,
            base_service=service,
            base_executed=executed,
        )

    def to_json(self) -> list[float]:
        return [self.queue, self.since, self.index, self.base_service, self.base_executed]


class _GittinsIndex:
    """Probability that a job ends within a quantum of service, over its expected cost (3.3)."""

    def __init__(self, samples: Sequence[float]) -> None:
        self._samples = sorted(samples)
        self._sums = [0.0, *accumulate(self._samples)]

    def at(self, service: float, quantum: float) -> float:
        """Compute ``P(S - a <= d | S > a) / E[min(S - a, d) | S > a]``; 0 beyond all samples."""
        first = bisect_right(self._samples, service)
        last = bisect_right(self._samples, service + quantum)
        longer = len(self._samples) - first
        if not longer:
            return 0.0
        ending = last - first
        cost = self._sums[last] - self._sums[first] - ending * service
        cost += (longer - ending) * quantum
        return ending / cost


def _with_batch(alloc: Alloc, batch: int | None) -> Alloc:
    return alloc if alloc.batch == batch else replace(alloc, batch=batch)


def _standing(snapshot: Snapshot, jobs: Sequence[PolicyJob], plan: Plan) -> dict[str, Any]:
    """Return the service of every job, and its present number of devices."""
    return {
        "at": snapshot.now,
        "jobs": {
            str(job.id): [job.facts.gpu_seconds, job.gang if job.id in plan.allocs else 0]
            for job in jobs
        },
    }
