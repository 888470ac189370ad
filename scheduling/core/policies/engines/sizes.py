"""Speed of a job at each possible size."""

from math import isfinite

from scheduling.core.policies.engines.room import shape_of
from scheduling.core.policy_interface import PolicyJob, Snapshot, Step


def sizes_of(job: PolicyJob, most: int) -> list[int]:
    """Sizes up to ``most``: the gang alone if it is rigid, else powers of two in its bounds.

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
    """Steps/s on n devices of a type, for the sizes at which the job can run."""
    found = {n: snapshot.model.rate(job, shape_of(snapshot, kind, n)) for n in sizes_of(job, most)}
    return {n: rate for n, rate in found.items() if isfinite(rate) and rate > 0}
