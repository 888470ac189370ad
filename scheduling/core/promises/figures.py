"""Verdicts and causes of an audit, and the figures of one or several audits."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

QUANTILES: Final = (50, 90, 99)


class Verdict(StrEnum):
    """Result for one job."""

    KEPT = "kept"
    EXCEEDED = "exceeded"
    VIOLATED = "violated"


class Cause(StrEnum):
    """Cause of a wait beyond the bound, or kind of a violation.

    ``EARLIER_JOBS``: earlier jobs of the virtual cluster started up to one grace and two rounds
    later each. ``DENIED`` and ``EVICTED`` are violations: a private cluster would have started the
    job, and a guaranteed job was preempted for another virtual cluster.
    """

    EARLIER_JOBS = "earlier-jobs"
    HARDWARE = "hardware"
    ADMIN = "admin"
    CAP = "cap"
    REQUEST = "request"
    DENIED = "denied"
    EVICTED = "evicted"


def figures(
    jobs: Sequence[Mapping[str, Any]], returns: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return counts and quantiles of audited jobs and returned devices."""
    verdicts = Counter(job["verdict"] for job in jobs)
    causes = Counter(cause for job in jobs for cause in job["causes"])
    return {
        "verdicts": {verdict.value: verdicts[verdict] for verdict in Verdict},
        "causes": {cause.value: causes[cause] for cause in Cause if causes[cause]},
        "own_wait_s": quantiles(job["own_wait_s"] for job in jobs),
        "private_wait_s": quantiles(job["private_wait_s"] for job in jobs),
        "returned_devices": sum(one["devices"] for one in returns),
        "return_s": quantiles(one["seconds"] for one in returns),
    }


def quantiles(values: Iterable[float]) -> dict[str, float | None]:
    """Return p50, p90, p99 (nearest rank) and the maximum; None without values."""
    found = sorted(values)
    names = [f"p{q}" for q in QUANTILES] + ["max"]
    if not found:
        return dict.fromkeys(names)
    ranks = [math.ceil(q / 100 * len(found)) - 1 for q in QUANTILES] + [len(found) - 1]
    return {name: round(found[rank], 3) for name, rank in zip(names, ranks, strict=True)}
