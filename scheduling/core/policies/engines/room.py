"""Free devices while a plan is built, the possible sizes of a gang, and its allocation."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil, isfinite

from scheduling.core.device_types import is_display
from scheduling.core.jobspec import JobClass, MemberDemand
from scheduling.core.policies.base import rigid_alloc
from scheduling.core.policy_interface import (
    Alloc,
    JobPhase,
    Part,
    PolicyJob,
    Shape,
    Snapshot,
    Step,
    grid_types,
)


def present(snapshot: Snapshot) -> list[PolicyJob]:
    """Return the jobs that can get devices, by ID: all except leaving ones."""
    return sorted(
        (job for job in snapshot.jobs if job.phase is not JobPhase.LEAVING),
        key=lambda job: job.id,
    )


def borrows(job: PolicyJob) -> bool:
    """Return whether a job uses devices outside its guarantee."""
    return job.job_class is JobClass.OPPORTUNISTIC


def is_pinned(job: PolicyJob) -> bool:
    """Return whether a job runs and must retain its devices."""
    return job.phase is JobPhase.RUNNING and not job.terms.preemptible


def one_type(job: PolicyJob, kinds: Iterable[str]) -> list[str]:
    """Select the ``kinds`` that can contain the complete gang, in the job's order."""
    able = [
        kind
        for kind in kinds
        if all(_accepts(member, kind) for member in job.demand.members)
        and (not job.grids or kind in job.types_at(job.gang))
    ]
    rank = {kind: position for position, kind in enumerate(job.types)}
    return sorted(able, key=lambda kind: (rank.get(kind, len(rank)), kind))


def _accepts(member: MemberDemand, kind: str) -> bool:
    return kind in member.device_types if member.device_types else not is_display(kind)


def on_type(job: PolicyJob, kind: str) -> Alloc:
    """Allocate the complete gang on one type; return the current allocation if equal."""
    held = job.alloc
    whole = held is not None and held.share is None and held.devices == job.gang
    if held is not None and whole and all(part.type == kind for part in held.parts):
        return held
    asked = rigid_alloc(job)
    return replace(asked, parts=tuple(replace(part, type=kind) for part in asked.parts))


def shape_of(snapshot: Snapshot, kind: str, devices: int) -> Shape:
    """Return the shape of devices of a type on as few nodes as possible."""
    info = snapshot.pool.types.get(kind)
    per_node = info.node_devices if info else devices
    return Shape(type=kind, nodes=max(1, ceil(devices / max(1, per_node))), devices=devices)


