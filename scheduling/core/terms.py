"""What the owner of a job has declared besides its gang, from the specification to policies."""

from collections.abc import Mapping
from typing import Any, Final

from scheduling.core.jobspec import Demand, JobSpec
from scheduling.core.lifecycle import FailureClass
from scheduling.core.planning import PLAIN_TERMS, Kind, Terms
from scheduling.core.sizing import scale_of

APPLICATION_LABEL: Final = "application"
TIER_LABEL: Final = "tier"


def terms_document(spec: JobSpec, devices: int) -> dict[str, Any]:
    """The compact document of a job's terms; what holds by default is left out.

    Args:
        spec: the job.
        devices: that it asks for.
    """
    found = {
        "elastic": list(spec.elastic.bounds(devices)) if spec.elastic else None,
        "deadline": spec.deadline.timestamp() if spec.deadline else None,
        "estimate": float(spec.max_duration) if spec.max_duration else None,
        "application": spec.labels.get(APPLICATION_LABEL),
        "tier": spec.labels.get(TIER_LABEL),
        # Who may not be tried again after a preemption must not be preempted by choice.
        "pinned": spec.retries.of(FailureClass.PREEMPTED) == 0 or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def read_terms(document: Mapping[str, Any], demand: Demand, tenant: int) -> Terms:
    """The terms in what ``terms_document`` has made."""
    bounds = document.get("elastic")
    scale = scale_of(demand, *bounds) if bounds else None
    if not document:
        return PLAIN_TERMS if not tenant else Terms(tenant=tenant)
    return Terms(
        tenant=tenant,
        kind=Kind.ELASTIC if scale is not None else Kind.RIGID,
        scale=scale,
        deadline=document.get("deadline"),
        estimate=document.get("estimate"),
        application=document.get("application"),
        tier=document.get("tier", ""),
        preemptible=not document.get("pinned", False),
    )
