"""Forward simulation of a cluster from a snapshot under its live policies, with given run times.

Every decision uses the live code (``scheduling.core.round.decide``) on a persistent engine.
The world also replays a trace with true run times and simulates futures with drawn ones.
Preempted jobs lose no progress, and jobs run in proportion to their devices.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduling.core.forecast import HORIZON
from scheduling.core.jobspec import Demand, JobClass
from scheduling.core.policies import make_policy
from scheduling.core.policies.base import TimeLimit
from scheduling.core.round.decide import decide
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round.gang_requests import group_name, parts_of
from scheduling.core.round.gates import next_opening
from scheduling.core.round.policy_answers import MakePolicy, is_plain
from scheduling.core.values import (
    ClusterSnapshot,
    HoldingJob,
    JobFacts,
    QueuedJob,
    RoundResult,
    Start,
)
from tessera.isolation import NONE
from tessera.reasons import ReasonCode

Remaining = Callable[[int], float]
"""Remaining seconds of a job at its requested size; called once, when it first holds devices."""

_NOTHING_KNOWN: Final = JobFacts()
_END, _LEAVE, _GATE, _WAKE = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastCourse:
    """Settings of a walk through a world.

    Attributes:
        horizon: seconds after which starts are not simulated.
        coarse: steps are at least such a part of the time that has passed.
        grace: seconds that a preempted job takes to leave.
        tick: seconds between two rounds for policies that depend on more than arrivals.
        most_waiting: maximum jobs of one virtual cluster and class, first come first.
    """

    horizon: float = HORIZON
    coarse: float = 0.0
    grace: float = 30.0
    tick: float = 300.0
    most_waiting: int = 1_000_000


@dataclass(slots=True)
class _Life:
    """One job that holds devices or has held some.

    Attributes:
        left: remaining seconds at the requested size.
        since: when ``left`` was true.
        rate: its share of the requested size.
        version: increases with each change of its devices.
        ran: seconds run until ``since``, as if at the requested size.
    """

    job: QueuedJob
    left: float
    since: float
    rate: float = 0.0
    version: int = 0
    ran: float = 0.0


class SimulatedCluster:
    """Jobs on a cluster, from one decision to the next."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        remaining: Remaining,
        *,
        course: ForecastCourse | None = None,
        arrivals: Iterable[tuple[QueuedJob, JobFacts]] = (),
        limit: TimeLimit = nullcontext,
        make: MakePolicy = make_policy,
    ) -> None:
        self.now = snapshot.now
        self.starts: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.waiting = {job.id: job for job in snapshot.queued}
        self.holding = {job.id: job for job in snapshot.holding}
        self.known: dict[int, JobFacts] = dict(snapshot.known)
        self.reasons: Mapping[int, Any] = {}
        # Ports return with the jobs that end, and run out so rarely that they are not counted.
        self._base, self._remaining = replace(snapshot, ports_left=None), remaining
        self._course = course or ForecastCourse()
        self._limit, self._make = limit, make
        self._began = snapshot.now
        self._round = snapshot.round_number
        self._vcs = {vc.id: vc for vc in snapshot.vcs}
        self._engine = engine_for(snapshot)
        self._lives: dict[int, _Life] = {}
        self._events: list[tuple[float, int, int, int]] = []
        self._arrivals = sorted(arrivals, key=lambda one: (-one[0].submitted, -one[0].id))
        self._ticks = any(not is_plain(vc) for vc in snapshot.vcs)
        self._asked: dict[int, Demand] = {job.id: job.demand for job in snapshot.queued}
        for job in snapshot.holding:
            self._take_over(job)
        for waiting in snapshot.queued:
            self._await_gate(waiting)

    def snapshot(self) -> ClusterSnapshot:
        """Return the snapshot for the round of this moment."""
        if self._ticks:
            self._update_known()
        return replace(
            self._base,
            now=self.now,
            round_number=self._round,
            seed=self._round,
            vcs=tuple(self._vcs.values()),
            queued=self._looked_at(),
            holding=tuple(self.holding.values()),
            known=self.known if self._ticks else {},
        )

    def decide(self) -> RoundResult:
        """Decide one round, and apply it at once."""
        result = decide(
            self.snapshot(),
            limit=self._limit,
            make=self._make,
            engine=self._engine,
            trials=0,
            explain=(),
        )
        self._round += 1
        for start in result.starts:
            self._start(start)
        for rejection in result.rejections:
            self.waiting.pop(rejection.job_id, None)
        for preemption in result.preemptions:
            self._ask_to_leave(preemption.job_id)
        self._note_claims(result)
        for vc_id, state in result.policy_states.items():
            self._vcs[vc_id] = replace(self._vcs[vc_id], policy_state=state)
        if result.wake is not None:
            heapq.heappush(self._events, (result.wake, _WAKE, 0, 0))
        self.reasons = result.reasons
        return result

    def next_time(self) -> float | None:
        """Return the time of the next decision, or None after the last event or the horizon."""
        events, course = self._events, self._course
        while events and self._is_stale(events[0]):
            heapq.heappop(events)
        times = [events[0][0]] if events else []
        if self._arrivals:
            times.append(self._arrivals[-1][0].submitted)
        if not times:
            return None
        if self._ticks and self.waiting:
            times.append(self.now + course.tick)
        passed = self.now - self._began
        due = max(min(times), self.now + course.coarse * passed)
        return due if due <= self._began + course.horizon else None

    def advance(self, to: float) -> None:
        """Process all events until ``to``."""
        events = self._events
        while events and events[0][0] <= to:
            at, kind, job_id, _version = event = heapq.heappop(events)
            if self._is_stale(event):
                continue
            self.now = max(self.now, at)
            if kind == _END:
                self._end(job_id)
            elif kind == _LEAVE:
                self._leave(job_id)
        self.now = max(self.now, to)
        while self._arrivals and self._arrivals[-1][0].submitted <= self.now:
            job, known = self._arrivals.pop()
            self.waiting[job.id] = job
            self._asked[job.id] = job.demand
            self.known[job.id] = known
            self._await_gate(job)

    def ran(self, job_id: int) -> float:
        """Return the seconds that a live job has run here so far, as if at the requested size."""
        life = self._lives.get(job_id)
        return 0.0 if life is None else life.ran + (self.now - life.since) * life.rate

    # State

    def _looked_at(self) -> tuple[QueuedJob, ...]:
        most = self._course.most_waiting
        if len(self.waiting) <= most:
            return tuple(self.waiting.values())
        lines: dict[tuple[int, JobClass], list[QueuedJob]] = defaultdict(list)
        for job in self.waiting.values():
            lines[job.vc, job.job_class].append(job)
        return tuple(
            job
            for line in lines.values()
            for job in sorted(line, key=lambda job: (-job.priority, job.submitted, job.id))[:most]
        )

    def _take_over(self, job: HoldingJob) -> None:
        known = self.known.get(job.id, _NOTHING_KNOWN)
        asked = known.asked or job.demand
        self._asked[job.id] = asked
        life = _Life(
            job=QueuedJob(
                id=job.id,
                vc=job.vc,
                tenant=job.tenant,
                owner=job.owner,
                owner_name="",
                priority=job.priority,
                job_class=job.job_class,
                demand=asked,
                submitted=job.submitted,
            ),
            left=max(self._remaining(job.id), 0.0),
            since=self.now,
            rate=job.devices / max(asked.devices, 1),
        )
        self._lives[job.id] = life
        if job.leaving:
            heapq.heappush(self._events, (self.now + self._course.grace, _LEAVE, job.id, 0))
        else:
            self._await_end(life)

    def _await_end(self, life: _Life) -> None:
        if life.rate > 0.0:
            at = life.since + life.left / life.rate
            heapq.heappush(self._events, (at, _END, life.job.id, life.version))

    def _await_gate(self, job: QueuedJob) -> None:
        opening = next_opening(job, self.now)
        if opening is not None:
            heapq.heappush(self._events, (opening, _GATE, job.id, 0))

    def _is_stale(self, event: tuple[float, int, int, int]) -> bool:
        _at, kind, job_id, version = event
        if kind in (_GATE, _WAKE):
            return False
        life = self._lives.get(job_id)
        return life is None or life.version != version or job_id not in self.holding

    # Events

    def _start(self, start: Start) -> None:
        job = self.waiting.pop(start.job_id)
        self.starts.setdefault(job.id, self.now)
        demand = start.demand or job.demand
        self.holding[job.id] = HoldingJob(
            id=job.id,
            vc=job.vc,
            tenant=job.tenant,
            owner=job.owner,
            priority=job.priority,
            job_class=job.job_class,
            demand=demand,
            submitted=job.submitted,
            since=self.now,
            leaving=False,
            members=tuple(member.leaves for member in start.members),
        )
        self._own_nodes(start, job.tenant)
        life = self._lives.get(job.id)
        if life is None:
            left = max(self._remaining(job.id), 0.0)
            life = self._lives[job.id] = _Life(job=job, left=left, since=self.now)
        life.since = self.now
        life.rate = demand.devices / max(self._asked[job.id].devices, 1)
        life.version += 1
        self._await_end(life)

    def _own_nodes(self, start: Start, tenant: int) -> None:
        """Assign nodes without isolation to the tenant of the first job, without resets."""
        taken = {member.node for member in start.members if member.isolation == NONE}
        if taken:
            nodes = (
                replace(node, owner=tenant) if node.name in taken else node
                for node in self._base.nodes
            )
            self._base = replace(self._base, nodes=tuple(nodes))

    def _ask_to_leave(self, job_id: int) -> None:
        held = self.holding.get(job_id)
        if held is None or held.leaving:
            return
        self.holding[job_id] = replace(held, leaving=True)
        life = self._lives[job_id]
        self._bring_up(life)
        life.rate = 0.0
        life.version += 1
        at = self.now + self._course.grace
        heapq.heappush(self._events, (at, _LEAVE, job_id, life.version))

    def _end(self, job_id: int) -> None:
        self._let_go(job_id)
        self.ended[job_id] = self.now
        self._lives.pop(job_id, None)
        for other in [job for job in self.waiting.values() if job_id in job.after]:
            after = tuple(one for one in other.after if one != job_id)
            self.waiting[other.id] = replace(other, after=after)

    def _leave(self, job_id: int) -> None:
        self._let_go(job_id)
        life = self._lives[job_id]
        life.version += 1
        self.waiting[job_id] = replace(life.job, claims=None, waiting_for=())

    def _let_go(self, job_id: int) -> None:
        held = self.holding.pop(job_id)
        for part in range(len(parts_of(held.demand))):
            self._engine.release(group_name(job_id, part))

    def _bring_up(self, life: _Life) -> None:
        done = (self.now - life.since) * life.rate
        life.left = max(0.0, life.left - done)
        life.ran += done
        life.since = self.now

    def _note_claims(self, result: RoundResult) -> None:
        """Store each job's claims until it starts or drops them."""
        for job_id, job in self.waiting.items():
            reason = result.reasons.get(job_id)
            waits = reason is not None and reason.code is ReasonCode.WAITING_VICTIM_CHECKPOINT
            claims = reason.claims if reason is not None and waits else None
            if claims is not None or job.claims is not None:
                self.waiting[job_id] = replace(job, claims=claims)

    def _update_known(self) -> None:
        """Update the job facts of running jobs."""
        for job_id, held in self.holding.items():
            life, known = self._lives[job_id], self.known.get(job_id, _NOTHING_KNOWN)
            passed = self.now - life.since
            if passed <= 0.0 or life.rate <= 0.0:
                continue
            self._bring_up(life)
            facts = known.facts
            self.known[job_id] = replace(
                known,
                asked=self._asked[job_id],
                facts=replace(
                    facts,
                    executed=facts.executed + passed,
                    gpu_seconds=facts.gpu_seconds + passed * held.devices,
                    last_run=self.now,
                    steps_left=None,
                ),
            )
