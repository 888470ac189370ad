"""Variants of one waiting job: each changes one property that the owner could have requested."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

from scheduling.core.jobspec import JobClass, MemberDemand, Within
from scheduling.core.messages import message, sentence
from scheduling.core.round.gang_requests import OPPORTUNISTIC_PRIORITY
from scheduling.core.values import QueuedJob, VcFacts
from tessera.messages import Listing, Message, Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A change with which the job would start now.

    Attributes:
        kind: devices, instances, type, class, pinned_cell, level, virtual_cluster, gate or
            smallest (several changes together).
        how: the change, for the sentence of ``message``.
        changes: new values by path in the document; None removes a field.
        number: number of devices or instances after a reduction; else 0.
    """

    kind: str
    how: Message | Listing
    changes: Mapping[str, Any]
    number: int = 0

    @property
    def message(self) -> Message:
        """The sentence."""
        if self.kind == "gate":
            return message("starts-now-released", gates=self.how)
        if self.kind == "level":
            return message("starts-now-on-node", how=self.how)
        return message("starts-now", how=self.how)

    @property
    def text(self) -> Sentence:
        """The English sentence."""
        return sentence(self.message)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "kind": self.kind,
            "text": str(self.text),
            "message": self.message.to_json(),
            "changes": dict(self.changes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """Alternatives that are open to the owner.

    Attributes:
        home: the virtual cluster of the job.
        clusters: others of the tenant that the owner may use.
        types: existing device types.
    """

    home: VcFacts
    clusters: Sequence[VcFacts] = ()
    types: Sequence[str] = ()


SMALLER: Final[Mapping[str, str]] = {"devices": "devices", "instances": "count"}
"""Reducible fields of a role by kind of step, with their names."""


def variants(job: QueuedJob, room: OwnerOptions) -> Iterator[tuple[QueuedJob, JobChange]]:
    """Yield variants in another virtual cluster, of another shape, or smaller; kinds alternate."""
    kinds = (
        _borrowing(job),
        _unpinned(job),
        _elsewhere(job, room),
        _looser(job),
        _halved(job, "devices"),
        _halved(job, "instances"),
        _other_types(job, room.types),
    )
    for turn in zip_longest(*kinds):
        yield from (variant for variant in turn if variant is not None)


def _borrowing(job: QueuedJob) -> Iterator[tuple[QueuedJob, JobChange]]:
    if job.job_class is JobClass.GUARANTEED:
        # Opportunistic jobs cannot use pinned cells.
        free, unpinned = _without_pins(job)
        yield (
            replace(free, job_class=JobClass.OPPORTUNISTIC, priority=OPPORTUNISTIC_PRIORITY),
            JobChange(
                kind="class",
                how=message("as-opportunistic-unpinned" if unpinned else "as-opportunistic"),
                changes={"class": JobClass.OPPORTUNISTIC.value, **unpinned},
            ),
        )


def _unpinned(job: QueuedJob) -> Iterator[tuple[QueuedJob, JobChange]]:
    free, changes = _without_pins(job)
    if changes:
        yield (
            free,
            JobChange(
                kind="pinned_cell",
                how=message("outside-pinned"),
                changes=changes,
            ),
        )


def _without_pins(job: QueuedJob) -> tuple[QueuedJob, dict[str, None]]:
    """Return the job without pinned cells, and the fields of the document to clear."""
    members = job.demand.members
    free = tuple(replace(member, pinned_cell=None) for member in members)
    changes = {f"roles.{m.role}.pinned_cell": None for m in members if m.pinned_cell is not None}
    return replace(job, demand=replace(job.demand, members=free)), changes


def _elsewhere(job: QueuedJob, room: OwnerOptions) -> Iterator[tuple[QueuedJob, JobChange]]:
    """Yield the job in other virtual clusters of its tenant."""
    for vc in room.clusters:
        changed, changes = moved(job, vc)
        yield (
            changed,
            JobChange(
                kind="virtual_cluster",
                how=message("in-cluster", name=vc.name),
                changes=changes,
            ),
        )


def moved(job: QueuedJob, vc: VcFacts) -> tuple[QueuedJob, dict[str, Any]]:
    """Return the job in another virtual cluster without pinned cells, and the document changes."""
    free, unpinned = _without_pins(job)
    return replace(free, vc=vc.id), {"virtual_cluster": vc.name, **unpinned}


def _looser(job: QueuedJob) -> Iterator[tuple[QueuedJob, JobChange]]:
    """Yield the job with ``within: node`` for all roles of more than one device."""
    tight = [
        m for m in job.demand.members if m.within is not Within.NODE and m.count * m.devices > 1
    ]
    if not tight:
        return
    members = tuple(replace(member, within=Within.NODE) for member in job.demand.members)
    levels = Listing(tuple(dict.fromkeys(member.within.value for member in tight)), "and")
    yield (
        replace(job, demand=replace(job.demand, members=members)),
        JobChange(
            kind="level",
            how=message("not-inside", levels=levels),
            changes={f"roles.{member.role}.within": Within.NODE.value for member in tight},
        ),
    )


def _halved(job: QueuedJob, kind: str) -> Iterator[tuple[QueuedJob, JobChange]]:
    """Yield the job with 1/2, 1/4, ... of the devices or instances of its largest role."""
    number = asked(job, kind)
    while number > 1:
        number //= 2
        yield smaller(job, kind, number)


def asked(job: QueuedJob, kind: str) -> int:
    """Return the number of ``devices`` (of each instance) or ``instances`` of the largest role."""
    found: int = getattr(_largest(job)[1], SMALLER[kind])
    return found


def smaller(job: QueuedJob, kind: str, number: int) -> tuple[QueuedJob, JobChange]:
    """Return the job with the given number of ``devices`` or ``instances`` in its largest role."""
    place, largest = _largest(job)
    members = job.demand.members
    fewer = member_with(largest, SMALLER[kind], number)
    if kind == "instances":
        how = message("with-instances", n=number, role=largest.role)
    elif fewer.count > 1:
        how = message("with-devices-each", n=number, role=largest.role)
    else:
        how = message("with-devices", n=number, role=largest.role)
    return (
        replace(
            job,
            demand=replace(job.demand, members=(*members[:place], fewer, *members[place + 1 :])),
        ),
        JobChange(
            kind=kind,
            how=how,
            changes=device_changes(largest, fewer)
            if kind == "devices"
            else {f"roles.{largest.role}.{kind}": number},
            number=number,
        ),
    )


def _largest(job: QueuedJob) -> tuple[int, MemberDemand]:
    """Return the role with the most devices, and its index."""
    members = job.demand.members
    place = max(range(len(members)), key=lambda i: members[i].count * members[i].devices)
    return place, members[place]


def member_with(member: MemberDemand, attribute: str, value: int) -> MemberDemand:
    """Return a role with another number of instances (``count``) or of devices of each."""
    if attribute == "count":
        return replace(member, count=value)
    share = value / member.devices
    # CPUs and memory shrink with the devices; otherwise the smaller job would be refused for them.
    return replace(
        member,
        devices=value,
        cpus=None if member.cpus is None else member.cpus * share,
        memory=None if member.memory is None else int(member.memory * share),
    )


def device_changes(before: MemberDemand, after: MemberDemand) -> dict[str, Any]:
    """Return the fields of the job specification that change with a role's devices."""
    path = f"roles.{before.role}"
    changes: dict[str, Any] = {f"{path}.devices": after.devices}
    if before.cpus is not None:
        changes[f"{path}.cpus"] = after.cpus
    if before.memory is not None:
        changes[f"{path}.memory"] = after.memory
    return changes


def _other_types(job: QueuedJob, types: Sequence[str]) -> Iterator[tuple[QueuedJob, JobChange]]:
    """Yield the job on each device type that it excludes now."""
    members = job.demand.members
    if not all(member.device_types for member in members):
        return
    for device_type in types:
        if any(device_type in member.device_types for member in members):
            continue
        changed = tuple(replace(member, device_types=(device_type,)) for member in members)
        yield (
            replace(job, demand=replace(job.demand, members=changed)),
            JobChange(
                kind="type",
                how=message("on-type", type=device_type),
                changes={f"roles.{m.role}.device_types": [device_type] for m in members},
            ),
        )