class FreeDevices:
    """Free devices by type: the guarantee for guaranteed jobs, and lent devices for others."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._own = dict(snapshot.pool.capacity)
        self._lent = dict(snapshot.pool.borrow)
        self._kinds = sorted({*self._own, *self._lent})
        self._own_borrowed = dict.fromkeys(self._kinds, 0)

    @property
    def kinds(self) -> list[str]:
        """All types, by name."""
        return self._kinds

    def free(self, kind: str, job: PolicyJob | None = None) -> int:
        """Return the devices of a type that ``job`` may use; None means any guaranteed job."""
        lent = self._lent.get(kind, 0) if job is not None and borrows(job) else 0
        return self._own.get(kind, 0) + lent

    def free_for(self, job: PolicyJob, devices: int | None = None) -> dict[str, int]:
        """Return the devices available to ``job``, by type usable at a size; None for any size."""
        types = job.types_at(devices) if devices is not None else job.types
        allowed = types or grid_types(job.grids) or tuple(self._kinds)
        return {kind: self.free(kind, job) for kind in allowed if kind in self._kinds}

    def fit(self, job: PolicyJob) -> Alloc | None:
        """Allocate the complete gang: the current allocation if possible, else one that fits.

        Types are tried in the order of the job or, if it lists none, by the number of free
        devices.
        """
        held = job.alloc
        if held is not None and held.share is None and held.devices == job.gang:
            kept = self.fitting(job, held)
            if kept is not None:
                return kept
        return self.fitting(job, rigid_alloc(job))

    def fitting(self, job: PolicyJob, alloc: Alloc) -> Alloc | None:
        """Fill in all types of ``alloc``; return None if it does not fit."""
        left = {kind: self.free(kind, job) for kind in self._kinds}
        parts: list[Part] = []
        for part, kinds in zip(alloc.parts, self._choices(job, alloc), strict=True):
            options = kinds or sorted(left, key=lambda kind: (-left[kind], kind))
            kind = next((kind for kind in options if left.get(kind, 0) >= part.n), None)
            if kind is None:
                return None
            left[kind] -= part.n
            parts.append(part if part.type == kind else replace(part, type=kind))
        return alloc if tuple(parts) == alloc.parts else replace(alloc, parts=tuple(parts))

    def take(self, job: PolicyJob, alloc: Alloc) -> None:
        """Subtract ``alloc``; a job that borrows takes lent devices before guaranteed ones."""
        for part in alloc.parts:
            if part.type is None:
                continue
            lent = max(0, self._lent.get(part.type, 0)) if borrows(job) else 0
            self._lent[part.type] = self._lent.get(part.type, 0) - min(lent, part.n)
            self._own[part.type] = self._own.get(part.type, 0) - max(0, part.n - lent)
            if borrows(job):
                before = self._own_borrowed.get(part.type, 0)
                self._own_borrowed[part.type] = before + max(0, part.n - lent)

    def give_back(self, job: PolicyJob, alloc: Alloc) -> None:
        """Return the devices of ``job``; a job that borrows returns guaranteed devices first."""
        for part in alloc.parts:
            if part.type is None:
                continue
            own = part.n
            if borrows(job):
                own = min(own, self._own_borrowed.get(part.type, 0))
                self._own_borrowed[part.type] = self._own_borrowed.get(part.type, 0) - own
            self._own[part.type] = self._own.get(part.type, 0) + own
            self._lent[part.type] = self._lent.get(part.type, 0) + part.n - own

    def take_pinned(self, jobs: list[PolicyJob]) -> dict[int, Alloc]:
        """Subtract the pinned allocations, and return them."""
        pinned = {job.id: job.alloc or rigid_alloc(job) for job in jobs if is_pinned(job)}
        for job in jobs:
            if job.id in pinned:
                self.take(job, pinned[job.id])
        return pinned

    def _choices(self, job: PolicyJob, alloc: Alloc) -> Iterator[tuple[str, ...]]:
        """Yield the usable types of each part, empty for any; current devices are retained."""
        if job.alloc is not None and alloc is job.alloc:
            for part in alloc.parts:
                yield () if part.type is None else (part.type,)
            return
        for member in job.demand.members:
            yield job.types_at(alloc.devices) if job.grids else member.device_types


def sizes_of(job: PolicyJob, most: int) -> list[int]:
    """Return sizes up to ``most``: the gang if it is rigid, else powers of two in its bounds.

    Buddy cells fit powers of two without fragments (ElasticFlow, job placement); the gang's own
    size and the smallest one are always among them.
    """
    scale = job.terms.scale
    if scale is None or len(job.demand.members) > 1:
        return [job.gang] if job.gang <= most else []
    powers = {1 << bit for bit in range(scale.maximum.bit_length())}
    if scale.step is Step.MULTIPLE:
        powers = {power * scale.quantum for power in powers}
    wanted = sorted(powers | {job.gang, scale.minimum})
    return [n for n in wanted if n <= most and job.allows(n)]


def rates_by_size(snapshot: Snapshot, job: PolicyJob, kind: str, most: int) -> dict[int, float]:
    """Return steps/s on n devices of a type, for the sizes at which the job can run."""
    found = {n: snapshot.model.rate(job, shape_of(snapshot, kind, n)) for n in sizes_of(job, most)}
    return {n: rate for n, rate in found.items() if isfinite(rate) and rate > 0}
