"""What is left to give while a plan is made, and which allocation a gang gets from it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil

from scheduling.core.jobspec import JobClass
from scheduling.core.policies.base import rigid_alloc
from scheduling.core.policy_interface import Alloc, JobPhase, Part, PolicyJob, Shape, Snapshot


def present(snapshot: Snapshot) -> list[PolicyJob]:
    """The jobs that can be given something, by id: all but those that are leaving."""
    return sorted(
        (job for job in snapshot.jobs if job.phase is not JobPhase.LEAVING),
        key=lambda job: job.id,
    )


def borrows(job: PolicyJob) -> bool:
    """Whether a job lives on what nobody else has a claim to."""
    return job.job_class is JobClass.OPPORTUNISTIC


def is_pinned(job: PolicyJob) -> bool:
    """Whether a job runs and must keep what it has."""
    return job.phase is JobPhase.RUNNING and not job.terms.preemptible


def one_type(job: PolicyJob, kinds: Iterable[str]) -> list[str]:
    """Those of ``kinds`` on which a whole gang can be, the ones it names first coming first."""
    able = [
        kind
        for kind in kinds
        if all(not m.device_types or kind in m.device_types for m in job.demand.members)
    ]
    rank = {kind: position for position, kind in enumerate(job.types)}
    return sorted(able, key=lambda kind: (rank.get(kind, len(rank)), kind))


def on_type(job: PolicyJob, kind: str) -> Alloc:
    """The whole gang on one type; what it holds already if that is the same."""
    held = job.alloc
    whole = held is not None and held.share is None and held.devices == job.gang
    if held is not None and whole and all(part.type == kind for part in held.parts):
        return held
    asked = rigid_alloc(job)
    return replace(asked, parts=tuple(replace(part, type=kind) for part in asked.parts))


def shape_of(snapshot: Snapshot, kind: str, devices: int) -> Shape:
    """So many devices of a type on as few nodes as will hold them."""
    info = snapshot.pool.types.get(kind)
    per_node = info.node_devices if info else devices
    return Shape(type=kind, nodes=max(1, ceil(devices / max(1, per_node))), devices=devices)


class FreeDevices:
    """Free devices by type. Guaranteed jobs have the guarantee alone, others what is lent too."""

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
        """Devices of a type that ``job`` may have; None: any guaranteed job."""
        lent = self._lent.get(kind, 0) if job is not None and borrows(job) else 0
        return self._own.get(kind, 0) + lent

    def free_for(self, job: PolicyJob) -> dict[str, int]:
        """Devices that ``job`` may have, by type, of the types that will do for it."""
        allowed = job.types or tuple(self._kinds)
        return {kind: self.free(kind, job) for kind in allowed if kind in self._kinds}

    def fit(self, job: PolicyJob) -> Alloc | None:
        """What the whole gang gets: what it holds if that is still possible, else what fits.

        Types are tried in the order in which the job names them, those of a job that names none
        by how much is free.
        """
        held = job.alloc
        if held is not None and held.share is None and held.devices == job.gang:
            kept = self.fitting(job, held)
            if kept is not None:
                return kept
        return self.fitting(job, rigid_alloc(job))

    def fitting(self, job: PolicyJob, alloc: Alloc) -> Alloc | None:
        """``alloc`` with all types filled in, None if it does not fit."""
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
        """Take ``alloc`` out; who borrows takes what is lent before what is guaranteed."""
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
        """Put what ``job`` has taken back; who borrows gives guaranteed devices back first."""
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
        """Take out what must not be touched, and return it."""
        pinned = {job.id: job.alloc or rigid_alloc(job) for job in jobs if is_pinned(job)}
        for job in jobs:
            if job.id in pinned:
                self.take(job, pinned[job.id])
        return pinned

    def _choices(self, job: PolicyJob, alloc: Alloc) -> Iterator[tuple[str, ...]]:
        """For each part the types that will do, none meaning any; what is held stays put."""
        if job.alloc is not None and alloc is job.alloc:
            for part in alloc.parts:
                yield () if part.type is None else (part.type,)
            return
        for member in job.demand.members:
            yield member.device_types
