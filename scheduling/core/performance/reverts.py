"""Reverts of growths that made a job slower, under any policy.

Measured, not modelled: two consecutive runs of one job are compared if both are long enough.
A failed size is not tried again, so that a job reverts at most once for each size.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from scheduling.core.policy_interface import Alloc, Part, Plan, PolicyJob, Slower, Snapshot
from scheduling.core.values import RunObservation

STEPS_TO_JUDGE: Final = 20
SECONDS_TO_JUDGE: Final = 30.0

MARGIN: Final = 0.95
"""A growth has failed if the pace after it is below this fraction of the pace before it."""


def slower_sizes(seen: Sequence[RunObservation]) -> tuple[Slower, ...]:
    """Return the sizes at which a job was slower than at its fastest smaller size.

    Args:
        seen: runs of the job, oldest first.
    """
    # The effect of several processes on a device is independent of the job's size.
    judged = [run for run in seen if is_long(run) and run.executors <= 1]
    told = all(run.samples > 0.0 for run in judged)
    found: dict[tuple[str, int], Slower] = {}
    for run in judged:
        best = max(
            (one for one in judged if one is not run and _is_smaller(one, run)),
            key=lambda one: (pace(one, told=told), -one.devices, one.type),
            default=None,
        )
        if best is None or pace(run, told=told) >= MARGIN * pace(best, told=told):
            found.pop((run.type, run.devices), None)  # a later run at this size was fast enough
            continue
        found[run.type, run.devices] = Slower(
            type=run.type, devices=run.devices, back_type=best.type, back_devices=best.devices
        )
    return tuple(found[size] for size in sorted(found))


def with_reverts(view: Snapshot, plan: Plan) -> Plan:
    """Replace sizes in a plan that made a job slower by the previous sizes."""
    changed = {
        job.id: back
        for job in view.jobs
        if job.facts.slower and job.id in plan.allocs
        for back in [_back(job, plan.allocs[job.id])]
        if back is not None
    }
    return replace(plan, allocs={**plan.allocs, **changed}) if changed else plan


def is_slower(job: PolicyJob, alloc: Alloc | None) -> bool:
    """Return whether a job has been slower on ``alloc``."""
    return alloc is not None and _found(job, alloc) is not None


def is_long(run: RunObservation) -> bool:
    """Return whether a run is long enough to judge."""
    return run.steps >= STEPS_TO_JUDGE and run.seconds >= SECONDS_TO_JUDGE


def pace(run: RunObservation, *, told: bool) -> float:
    """Return samples per second, or steps per second if a run has not reported its samples."""
    return (run.samples if told else run.steps) / run.seconds


def _back(job: PolicyJob, alloc: Alloc) -> Alloc | None:
    """Return the job's allocation before the change, or None if the plan does not change."""
    found = _found(job, alloc)
    if found is None or not job.allows(found.back_devices):
        return None
    held = job.alloc
    if held is not None and _size(held) == (found.back_type, found.back_devices):
        return held
    level = alloc.parts[0].level
    return Alloc(parts=(Part(n=found.back_devices, type=found.back_type, level=level),))


def _found(job: PolicyJob, alloc: Alloc) -> Slower | None:
    size = _size(alloc)
    return next((one for one in job.facts.slower if (one.type, one.devices) == size), None)


def _size(alloc: Alloc) -> tuple[str | None, int]:
    """Return the only type of an allocation (None for a mix) and its number of devices."""
    kinds = {part.type for part in alloc.parts}
    return (kinds.pop() if len(kinds) == 1 else None, alloc.devices)


def _is_smaller(one: RunObservation, run: RunObservation) -> bool:
    return one.type == run.type and one.devices < run.devices
