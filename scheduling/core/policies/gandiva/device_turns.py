"""Turns on devices: jobs of different rows stay on one device and run one after the other.

A change of rows then suspends processes instead of ending them. Only jobs that may share a device,
with one device each, take such turns; other gangs are preempted at the end of their row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from scheduling.core.policies.engines.room import on_type
from scheduling.core.policies.gandiva.packing import PackedGang, Seat
from scheduling.core.policy_interface import Alloc, JobPhase, PolicyJob, Share

MOST: Final = 4
"""Most jobs that take turns on one device."""


def device_turns(
    gangs: Sequence[PackedGang],
    seats: Mapping[int, Seat],
    jobs: Mapping[int, PolicyJob],
    capacity: Mapping[str, int],
    quantum: float,
) -> list[dict[int, Alloc]]:
    """Return the groups of jobs that take turns, each with its allocations.

    Args:
        gangs: the seated gangs, in order; packs of several jobs take no turns on a device.
        seats: row and type by gang.
        jobs: the jobs by ID.
        capacity: devices by type.
        quantum: seconds of a turn.
    """
    found: list[dict[int, Alloc]] = []
    for kind in sorted(capacity):
        here = [gang for gang in gangs if gang.key in seats and seats[gang.key].type == kind]
        able = [jobs[gang.key] for gang in here if _may_take_turns(gang, jobs[gang.key])]
        devices = _devices(here, {job.id for job in able}, seats, capacity[kind])
        if len(able) > devices and able and devices * MOST >= len(able):
            found += [_allocs(group, kind, quantum) for group in _groups(able, devices)]
    return found


def _may_take_turns(gang: PackedGang, job: PolicyJob) -> bool:
    return gang.n == 1 and job.gang == 1 and job.terms.shareable


def _devices(
    here: Sequence[PackedGang], able: set[int], seats: Mapping[int, Seat], capacity: int
) -> int:
    """Return the devices that all rows leave to jobs in turns, at most one for each job."""
    used: dict[int, int] = {}
    for gang in here:
        if gang.key not in able:
            row = seats[gang.key].row
            used[row] = used.get(row, 0) + gang.n
    return min(len(able), capacity - max(used.values(), default=0))


def _groups(jobs: Sequence[PolicyJob], devices: int) -> list[list[PolicyJob]]:
    """Divide jobs into ``devices`` groups; running jobs stay where they are."""
    own = [job for job in jobs if job.phase is JobPhase.RUNNING and not job.beside]
    waiting = [job for job in jobs if job.phase is not JobPhase.RUNNING]
    heads = [*own, *waiting][:devices]
    groups = {job.id: [job] for job in heads}
    rest = [job for job in jobs if job.id not in groups]
    for job in sorted(rest, key=lambda one: one.beside not in groups):
        there = groups.get(job.beside)
        if there is None or len(there) >= MOST:
            there = min(groups.values(), key=lambda group: (len(group), group[0].id))
        there.append(job)
    return list(groups.values())


def _allocs(group: Sequence[PolicyJob], kind: str, quantum: float) -> dict[int, Alloc]:
    if len(group) == 1:
        return {group[0].id: on_type(group[0], kind)}
    name = "+".join(str(job_id) for job_id in sorted(job.id for job in group))
    share = Share(fraction=1.0 / len(group), group=name, turn_seconds=quantum)
    return {job.id: replace(on_type(job, kind), share=share) for job in group}
