"""Facts of simulated jobs as policies read them, with the definitions of live snapshots."""

from dataclasses import replace
from typing import Final

from scheduling.core.jobspec import Demand
from scheduling.core.simulation.jobs import JobProgress
from scheduling.core.simulation.speedup import HeldShape
from scheduling.core.values import JobFacts

NOTHING_KNOWN: Final = JobFacts()


def while_running(
    known: JobFacts | None,
    progress: JobProgress,
    shape: HeldShape,
    asked: Demand,
    *,
    now: float,
    left: float,
) -> JobFacts:
    """Return the facts of a job that holds devices.

    Args:
        known: the facts so far.
        progress: its progress until now.
        shape: its devices.
        asked: the requested gang.
        now: the present.
        left: its remaining work when the facts were observed last.
    """
    known = known or NOTHING_KNOWN
    seconds = now - progress.observed
    if seconds <= 0.0:
        return known
    progress.observed = now
    facts, used = known.facts, seconds * shape.devices
    by_type = dict(facts.by_type)
    if len(shape.types) == 1:
        by_type[shape.types[0]] = by_type.get(shape.types[0], 0.0) + used
    steps = facts.steps_left
    if steps is not None:
        steps = steps * progress.left / left if left > 0.0 else 0.0
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
            steps_left=steps,
        ),
    )


def after_run(known: JobFacts, *, now: float) -> JobFacts:
    """Return the facts of a job that has given back its devices and waits again."""
    return replace(known, facts=replace(known.facts, last_run=now, last_queued=now))


def after_restart(known: JobFacts | None) -> JobFacts:
    """Return the facts of a job that starts once more."""
    known = known or NOTHING_KNOWN
    return replace(known, facts=replace(known.facts, restarts=known.facts.restarts + 1))
