"""Time sharing: rounds that give each combination its fraction of time in the long run.

Gavel (OSDI '20, section 5): a combination's priority on a type is its target fraction over its
received fraction, and rounds are filled in the order of the priorities.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Combination = tuple[int, ...]

_NEVER_SERVED = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """Target time of one combination of jobs on one type.

    Attributes:
        jobs: one job, or two that share devices.
        type: the type of the devices.
        share: the fraction of time, above 0.
        received: seconds on this type since the fractions were set.
        deficit: seconds that it was owed when the fractions were set.
        n: devices while it runs.
    """

    jobs: Combination
    type: str
    share: float
    received: float
    deficit: float
    n: int


def choose_round(
    claims: Sequence[TimeShare],
    *,
    free: Mapping[str, int],
    totals: Mapping[str, float],
    taken: Callable[[int], bool] = lambda _job: False,
) -> list[TimeShare]:
    """Return the claims that are served in this round, the most urgent first.

    Args:
        claims: all of them; a claim without a share is never served.
        free: devices by type.
        totals: seconds received by all combinations together by type.
        taken: jobs that run already for another reason.

    Returns:
        Claims that fit together, each job in at most one of them. A claim that does not fit is
        skipped, so that no device is idle that has a claim.
    """
    left = dict(free)
    chosen: list[TimeShare] = []
    busy: set[int] = set()

    def urgency(claim: TimeShare) -> tuple[float, float, float, Combination, str]:
        total = totals.get(claim.type, 0.0)
        had = claim.received / total if total > 0 else 0.0
        priority = claim.share / had if had > 0 else claim.share * _NEVER_SERVED
        return (-priority, -claim.deficit, -claim.share, claim.jobs, claim.type)

    for claim in sorted((claim for claim in claims if claim.share > 0), key=urgency):
        if claim.n > left.get(claim.type, 0):
            continue
        if any(job in busy or taken(job) for job in claim.jobs):
            continue
        left[claim.type] -= claim.n
        busy.update(claim.jobs)
        chosen.append(claim)
    return chosen
