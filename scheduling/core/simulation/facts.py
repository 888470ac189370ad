"""Facts of simulated jobs as policies read them, with the definitions of live snapshots."""

from dataclasses import replace
from typing import Final

from scheduling.core.jobspec import Demand
from scheduling.core.simulation.jobs import JobProgress
from scheduling.core.simulation.speedup import HeldShape
from scheduling.core.values import JobFacts, RunObservation

NOTHING_KNOWN: Final = JobFacts()
_OBSERVED_STEPS: Final = 1_000_000
"""Steps of one observation: enough for an exact rate."""


def while_running(
    known: JobFacts | None,
    progress: JobProgress,
    shape: HeldShape,
    asked: Demand,
    *,
    now: float,
    steps: float | None,
) -> JobFacts:
    """Return the facts of a job that holds devices.

    Args:
        known: the facts so far.
        progress: its progress until now.
        shape: its devices.
        asked: the requested gang.
        now: the present.
        steps: steps in a second of work at the requested size; None if the job reports none.
    """
    known = known or NOTHING_KNOWN
    recovering = now < progress.since
    if recovering is not known.facts.recovering:
        known = replace(known, facts=replace(known.facts, recovering=recovering))
    seconds = now - progress.observed
    if seconds <= 0.0:
        return known
    made, left = progress.observed_left - progress.left, progress.observed_left
    progress.observed, progress.observed_left = now, progress.left
    facts, used = known.facts, seconds * shape.devices
    by_type = dict(facts.by_type)
    if len(shape.types) == 1:
        by_type[shape.types[0]] = by_type.get(shape.types[0], 0.0) + used
    steps_left = facts.steps_left
    if steps_left is not None:
        steps_left = steps_left * progress.left / left if left > 0.0 else 0.0
    if steps is not None and made > 0.0:
        known = with_speed(known, shape, steps * progress.rate)
    return replace(
        known,
        asked=asked,
        facts=replace(
            facts,
            executed=facts.executed + seconds,
            gpu_seconds=facts.gpu_seconds + used,
            by_type=by_type,
            last_run=now,
            last_queued=None,
            steps_done=facts.steps_done + made * (steps or 0.0),
            steps_left=steps_left,
        ),
    )


def with_speed(known: JobFacts, shape: HeldShape, rate: float) -> JobFacts:
    """Add a report of the speed on a shape, in steps per second, if none exists."""
    if rate <= 0.0 or len(shape.types) != 1:
        return known
    (kind,) = shape.types
    key = (kind, shape.nodes, shape.devices)
    if any((run.type, run.nodes, run.devices) == key for run in known.seen):
        return known
    run = RunObservation(
        type=kind,
        nodes=shape.nodes,
        devices=shape.devices,
        seconds=_OBSERVED_STEPS / rate,
        steps=_OBSERVED_STEPS,
        samples=0.0,
    )
    return replace(known, seen=(*known.seen, run))


def after_run(known: JobFacts, *, now: float) -> JobFacts:
    """Return the facts of a job that has released its devices and waits again."""
    facts = replace(known.facts, last_run=now, last_queued=now, recovering=False)
    return replace(known, facts=facts)


def after_restart(known: JobFacts | None) -> JobFacts:
    """Return the facts of a job that starts once more."""
    known = known or NOTHING_KNOWN
    return replace(known, facts=replace(known.facts, restarts=known.facts.restarts + 1))
