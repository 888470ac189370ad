"""Check of waits beyond the bound: when would a private cluster have started the job?

The check follows the recorded starts and ends. At each change it calls the decision of rounds for
a cluster that contains only the guaranteed jobs that really ran then.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from scheduling.core.cells import ClusterSpec
from scheduling.core.jobspec import NO_REQUIREMENTS, Within
from scheduling.core.policies import make_policy
from scheduling.core.promises.export import AuditedJob, JobRun, PromiseExport
from scheduling.core.promises.figures import Cause
from scheduling.core.promises.private import gated, private_changes, private_snapshot, tick_of
from scheduling.core.round.decide import decide
from scheduling.core.round.engine_setup import empty_engine
from scheduling.core.round.gang_requests import parts_of
from scheduling.core.round.policy_answers import MakePolicy, is_plain
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot, HoldingJob, JobFacts, NodeFacts
from tessera.isolation import NONE


@dataclass(slots=True)
class UnusableNodes:
    """Causes by which the cells of a virtual cluster were too few, in ascending time.

    A cause applies if a chain of its guarantee has more unusable nodes than spare ones.
    """

    states: list[tuple[float, ClusterSnapshot]]
    vc: str
    tenant: int
    _at: int = 0
    _known: dict[int, frozenset[Cause]] = field(default_factory=dict)

    def at(self, now: float) -> frozenset[Cause]:
        """Return the causes at a time, which never decreases."""
        while self._at + 1 < len(self.states) and self.states[self._at + 1][0] <= now:
            self._at += 1
        if self._at not in self._known:
            self._known[self._at] = self._causes(self.states[self._at][1])
        return self._known[self._at]

    def _causes(self, state: ClusterSnapshot) -> frozenset[Cause]:
        topology = empty_engine(state.spec).topology
        facts = {node.name: node for node in state.nodes}
        bad = {name for name, _ in state.bad_devices}
        found: set[Cause] = set()
        for chain in _chains_of(state.spec, self.vc):
            causes = [
                self._cause(facts.get(name), name in bad)
                for name in topology.chains[chain].node_names
            ]
            unusable = [cause for cause in causes if cause is not None]
            if len(unusable) > _spare(state.spec, chain):
                found.update(unusable)
        return frozenset(found)

    def _cause(self, node: NodeFacts | None, is_bad: bool) -> Cause | None:
        if node is None or is_bad or not node.healthy:
            return Cause.HARDWARE
        taken = node.isolation == NONE and node.owner not in (None, self.tenant)
        closed = bool(node.tenants) and self.tenant not in node.tenants
        return Cause.ADMIN if closed or taken or not node.placeable else None


def unusable_nodes(export: PromiseExport) -> UnusableNodes:
    """Return the causes over the span of an export."""
    tenant = next(vc.tenant for vc in export.snapshot.vcs if vc.id == export.vc)
    return UnusableNodes(states=list(_states(export)), vc=export.name, tenant=tenant)


def _states(export: PromiseExport) -> Iterator[tuple[float, ClusterSnapshot]]:
    yield export.snapshot.now, export.snapshot
    for change in sorted(export.changes, key=lambda change: change.at):
        yield (
            change.at,
            replace(
                export.snapshot,
                spec=change.spec,
                nodes=change.nodes,
                bad_devices=change.bad_devices,
            ),
        )


def _chains_of(spec: ClusterSpec, vc: str) -> set[str]:
    share = spec.virtual_clusters[vc]
    engine = empty_engine(spec)
    pinned = {engine.pinned_chain(vc, name) for name in share.pinned}
    return {quota.chain for quota in share.quotas} | {chain for chain in pinned if chain}


def _spare(spec: ClusterSpec, name: str) -> int:
    """Return the number of nodes of a chain that no guarantee needs."""
    engine = empty_engine(spec)
    chain = engine.topology.chains[name]
    needed = 0
    for vc, share in spec.virtual_clusters.items():
        for quota in share.quotas:
            level = chain.level_named(quota.level) if quota.chain == name else None
            needed += quota.count * chain.sizes[level][1] if level is not None else 0
        for pin in share.pinned:
            pool = engine.pool(vc, name, pin) if engine.pinned_chain(vc, pin) == name else None
            needed += sum(mask.bit_count() for mask in pool.masks.values()) if pool else 0
    return len(chain.node_names) - math.ceil(needed / chain.node_size)


MOST_TICKS: Final = 2000


@dataclass(slots=True)
class Denial:
    """Times in which a private cluster would have started a job, in seconds.

    Attributes:
        longest: longest time without a cause.
        with_causes: longest time, with or without causes.
        causes: causes that applied during these times.
    """

    longest: float = 0.0
    with_causes: float = 0.0
    causes: set[Cause] = field(default_factory=set)
    _since: float | None = None
    _since_any: float | None = None

    def add(self, begin: float, end: float, *, served: bool, causes: Collection[Cause]) -> None:
        """Add a span with one answer."""
        if not served:
            self._since = self._since_any = None
            return
        self._since_any = begin if self._since_any is None else self._since_any
        self.with_causes = max(self.with_causes, end - self._since_any)
        self.causes.update(causes)
        if causes:
            self._since = None
            return
        self._since = begin if self._since is None else self._since
        self.longest = max(self.longest, end - self._since)


def find_denials(
    export: PromiseExport, suspects: Collection[int], *, make: MakePolicy = make_policy
) -> dict[int, Denial]:
    """Check the waits of jobs that exceed their bound; return the result by job ID.

    Args:
        export: the facts of the span.
        suspects: IDs of the jobs.
        make: builds a policy from its name and parameters.
    """
    if not suspects:
        return {}
    history = _History(export, suspects, make)
    for begin, end in history.spans():
        history.advance(begin)
        history.check(begin, end)
    return history.found


class _History:
    """The guaranteed jobs of the virtual cluster as they actually ran, on private cells."""

    def __init__(self, export: PromiseExport, suspects: Collection[int], make: MakePolicy) -> None:
        self.found = {job_id: Denial() for job_id in suspects}
        self._export, self._make = export, make
        self._jobs = {job.job.id: job for job in export.jobs}
        self._base = private_snapshot(export)
        self._holding = {job.id: job for job in self._base.holding if self._jobs[job.id].runs}
        self._used: dict[int, float] = defaultdict(float)
        self._changes = list(private_changes(export))[::-1]
        self._unusable = unusable_nodes(export)
        self._todo = sorted(self._events(), key=lambda event: event[:2])[::-1]
        self._is_plain = all(is_plain(vc) for vc in self._base.vcs)

    def spans(self) -> Iterator[tuple[float, float]]:
        """Yield the times between two changes; shorter ones for policies that observe time."""
        since, until = self._base.now, self._export.until
        times = {since, until}
        times.update(at for at, *_ in self._todo if since < at < until)
        times.update(at for at, _ in self._unusable.states if since < at < until)
        for job in self._jobs.values():
            times.update(
                at for at in (job.eligible, job.withdrawn) if at is not None and since < at < until
            )
        tick = max(tick_of(self._export), (until - since) / MOST_TICKS)
        ordered = sorted(times)
        for begin, end in pairwise(ordered):
            ticks = 0 if self._is_plain else int((end - begin) / tick)
            steps = [begin + number * tick for number in range(ticks + 1)]
            yield from pairwise([*steps, end])

    def advance(self, now: float) -> None:
        """Apply the changes, ends and starts until ``now``."""
        while self._changes and self._changes[-1].at <= now:
            change = self._changes.pop()
            self._base = replace(
                self._base,
                spec=change.spec,
                vcs=change.vcs,
                nodes=change.nodes,
                storages=change.storages,
                topology_version=change.topology_version,
            )
        while self._todo and self._todo[-1][0] <= now:
            at, _, start, job_id, run = self._todo.pop()
            if start:
                self._start(job_id, run, at)
            else:
                self._end(job_id, at)

    def check(self, begin: float, end: float) -> None:
        """Record for each suspect without a start whether a private cluster would start it now."""
        waiting = [
            job
            for job in self._waiting(begin)
            if job.job.id in self.found and all(run.start > begin for run in job.runs)
        ]
        if not waiting:
            return
        result = decide(self._snapshot(begin), make=self._make, trials=0, explain=())
        self._keep_policy_state(result)
        served = {start.job_id for start in result.starts}
        served |= {preemption.for_job for preemption in result.preemptions}
        for job in waiting:
            self.found[job.job.id].add(
                begin,
                end,
                served=job.job.id in served,
                causes=self._causes(job, begin),
            )

    def _events(self) -> Iterator[tuple[float, int, bool, int, JobRun]]:
        """Yield starts and ends; at one instant, ends come first."""
        held = {job.id for job in self._base.holding}
        for job in self._export.jobs:
            for run in job.runs:
                if run.start >= self._base.now or job.job.id not in held:
                    yield run.start, 1, True, job.job.id, run
                if run.end is not None:
                    yield run.end, 0, False, job.job.id, run

    def _start(self, job_id: int, run: JobRun, at: float) -> None:
        job = self._jobs[job_id].job
        self._holding[job_id] = HoldingJob(
            id=job.id,
            vc=job.vc,
            tenant=job.tenant,
            owner=job.owner,
            priority=job.priority,
            job_class=job.job_class,
            demand=run.demand or job.demand,
            submitted=job.submitted,
            since=at,
            leaving=False,
            members=run.members,
            user_cap=job.user_cap,
        )

    def _end(self, job_id: int, at: float) -> None:
        held = self._holding.pop(job_id, None)
        if held is not None:
            self._used[job_id] += max(0.0, at - max(held.since, self._base.now))

    def _waiting(self, now: float) -> Iterator[AuditedJob]:
        for job in self._export.jobs:
            job_id = job.job.id
            if job_id in self._holding or job.eligible > now:
                continue
            if any(run.start > now for run in job.runs) or _waits_on(job, now):
                yield job

    def _snapshot(self, now: float) -> ClusterSnapshot:
        return replace(
            self._base,
            now=now,
            queued=tuple(gated(job) for job in self._waiting(now)),
            holding=tuple(self._holding.values()),
            known={} if self._is_plain else self._facts(now),
        )

    def _facts(self, now: float) -> Mapping[int, JobFacts]:
        """Return the facts of live jobs with their use of devices until now."""
        found = {}
        for job in (*self._waiting(now), *(self._jobs[pk] for pk in self._holding)):
            job_id, held = job.job.id, self._holding.get(job.job.id)
            seconds = self._used[job_id]
            if held is not None:
                seconds += max(0.0, now - max(held.since, self._base.now))
            facts = job.known.facts
            found[job_id] = replace(
                job.known,
                asked=job.job.demand,
                facts=replace(
                    facts,
                    executed=facts.executed + seconds,
                    gpu_seconds=facts.gpu_seconds + seconds * job.job.demand.devices,
                    last_run=now if seconds else facts.last_run,
                ),
            )
        return found

    def _keep_policy_state(self, result: RoundResult) -> None:
        states = result.policy_states
        self._base = replace(
            self._base,
            vcs=tuple(
                replace(vc, policy_state=states.get(vc.id, vc.policy_state))
                for vc in self._base.vcs
            ),
        )

    def _causes(self, job: AuditedJob, now: float) -> set[Cause]:
        causes = set(self._unusable.at(now))
        if is_outside_cells(job):
            causes.add(Cause.REQUEST)
        if self._is_capped(job, now):
            causes.add(Cause.CAP)
        return causes

    def _is_capped(self, job: AuditedJob, now: float) -> bool:
        (vc,) = self._base.vcs
        caps = vc.max_devices_per_user, job.job.user_cap
        if caps == (None, None):
            return False
        scale = job.known.terms.scale
        least = (scale.smallest if scale is not None else None) or job.job.demand.devices
        own = sum(held.devices for held in self._holding.values() if held.owner == job.job.owner)
        other = [
            use
            for use in self._export.other_use
            if use.owner == job.job.owner and use.start <= now and (use.end or now + 1) > now
        ]
        in_vc = sum(use.devices for use in other if use.in_vc)
        in_all = sum(use.devices for use in other)
        return any(
            cap is not None and own + used + least > cap
            for cap, used in zip(caps, (in_vc, in_all), strict=True)
        )


def is_outside_cells(job: AuditedJob) -> bool:
    """Return whether cells do not guarantee the start of a job's gang (``docs/cells.md``)."""
    demand = job.job.demand
    return len(parts_of(demand)) > 1 or any(
        member.within.is_above_node
        or member.within is Within.NVLINK
        or member.pinned_cell
        or member.storages
        or member.rdma
        or member.host_ipc
        or member.requires != NO_REQUIREMENTS
        for member in demand.members
    )


def _waits_on(job: AuditedJob, now: float) -> bool:
    """Return whether a job without later runs waits until the end of the span."""
    if job.withdrawn is not None:
        return now < job.withdrawn
    last = job.runs[-1] if job.runs else None
    return job.work is None and (last is None or (last.end is not None and last.end <= now))
