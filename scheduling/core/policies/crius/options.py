"""The sizes at which a job can run, with their value: throughput, net of a restart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.core.policies.engines.room import one_type, rates_by_size
from scheduling.core.policy_interface import Alloc, PolicyJob, Snapshot


class Slot(NamedTuple):
    """A number of devices of one type."""

    type: str
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Possible sizes of one job.

    Attributes:
        job: the job.
        values: value of each size at which it can run.
        asked: sizes with the requested number of devices, or with the next smaller possible one,
            the preferred type first.
        held: its present devices; None while it waits.
    """

    job: PolicyJob
    values: Mapping[Slot, float]
    asked: tuple[Slot, ...]
    held: Slot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Valuation:
    """How rates become values.

    Attributes:
        relative: rates count relative to the job's best one at its requested size, so that small
            models do not dominate; otherwise in samples/s, as published.
        horizon: seconds over which a running job's restart must pay; None: restarts are free.
        margin: seconds before a deadline at which a job must be complete; None: deadlines do not
            count.
    """

    relative: bool
    horizon: float | None
    margin: float | None

    def options(self, snapshot: Snapshot, job: PolicyJob, kinds: Sequence[str]) -> JobOptions:
        """Return the sizes at which a job can run on the given types, with their values."""
        able = one_type(job, kinds) if len(job.demand.members) > 1 else kinds
        rates = {
            Slot(kind, n): rate
            for kind in able
            if not job.types or kind in job.types
            for n, rate in rates_by_size(snapshot, job, kind, snapshot.pool.room(kind)).items()
            if self._is_in_time(snapshot, job, rate)
        }
        held = held_slot(job.alloc)
        unit = self._unit(job, rates)
        values = {slot: rate / unit for slot, rate in rates.items()}
        if held is not None:
            share = self._share(snapshot, job, rates.get(held, 0.0))
            values = {s: v if s == held else v * share for s, v in values.items()}
            values.setdefault(held, 0.0)
        sizes = sorted(
            {slot.devices for slot in rates}, key=lambda n: (n > job.gang, abs(n - job.gang))
        )
        asked = [slot for slot in rates if slot.devices in sizes[:1]]
        rank = {kind: place for place, kind in enumerate(job.types)}
        asked.sort(key=lambda s: (rank.get(s.type, len(rank)), -values[s], s.type))
        return JobOptions(job=job, values=values, asked=tuple(asked), held=held)

    def _is_in_time(self, snapshot: Snapshot, job: PolicyJob, rate: float) -> bool:
        if self.margin is None or job.terms.deadline is None or job.facts.steps_left is None:
            return True
        end = snapshot.now + self.margin + job.facts.steps_left / rate
        return end <= job.terms.deadline

    def _unit(self, job: PolicyJob, rates: Mapping[Slot, float]) -> float:
        """Return the rate that has the value 1."""
        if self.relative:
            asked = [rate for slot, rate in rates.items() if slot.devices == job.gang]
            return max(asked or rates.values(), default=1.0)
        plans = (row.plan.get("batch") for row in job.grids)
        batch = next((found for found in plans if found), job.terms.batch)
        return 1.0 / batch if batch else 1.0

    def _share(self, snapshot: Snapshot, job: PolicyJob, rate: float) -> float:
        """Return the part of the horizon that remains after a restart."""
        if self.horizon is None:
            return 1.0
        horizon = self.horizon
        if job.facts.steps_left is not None and rate > 0.0:
            horizon = min(horizon, job.facts.steps_left / rate)
        restart = snapshot.model.restart_seconds(job)
        return horizon / (horizon + restart) if horizon > 0.0 else 0.0


def held_slot(alloc: Alloc | None) -> Slot | None:
    """Return the devices of an allocation of one type; None for none or a mix."""
    kinds = {part.type for part in alloc.parts} if alloc is not None else set()
    if alloc is None or len(kinds) != 1 or None in kinds or alloc.share is not None:
        return None
    return Slot(str(next(iter(kinds))), alloc.devices)
