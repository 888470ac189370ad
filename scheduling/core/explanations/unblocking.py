"""Remedies: changes by the owner that let a waiting job start now, each one tried.

Each remedy is a change of the job's document that the round itself has decided. If no single
change helps, the smallest possible job is tried in every virtual cluster and class that is open to
the owner: if it is refused everywhere, no larger job starts either, and the refusals are the
proof.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduling.core.explanations.variants import (
    SMALLER,
    JobChange,
    OwnerOptions,
    asked,
    device_changes,
    member_with,
    moved,
    smaller,
    variants,
)
from scheduling.core.jobspec import JobClass, MemberDemand, Within
from scheduling.core.messages import english, message
from scheduling.core.reasons import Reason
from scheduling.core.round.gang_requests import OPPORTUNISTIC_PRIORITY
from scheduling.core.values import QueuedJob, VcFacts
from tessera.messages import Listing, Message, Parameter

MOST_STEPS: Final = 5
MOST_BETWEEN: Final = 3
"""Maximum trials of the bisection: exact up to 8 devices or instances."""

Refusal = Callable[[QueuedJob], Reason | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One line of the proof: the refusal of the smallest job."""

    virtual_cluster: str
    job_class: str
    code: str
    message: Message

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "virtual_cluster": self.virtual_cluster,
            "class": self.job_class,
            "code": self.code,
            "text": english(self.message),
            "message": self.message.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """Result of the search for remedies.

    Attributes:
        steps: remedies, each sufficient by itself, the mildest first.
        proof: refusals if no remedy exists; empty if one does, or if only time helps.
        is_whole: the search was complete.
    """

    steps: tuple[JobChange, ...] = ()
    proof: tuple[Refused, ...] = ()
    is_whole: bool = True


def seek(
    job: QueuedJob,
    reason: Reason | None,
    room: OwnerOptions,
    refusal: Refusal,
    *,
    may: Callable[[JobChange], bool] = lambda _: True,
    go_on: Callable[[], bool] = lambda: True,
) -> Sought:
    """Search for changes with which a waiting job would start now.

    Args:
        job: the waiting job.
        reason: the stored reason; None if unknown.
        room: the owner's options.
        refusal: returns the reason why a changed job would wait; None if it starts.
        may: returns whether a change results in an acceptable document.
        go_on: called between trials; False ends the search.
    """
    if reason is not None and reason.code.row.only_time_helps:
        return Sought()
    if reason is not None and reason.code.row.is_gate:
        return _open_gates(job, room, refusal, may, go_on)
    found: dict[str, JobChange] = {}
    for changed, step in variants(job, room):
        if len(found) == MOST_STEPS:
            break
        if not go_on():
            return Sought(steps=_mildest_first(found.values()), is_whole=False)
        if step.kind not in found and refusal(changed) is None and may(step):
            found[step.kind] = step
    most = [milder(job, step, refusal, may=may, go_on=go_on) for step in found.values()]
    return (
        Sought(steps=_mildest_first(most)) if most else _smallest(job, room, refusal, may, go_on)
    )


_MILDNESS: Final = {
    kind: place
    for place, kind in enumerate(
        (
            "virtual_cluster", "level", "pinned_cell", "type", "class", "instances", "devices",
        )
    )
}  # fmt: skip


def _mildest_first(steps: Iterable[JobChange]) -> tuple[JobChange, ...]:
    return tuple(sorted(steps, key=lambda step: _MILDNESS.get(step.kind, 9)))


def milder(
    job: QueuedJob,
    step: JobChange,
    refusal: Refusal,
    *,
    may: Callable[[JobChange], bool] = lambda _: True,
    go_on: Callable[[], bool] = lambda: True,
) -> JobChange:
    """Bisect for a smaller change than ``step`` that still lets the job start.

    Args:
        job: the waiting job.
        step: the change with which it would start.
        refusal: returns the reason why a changed job would wait; None if it starts.
        may: returns whether a change results in an acceptable document.
        go_on: called between trials; False ends the search.
    """
    if step.kind not in SMALLER:
        return step
    refused = asked(job, step.kind)
    while refused // 2 > step.number:
        refused //= 2
    for _ in range(MOST_BETWEEN):
        if refused - step.number < 2 or not go_on():
            break
        number = (step.number + refused) // 2
        changed, other = smaller(job, step.kind, number)
        if refusal(changed) is None and may(other):
            step = other
        else:
            refused = number
    return step


def _open_gates(
    job: QueuedJob,
    room: OwnerOptions,
    refusal: Refusal,
    may: Callable[[JobChange], bool],
    go_on: Callable[[], bool],
) -> Sought:
    """Open all gates of the owner together, with the further change needed."""
    opened, gates, changes = _opened(job)
    reason = refusal(opened)
    if reason is None:
        step = JobChange(kind="gate", how=gates, changes=changes)
        return Sought(steps=(step,)) if may(step) else Sought()
    if reason.code.row.is_gate:
        return Sought()

    def with_gate(step: JobChange) -> JobChange:
        how = message("gates-and", gates=gates, how=step.how)
        return replace(step, how=how, changes={**changes, **step.changes})

    found = seek(opened, reason, room, refusal, may=lambda step: may(with_gate(step)), go_on=go_on)
    return replace(found, steps=tuple(with_gate(step) for step in found.steps))


