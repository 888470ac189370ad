"""The private cluster: replay of the guaranteed jobs of one virtual cluster alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from scheduling.core.policies import make_policy
from scheduling.core.promises.export import AuditedJob, PromiseExport, sound_node
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.simulation import (
    ClusterChange,
    ModelSpeedup,
    Overhead,
    QueueChange,
    SimulatedCluster,
    SimulationSettings,
    proportional,
)
from scheduling.core.simulation.events import Event
from scheduling.core.values import ClusterSnapshot, JobFacts, QueuedJob

ENDLESS: Final = 1e12
"""Seconds of work of a job that has not ended."""

SHORTEST_TICK: Final = 60.0
"""Minimum seconds between two rounds for policies that depend on more than arrivals."""


def private_starts(export: PromiseExport, *, make: MakePolicy = make_policy) -> dict[int, float]:
    """Return the first start of each job on the private cluster, within the span."""
    jobs = {job.job.id: job for job in export.jobs}

    def work(job_id: int) -> float:
        found = jobs[job_id].work
        return ENDLESS if found is None else found

    speedup = (
        ModelSpeedup({job.job.id: job.job for job in export.jobs}, export.latest)
        if export.latest
        else proportional
    )
    world = SimulatedCluster(
        private_snapshot(export),
        work,
        settings=SimulationSettings(
            horizon=export.until - export.snapshot.now, grace=export.grace, tick=tick_of(export)
        ),
        arrivals=_arrivals(export),
        events=tuple(_events(export)),
        speedup=speedup,
        overhead=lambda job_id: Overhead(start=jobs[job_id].start_seconds),
        make=make,
    )
    world.decide()
    while (due := world.next_time()) is not None:
        world.advance(due)
        world.decide()
    return world.record.starts


def private_snapshot(export: PromiseExport) -> ClusterSnapshot:
    """Return the start of the span with healthy nodes and only the audited virtual cluster."""
    snapshot = export.snapshot
    jobs = {job.job.id: job for job in export.jobs}
    return replace(
        snapshot,
        vcs=tuple(vc for vc in snapshot.vcs if vc.id == export.vc),
        nodes=tuple(sound_node(node, export.tenant) for node in snapshot.nodes),
        bad_devices=frozenset(),
        suspect_devices=frozenset(),
        queued=tuple(gated(jobs[job.id]) for job in snapshot.queued if job.id in jobs),
        holding=tuple(job for job in snapshot.holding if job.id in jobs),
        ports_left=None,
    )


def private_changes(export: PromiseExport) -> Iterator[ClusterChange]:
    """Yield the changes of cells, guarantees and policies, without those of health."""
    last = None
    for change in sorted(export.changes, key=lambda change: change.at):
        private = replace(
            change,
            vcs=tuple(vc for vc in change.vcs if vc.id == export.vc),
            nodes=tuple(sound_node(node, export.tenant) for node in change.nodes),
            bad_devices=frozenset(),
        )
        same = replace(private, at=0.0)
        if same != last:
            last = same
            yield private


def gated(job: AuditedJob) -> QueuedJob:
    """Return a job that may not start before the time at which it was eligible."""
    return replace(
        job.job,
        not_before=job.eligible,
        held=False,
        after=(),
        after_failed=(),
        backoff_until=None,
        excluded_nodes=(),
        waiting_for=(),
        claims=None,
        turn_of=None,
    )


def tick_of(export: PromiseExport) -> float:
    """Return the seconds between two rounds without events."""
    return max(SHORTEST_TICK, export.snapshot.round_seconds)


def _arrivals(export: PromiseExport) -> list[tuple[QueuedJob, JobFacts]]:
    before = {job.id for job in export.snapshot.queued}
    before |= {job.id for job in export.snapshot.holding}
    return [(gated(job), job.known) for job in export.jobs if job.job.id not in before]


def _events(export: PromiseExport) -> Iterator[Event]:
    yield from private_changes(export)
    for job in export.jobs:
        if job.withdrawn is not None:
            yield QueueChange(at=job.withdrawn, job_id=job.job.id, job=None)
