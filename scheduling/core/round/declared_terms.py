"""Declarations of a job's owner other than the gang, converted for policies."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scheduling.core.jobspec import Demand, ElasticMode, JobSpec
from scheduling.core.lifecycle import FailureClass
from scheduling.core.policy_interface import PLAIN_TERMS, Kind, Step, Terms
from scheduling.core.round.gang_sizes import scale_of

APPLICATION_LABEL: Final = "application"
TIER_LABEL: Final = "tier"


def terms_document(spec: JobSpec, devices: int) -> dict[str, Any]:
    """Build the compact document of a job's terms, without defaults.

    Args:
        spec: the job.
        devices: number of requested devices.
    """
    found = {
        "elastic": list(spec.elastic.bounds(devices)) if spec.elastic else None,
        "hybrid": True if _is_hybrid(spec) else None,
        "batch": _batches(spec),
        "workers": spec.elastic.logical_workers if spec.elastic else None,
        "steps": spec.elastic.total_steps if spec.elastic else None,
        "executors": spec.elastic.executors if spec.elastic else None,
        "bits": spec.elastic.determinism if spec.elastic else None,
        "deadline": spec.deadline.timestamp() if spec.deadline else None,
        "estimate": float(spec.max_duration) if spec.max_duration else None,
        "application": spec.labels.get(APPLICATION_LABEL),
        "tier": spec.labels.get(TIER_LABEL),
        # A job that may not be retried after a preemption must not be preempted by choice.
        "pinned": spec.retries.of(FailureClass.PREEMPTED) == 0 or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _is_hybrid(spec: JobSpec) -> bool:
    return spec.elastic is not None and spec.elastic.mode is ElasticMode.HYBRID


def _batches(spec: JobSpec) -> list[int] | None:
    """Return the initial, the maximum, and the maximum per-device batch size."""
    elastic = spec.elastic
    if elastic is None or elastic.initial_batch is None or elastic.max_batch is None:
        return None
    largest = elastic.max_batch
    return [elastic.initial_batch, largest, elastic.max_local_batch or largest]


def read_terms(document: Mapping[str, Any], demand: Demand, tenant: int) -> Terms:
    """Parse the output of ``terms_document``."""
    bounds, batches = document.get("elastic"), document.get("batch") or (None, None, None)
    scale = scale_of(demand, *bounds) if bounds else None
    if scale is not None and document.get("hybrid"):
        scale = replace(scale, step=Step.POWER_OF_TWO)  # widths of stages are powers of two
    if not document:
        return PLAIN_TERMS if not tenant else Terms(tenant=tenant)
    return Terms(
        tenant=tenant,
        kind=_kind(bounds, batches[0]),
        scale=scale,
        deadline=document.get("deadline"),
        estimate=document.get("estimate"),
        application=document.get("application"),
        batch=batches[0],
        max_batch=batches[1],
        max_local_batch=batches[2],
        total_steps=document.get("steps"),
        logical_workers=document.get("workers"),
        executors=document.get("executors", 1),
        tier=document.get("tier", ""),
        preemptible=not document.get("pinned", False),
    )


def _kind(bounds: object, batch: object) -> Kind:
    if not bounds:
        return Kind.RIGID
    return Kind.ELASTIC if batch is None else Kind.ADAPTIVE
