"""Speed of a job on other devices than requested: by its performance model, else proportional."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduling.core.jobspec import Demand
from scheduling.core.performance.live import LiveModel
from scheduling.core.policy_interface import JobPhase, PolicyJob, Shape
from scheduling.core.values import JobFacts, QueuedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShape:
    """Devices of a running job.

    Attributes:
        types: device types, in ascending order.
        nodes: number of nodes.
        devices: number of devices.
    """

    types: tuple[str, ...]
    nodes: int
    devices: int


class Speedup(Protocol):
    """Speed of a job relative to its requested size."""

    def __call__(self, job: QueuedJob, asked: Demand, held: HeldShape) -> float:
        """Return the factor for ``job`` with the requested gang ``asked`` on ``held``."""
        ...


def proportional(job: QueuedJob, asked: Demand, held: HeldShape) -> float:
    """Return twice the speed for twice the devices."""
    return held.devices / max(asked.devices, 1)


class ModelSpeedup:
    """Speeds by the performance model that policies use; proportional without reports of a job.

    Args:
        known: job facts by job ID.
        jobs: these jobs as queued, in the order of IDs.
    """

    def __init__(self, jobs: Mapping[int, QueuedJob], known: Mapping[int, JobFacts]) -> None:
        self._jobs = {
            job_id: _policy_job(jobs[job_id], facts)
            for job_id, facts in known.items()
            if job_id in jobs
        }
        self._model = LiveModel(tuple(self._jobs.values()), known)
        self._rates: dict[tuple[int, Shape], float] = {}

    def __call__(self, job: QueuedJob, asked: Demand, held: HeldShape) -> float:
        """Return the speed on ``held`` over the speed on the requested number of its devices."""
        known = self._jobs.get(job.id)
        wanted = max(asked.devices, 1)
        if known is None or len(held.types) != 1 or not self._model.profiled(known):
            return proportional(job, asked, held)
        nodes = max(1, round(held.nodes * wanted / max(held.devices, 1)))
        (kind,) = held.types
        usual = self._rate(known, Shape(type=kind, nodes=nodes, devices=wanted))
        rate = self._rate(known, Shape(type=kind, nodes=held.nodes, devices=held.devices))
        if usual <= 0.0 or rate <= 0.0:
            return proportional(job, asked, held)
        return rate / usual

    def _rate(self, job: PolicyJob, shape: Shape) -> float:
        if held := self._rates.get((job.id, shape)):
            return held
        rate = self._rates[job.id, shape] = self._model.rate(job, shape)
        return rate


def _policy_job(job: QueuedJob, known: JobFacts) -> PolicyJob:
    return PolicyJob(
        id=job.id,
        owner=job.owner,
        priority=job.priority,
        job_class=job.job_class,
        submitted=job.submitted,
        demand=known.asked or job.demand,
        phase=JobPhase.QUEUED,
        since=job.submitted,
        terms=known.terms,
        facts=known.facts,
    )
