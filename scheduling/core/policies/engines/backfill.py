"""Backfill: jobs may pass a head that does not fit, if no reservation is delayed.

EASY (Lifka, JSSPP '95) reserves for the head of the queue alone, conservative backfill (Mu'alem
and Feitelson, TPDS '01) for every job that waits. Both are one walk with a different number of
reservations.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from scheduling.core.policies.engines.availability import Calendar


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A gang that waits.

    Attributes:
        n: devices.
        types: usable types, the best first.
        seconds: its estimated run time by its owner, inf if unknown.
    """

    id: int
    n: int
    types: tuple[str, ...]
    seconds: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reservation: from when on, and of which type."""

    start: float
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillResult:
    """Result of a walk.

    Attributes:
        starts: type by job, for those that start now, in order.
        holds: reservations of jobs that wait, in order.
    """

    starts: Mapping[int, str]
    holds: Mapping[int, Hold]


def backfill(
    queue: Iterable[Waiting],
    calendars: Mapping[str, Calendar],
    *,
    now: float,
    reservations: int,
) -> BackfillResult:
    """Walk the queue in order and start all jobs that delay no reservation.

    Args:
        queue: waiting jobs, the head first.
        calendars: one per type; they are modified.
        now: the time of the round.
        reservations: number of waiting jobs of each type that get one: 1 for EASY, the number of
            jobs for conservative backfill. Those beyond wait without.

    Returns:
        Starts and reservations. A job that can never fit has none and never starts.
    """
    starts: dict[int, str] = {}
    holds: dict[int, Hold] = {}
    held = dict.fromkeys(calendars, 0)
    for job in queue:
        known = [kind for kind in job.types if kind in calendars]
        fitting = (
            kind for kind in known if calendars[kind].least_free(now, now + job.seconds) >= job.n
        )
        kind = next(fitting, None)
        if kind is not None:
            calendars[kind].reserve(start=now, seconds=job.seconds, n=job.n)
            starts[job.id] = kind
            continue
        # A reservation on the type where it can start first, the better type on equal terms.
        options = [
            (calendars[kind].earliest(job.n, job.seconds), rank, kind)
            for rank, kind in enumerate(known)
            if held[kind] < reservations
        ]
        if not options:
            continue
        start, _, kind = min(options)
        if start < inf:
            calendars[kind].reserve(start=start, seconds=job.seconds, n=job.n)
            holds[job.id] = Hold(start=start, type=kind)
            held[kind] += 1
    return BackfillResult(starts=starts, holds=holds)
