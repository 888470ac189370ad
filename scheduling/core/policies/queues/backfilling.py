"""First in, first out with reservations: EASY and conservative backfill.

EASY: Lifka, JSSPP '95; conservative: Mu'alem and Feitelson, IEEE TPDS 2001. Unlike the backfill of
``fifo``, jobs may not pass if they would delay a reservation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from scheduling.core.messages import message, sentence
from scheduling.core.policies.base import Need, rigid_alloc
from scheduling.core.policies.engines.backfill import Calendar, Waiting, backfill
from scheduling.core.policies.engines.room import FreeDevices, borrows, on_type, present
from scheduling.core.policies.parameters import parameter
from scheduling.core.policy_interface import (
    Alloc,
    JobPhase,
    Plan,
    PolicyJob,
    Reservation,
    Snapshot,
)
from tessera.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Runs jobs by priority and submit time; shorter jobs may start early (backfill).

    Attributes:
        reservations: the jobs whose start must not be delayed.
        depth: maximum number of jobs with a reservation, with ``all``.
        padding: factor on run time estimates.
    """

    reservations: str = parameter("head", sentence("param-protected"), choices=("head", "all"))
    depth: int = parameter(200, sentence("param-reservations"), low=1, high=10_000)
    padding: float = parameter(1.0, sentence("param-estimate-factor"), low=1.0, high=10.0)

    name: ClassVar[str] = "backfill"
    aliases: ClassVar[tuple[str, ...]] = ("easy",)
    summary: ClassVar[str] = sentence("summary-backfill")
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RUNTIME})
    stateless: ClassVar[bool] = True

    def plan(self, snapshot: Snapshot, state: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        """Retain running jobs, start those that may start, and store reservations."""
        waiting = sorted(
            (job for job in snapshot.jobs if job.phase is JobPhase.QUEUED),
            key=lambda job: (borrows(job), -job.priority, job.submitted, job.id),
        )
        return self.plan_in_order(snapshot, waiting), state

    def plan_in_order(self, snapshot: Snapshot, waiting: list[PolicyJob]) -> Plan:
        """Plan the waiting jobs in the given order."""
        running = [job for job in present(snapshot) if job.phase is JobPhase.RUNNING]
        room = FreeDevices(snapshot)
        allocs: dict[int, Alloc] = {}
        for job in running:
            allocs[job.id] = job.alloc or rigid_alloc(job)
            room.take(job, allocs[job.id])
        starts, holds = self._walk(snapshot, waiting, room)
        return Plan(
            allocs={**allocs, **starts},
            order=tuple(starts),
            offer=True,
            hold=holds,
            why={
                job.id: sentence(
                    _reserved(holds[job.id].time - snapshot.now)
                    if job.id in holds
                    else message("would-delay")
                )
                for job in waiting
                if job.id not in starts
            },
        )

    def _walk(
        self, snapshot: Snapshot, waiting: list[PolicyJob], room: FreeDevices
    ) -> tuple[dict[int, Alloc], dict[int, Reservation]]:
        """Find starts and reservations; borrowed devices are not in the calendars."""
        calendars = {kind: self._calendar(snapshot, kind, room.free(kind)) for kind in room.kinds}
        typed = [job for job in waiting if not borrows(job) and _is_one_piece(job)]
        found = backfill(
            [self._waiting(job, room) for job in typed],
            calendars,
            now=snapshot.now,
            reservations=1 if self.reservations == "head" else self.depth,
        )
        starts: dict[int, Alloc] = {}
        held = bool(found.holds)
        for job in waiting:
            chosen = found.starts.get(job.id)
            # Allocations without a calendar start only while no job waits with a reservation.
            unlisted = borrows(job) or (not held and not _is_one_piece(job))
            if chosen is None and not unlisted:
                continue
            alloc = room.fit(job) if chosen is None else on_type(job, chosen)
            if alloc is not None and room.fitting(job, alloc) is not None:
                room.take(job, alloc)
                starts[job.id] = alloc
        holds = {
            job.id: Reservation(time=hold.start, n=job.gang, type=hold.type)
            for job in typed
            if (hold := found.holds.get(job.id)) is not None
        }
        return starts, holds

    def _calendar(self, snapshot: Snapshot, kind: str, free: int) -> Calendar:
        returns: list[tuple[float, int]] = []
        leaving = 0
        for job in sorted(snapshot.jobs, key=lambda job: job.id):
            if job.phase is JobPhase.QUEUED or borrows(job):
                continue
            n = sum(part.n for part in (job.alloc or rigid_alloc(job)).parts if part.type == kind)
            if job.phase is JobPhase.LEAVING:
                leaving += n
                returns.append((snapshot.now + snapshot.round_seconds, n))
            elif n:
                returns.append((snapshot.now + self._left(job, snapshot), n))
        return Calendar(
            now=snapshot.now,
            free=max(0, free - leaving),
            returns=returns,
            overrun=snapshot.round_seconds,
        )

    def _waiting(self, job: PolicyJob, room: FreeDevices) -> Waiting:
        seconds = inf if job.terms.estimate is None else job.terms.estimate * self.padding
        types = job.types_at(job.gang) or tuple(room.kinds)
        return Waiting(id=job.id, n=job.gang, types=types, seconds=seconds)

    def _left(self, job: PolicyJob, snapshot: Snapshot) -> float:
        if job.terms.estimate is None:
            return inf
        ran = job.facts.executed or snapshot.now - job.since
        return max(0.0, job.terms.estimate * self.padding - ran)


def _is_one_piece(job: PolicyJob) -> bool:
    """Return whether one type can serve a complete gang."""
    return len({member.device_types for member in job.demand.members}) == 1


def _reserved(seconds: float) -> Message:
    if seconds <= 0:
        return message("reservation-now")
    return message("reservation-in", minutes=max(1, round(seconds / 60)))
