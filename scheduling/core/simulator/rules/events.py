"""Rules without rounds: a decision at each arrival, completion and wake time of a policy.

A job runs for its recorded duration at its requested size; on more or fewer devices it runs
proportionally faster or slower. It loses no progress when it stops, and continuing, at the same or
another size, costs the model's restart time; the first start is free. Nodes may fail.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from scheduling.core.policies.plans import settle, settle_offer
from scheduling.core.policy_interface import (
    Alloc,
    Event,
    Kind,
    Plan,
    Pool,
    Snapshot,
)
from scheduling.core.simulator.cellular import CellBook, guarantee
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.faults import NodeBook, NodeFaults
from scheduling.core.simulator.rules.event_inputs import (
    event_jobs,
    virtual_clusters,
    why_never,
)
from scheduling.core.simulator.rules.event_jobs import DONE, EventJob, EventModel
from scheduling.core.simulator.worlds import JobRecord, Setup


class EventWorld:
    """Jobs of given duration on counted devices."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._now = 0.0
        self._vcs = virtual_clusters(setup)
        self._jobs = list(event_jobs(setup, self._vcs))
        self._waiting = sorted(self._jobs, key=lambda run: (-run.job.submitted, -run.index))
        self._ids: list[int] = []
        self._held: dict[int, Alloc] = {}
        self._busy = 0
        self._ends: list[tuple[float, int, int]] = []
        self._rounds = 0
        self._completed = self._changed = self._broke = False
        self._free = dict(setup.cluster.capacity)
        self._pool = Pool(capacity=setup.cluster.capacity, types=setup.cluster.infos)
        start = self._waiting[-1].job.submitted if self._waiting else 0.0
        self._faults = NodeFaults(setup.cluster, setup.conditions, setup.seed, start)
        self._book: NodeBook | CellBook | None = None
        if setup.shares:
            self._book = CellBook(setup.cluster, setup.shares, self._vcs)
        elif setup.conditions.node_mtbf is not None:
            self._book = NodeBook(setup.cluster)
        self._restart = setup.conditions.restart_seconds
        known = self._jobs if setup.knowledge.oracle else None
        self._model = EventModel(setup.cluster.infos, known, self._restart)
        self._aware = setup.knowledge.size_aware or setup.knowledge.oracle
        self._tells_facts = setup.needs is None or bool(setup.needs)
        self._snapshot: Snapshot | None = None

    @property
    def now(self) -> float:
        """Seconds from the trace's start."""
        return self._now

    @property
    def cluster(self) -> SimCluster:
        return self._setup.cluster

    @property
    def finished(self) -> bool:
        """Whether all jobs are complete or refused."""
        return not self._waiting and not self._ids

    @property
    def active(self) -> int:
        """Jobs that have been submitted and are not complete."""
        return len(self._ids)

    @property
    def done(self) -> int:
        """Jobs that are complete or refused."""
        return len(self._jobs) - len(self._waiting) - len(self._ids)

    @property
    def busy(self) -> int:
        """Devices that are held now."""
        return self._busy

    @property
    def changed(self) -> bool:
        """Whether a job arrived or left before the last snapshot."""
        return self._changed

    def next_time(self, wake: float | None) -> float | None:
        """Return the time of the next arrival, completion, failure, wake-up or tick."""
        ends, jobs = self._ends, self._jobs
        while ends and ends[0][2] != jobs[ends[0][1]].version:
            heapq.heappop(ends)
        times = [ends[0][0]] if ends else []
        if self._waiting:
            times.append(max(self._now, self._waiting[-1].job.submitted))
        if self._ids:
            if wake is not None and wake > self._now:
                times.append(wake)
            if self._setup.interval is not None:
                times.append(self._now + self._setup.interval)
            if self._faults.next_time is not None:
                times.append(self._faults.next_time)
        return min(times, default=None)

    def advance(self, to: float) -> None:
        """Run all jobs until ``to``; those on a failed node wait again from then on."""
        ends = self._ends
        while ends and ends[0][0] <= to + DONE:
            _end, index, version = heapq.heappop(ends)
            run = self._jobs[index]
            if run.version == version and run.finished is None:
                run.finish(to)
                self._let_go(run)
                del self._ids[bisect_left(self._ids, index)]
                self._completed = True
        self._now = to
        if self._book is not None and self._faults.next_time is not None:
            self._suffer(self._book)

    def snapshot(self) -> Snapshot | None:
        """Return the current jobs."""
        arrived = self._admit()
        self._changed = arrived or self._completed or self._broke
        event = Event.COMPLETION if self._completed else Event.TICK
        if self._broke:
            event = Event.NODE
        self._completed = self._broke = False
        if not self._ids:
            return None
        if self._tells_facts:
            for index in self._held:
                self._jobs[index].run(self._now)
                self._jobs[index].with_facts(size_aware=self._aware)
        self._rounds += 1
        jobs = self._jobs
        self._snapshot = Snapshot(
            now=self._now,
            round_seconds=self._setup.interval or 60.0,
            round_number=self._rounds,
            seed=self._setup.seed,
            pool=self._pool,
            jobs=tuple([jobs[index].view for index in self._ids]),
            event=Event.ARRIVAL if arrived else event,
            model=self._model,
        )
        return self._snapshot

    def apply(self, plan: Plan) -> None:
        """Apply the planned allocations; rejected jobs leave."""
        assert self._snapshot is not None  # noqa: S101  a plan follows a snapshot
        held = self._held
        if self._setup.shares and self._only_offers(plan):
            self._offer_cells(plan)
        elif self._only_offers(plan):
            views = {index: self._jobs[index].view for index in plan.order}
            for index, alloc in settle_offer(plan, views, dict(self._free)).items():
                self._place(self._jobs[index], alloc)
        else:
            allocs = settle(self._snapshot, plan)
            changed = [
                index
                for index in sorted({*allocs, *held})
                if _sizes(allocs.get(index)) != _sizes(held.get(index))
            ]
            for index in changed:
                if index in held:
                    self._let_go(self._jobs[index])
            rank = {index: place for place, index in enumerate(plan.order)}
            changed.sort(key=lambda index: rank.get(index, -1))
            for index in changed:
                self._place(self._jobs[index], allocs.get(index))
        for index in plan.reject:
            run = self._jobs[index]
            if index in held:
                self._let_go(run)
                run.place(None, self._now, 0.0)
            run.refused = "by the policy"
            del self._ids[bisect_left(self._ids, index)]

    def records(self) -> tuple[JobRecord, ...]:
        """Return the records of all jobs, in the order of the trace."""
        for index in self._held:
            self._jobs[index].run(self._now)
        return tuple(
            JobRecord(
                name=run.job.name,
                submitted=run.job.submitted,
                started=run.started,
                finished=run.finished,
                restarts=run.restarts,
                gpu_seconds=run.gpu_seconds,
                failures=run.failures,
                lost=run.lost,
                refused=run.refused,
            )
            for run in self._jobs
        )

    def alone_seconds(self, index: int, device_type: str, devices: int) -> float | None:
        """Return the job's work divided by the given devices, as far as it can use them."""
        run = self._jobs[index]
        seconds = run.seconds.get(device_type)
        if seconds is None:
            return None
        most = run.job.devices if run.job.kind is Kind.RIGID else devices
        return seconds * run.job.devices / min(devices, most)

    def restart_seconds(self, index: int) -> float:
        """Return 0: the first start is free."""
        return 0.0

    def timeline(self) -> Mapping[str, Any]:
        """Return the devices over time."""
        held = {
            self._jobs[index].job.name: {part.type: part.n for part in alloc.parts}
            for index, alloc in sorted(self._held.items())
        }
        return {"time_s": self._now, "active": self.active, "gpus_busy": self.busy, "jobs": held}

    def _admit(self) -> bool:
        """Activate the arrived jobs, except those that can never run."""
        arrived = False
        while self._waiting and self._waiting[-1].job.submitted <= self._now:
            run = self._waiting.pop()
            run.refused = why_never(run.job, run.seconds, self._reachable(run))
            if run.refused is None:
                insort(self._ids, run.index)
                run.mark = self._now
                arrived = True
                if self._tells_facts:
                    run.with_facts(size_aware=self._aware)
        return arrived

    def _reachable(self, run: EventJob) -> Mapping[str, int]:
        """Return the devices by type that a job could have alone on the cluster."""
        if not self._setup.shares:
            return self.cluster.capacity
        return guarantee(self._setup.shares[self._vcs[run.index]], self.cluster)

    def _only_offers(self, plan: Plan) -> bool:
        """Return whether all running jobs retain their devices, and the rest is tried in order."""
        allocs, order, held = plan.allocs, set(plan.order), self._held
        return (
            plan.offer
            and len(allocs) == len(held) + len(order)
            and allocs.keys() >= order
            and held.keys().isdisjoint(order)
            and held.items() <= allocs.items()
        )

    def _offer_cells(self, plan: Plan) -> None:
        """Try waiting jobs in order; one without a cell may block its virtual cluster."""
        blocked: set[str] = set()
        for index in plan.order:
            if self._vcs[index] in blocked:
                continue
            run = self._jobs[index]
            self._place(run, plan.allocs[index])
            if run.alloc is None and plan.strict:
                blocked.add(self._vcs[index])

    def _place(self, run: EventJob, alloc: Alloc | None) -> None:
        if alloc is not None and self._book is not None:
            alloc = self._book.take(run.index, alloc, run.job.types)
        if alloc is None:
            if run.alloc is not None:
                run.place(None, self._now, self._restart)
            return
        run.place(alloc, self._now, self._restart)
        self._held[run.index] = alloc
        self._busy += alloc.devices
        for part in alloc.parts:
            self._free[part.type or ""] -= part.n
        if run.rate > 0.0:
            heapq.heappush(self._ends, (run.end, run.index, run.version))

    def _let_go(self, run: EventJob) -> None:
        alloc = self._held.pop(run.index)
        self._busy -= alloc.devices
        for part in alloc.parts:
            self._free[part.type or ""] += part.n
        if self._book is not None:
            self._book.release(run.index)

    def _suffer(self, book: NodeBook | CellBook) -> None:
        """Process failures and repairs of nodes."""
        for change in self._faults.until(self._now):
            for index in [] if change.is_up else book.on(change.device_type, change.node):
                run = self._jobs[index]
                run.fail(self._now, self._setup.conditions.checkpoint_seconds)
                self._let_go(run)
                run.place(None, self._now, 0.0)
                if self._tells_facts:
                    run.with_facts(size_aware=self._aware)
            book.change(change)
            self._broke = True
            devices = self.cluster.groups[change.device_type].devices
            self._free[change.device_type] += devices if change.is_up else -devices
        # The guarantee does not change: the engine knows which cells are unhealthy.
        if self._broke and not self._setup.shares:
            self._pool = Pool(capacity=MappingProxyType(book.capacity()), types=self.cluster.infos)


def _sizes(alloc: Alloc | None) -> tuple[tuple[int, str | None], ...]:
    return alloc.sizes if alloc else ()