def _opened(job: QueuedJob) -> tuple[QueuedJob, Listing, dict[str, Any]]:
    """Return the job without its gates, the gates, and the changes of its document."""
    changes: dict[str, Any] = {}
    gates: list[Message] = []
    if job.held:
        changes["held"], job = False, replace(job, held=False)
        gates.append(message("released"))
    if job.after or job.after_failed:
        changes["after"], job = [], replace(job, after=(), after_failed=())
        gates.append(message("without-waiting"))
    if job.not_before is not None:
        changes["not_before"], job = None, replace(job, not_before=None)
        gates.append(message("without-earliest-start"))
    return job, Listing(tuple(gates)), changes


def _smallest(
    job: QueuedJob,
    room: OwnerOptions,
    refusal: Refusal,
    may: Callable[[JobChange], bool],
    go_on: Callable[[], bool],
) -> Sought:
    """Find the largest small size that starts, or prove that not even the smallest starts."""
    proof: list[Refused] = []
    for vc in (room.home, *room.clusters):
        for job_class in (JobClass.GUARANTEED, JobClass.OPPORTUNISTIC):
            if job_class is JobClass.GUARANTEED and job.job_class is JobClass.OPPORTUNISTIC:
                continue
            if not go_on():
                return Sought(is_whole=False)
            *larger, least = _shrunk(job, vc, job_class, room.home)
            reason = refusal(least[0])
            if reason is not None:
                proof.append(
                    Refused(
                        virtual_cluster=vc.name,
                        job_class=job_class.value,
                        code=reason.code.value,
                        message=reason.message,
                    )
                )
                continue
            for changed, step in larger:
                if go_on() and may(step) and refusal(changed) is None:
                    return Sought(steps=(step,))
            if may(least[1]):
                return Sought(steps=(least[1],))
    return Sought(proof=tuple(proof))


def _shrunk(
    job: QueuedJob, vc: VcFacts, job_class: JobClass, home: VcFacts
) -> list[tuple[QueuedJob, JobChange]]:
    """Return decreasing versions of the job on any devices; the last has one device per role."""
    base, changes = moved(job, vc) if vc.id != home.id else (job, {})
    if job_class is JobClass.OPPORTUNISTIC and base.job_class is JobClass.GUARANTEED:
        base = replace(base, job_class=job_class, priority=OPPORTUNISTIC_PRIORITY)
        changes = {**changes, "class": job_class.value}
    found: list[tuple[QueuedJob, JobChange]] = []
    sizes = _sizes(max(max(m.count, m.devices) for m in job.demand.members))
    tries = [(most, False) for most in sizes]
    if any(m.cpus is not None or m.memory is not None for m in job.demand.members):
        tries.append((1, True))
    for most, is_bare in tries:
        members, own = [], dict(changes)
        for member in job.demand.members:
            small, cut = _cut(member, most)
            if is_bare:
                small, cut = _bare(member, small, cut)
            members.append(small)
            own.update(cut)
        shape: Parameter = Listing(
            tuple(
                message("role-of-devices", count=m.count, n=m.devices, role=m.role)
                for m in members
            ),
            "and",
        )
        if job_class is not job.job_class:
            shape = message("opportunistic-shape", shape=shape)
        how = message("with-any-type-and-share" if is_bare else "with-any-type", shape=shape)
        if vc.id != home.id:
            how = message("how-in-cluster", how=how, name=vc.name)
        step = JobChange(kind="smallest", how=how, changes=own)
        found.append((replace(base, demand=replace(job.demand, members=tuple(members))), step))
    return found


def _bare(
    before: MemberDemand, small: MemberDemand, cut: Mapping[str, Any]
) -> tuple[MemberDemand, dict[str, Any]]:
    """Remove the requests for processors and memory from a role."""
    path = f"roles.{before.role}"
    changes = dict(cut)
    for name in ("cpus", "memory"):
        if getattr(before, name) is not None:
            changes[f"{path}.{name}"] = None
    return replace(small, cpus=None, memory=None), changes


def _sizes(largest: int) -> list[int]:
    sizes = [largest]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes


def _cut(member: MemberDemand, most: int) -> tuple[MemberDemand, dict[str, Any]]:
    """Limit a role in instances and in devices per instance, without ``within``."""
    path = f"roles.{member.role}"
    count, devices = min(member.count, most), min(member.devices, most)
    small = replace(
        member_with(member, "devices", devices),
        count=count,
        device_types=(),
        within=Within.NODE,
        pinned_cell=None,
    )
    changes: dict[str, Any] = {}
    if count != member.count:
        changes[f"{path}.instances"] = count
    if devices != member.devices:
        changes.update(device_changes(member, small))
    if member.device_types:
        changes[f"{path}.device_types"] = []
    if member.within is not Within.NODE:
        changes[f"{path}.within"] = Within.NODE.value
    if member.pinned_cell is not None:
        changes[f"{path}.pinned_cell"] = None
    return small, changes
