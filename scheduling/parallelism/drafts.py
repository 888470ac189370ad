"""Grids of a job that is not submitted yet, for the preview of a submit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduling.clusters.queries.names import device_type_names
from scheduling.core.jobspec import JobSpec, PlanChoice, ProfileUse
from scheduling.core.round.parallel_plans import best_grids, fingerprint_of, shape_of
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.validation import InvalidJobError, check_draft
from scheduling.parallelism.services import MOST_TYPES
from scheduling.rounds.snapshot.grid_tables import plan_runs, profiled_grids
from tenants.viewers import Viewer

MOST_SHOWN: Final = 24
"""Maximum number of grids in a preview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGrid:
    """The fastest grid on a number of devices of a type.

    Attributes:
        type: device type.
        devices: number of devices.
        stages: number of pipeline stages.
        shape: its plan in short, such as ``2 x (4 data)``.
        samples_per_second: measured or predicted throughput.
        is_measured: whether earlier runs measured it.
    """

    type: str
    devices: int
    stages: int
    shape: str
    samples_per_second: float
    is_measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGrids:
    """Grids that a draft would get.

    Attributes:
        sizes: numbers of devices that the job allows, in ascending order.
        most_stages: maximum number of pipeline stages.
        grids: by type and devices; empty without a profile.
        to_profile: types on which profile jobs would measure the model.
        hidden: number of further grids.
    """

    sizes: tuple[int, ...]
    most_stages: int
    grids: tuple[DraftGrid, ...] = ()
    to_profile: tuple[str, ...] = ()
    hidden: int = 0


def grids_of_draft(viewer: Viewer, spec: JobSpec, *, tenant_id: int) -> DraftGrids | None:
    """Return the grids of a valid document; None without ``parallel``.

    Args:
        viewer: the submitter, who owns the job. Profiles of other people do not count.
        spec: the specification.
        tenant_id: tenant of the virtual cluster.
    """
    parallel = spec.parallel
    if parallel is None or viewer.user_id is None:
        return None
    (role,) = spec.roles.values()
    asked = role.instances * role.devices
    least, most = spec.elastic.bounds(asked) if spec.elastic is not None else (asked, asked)
    sizes = _sizes(least, most, asked)
    limits = DraftGrids(sizes=sizes, most_stages=min(max(sizes), parallel.micro_batches))
    if parallel.plan is PlanChoice.FIXED or parallel.profile is ProfileUse.ONLY:
        return limits
    types = role.device_types or device_type_names(viewer)
    model = (tenant_id, fingerprint_of(spec, viewer.user_id))
    rows = profiled_grids("default", [model]).get(model, ())
    runs = plan_runs("default", [model]).get(model, ()) if rows else ()
    found = [
        DraftGrid(
            type=row.type,
            devices=row.devices,
            stages=row.stages,
            shape=shape_of(row.plan),
            samples_per_second=parallel.batch * row.rate,
            is_measured=row.source == "measured",
        )
        for row in best_grids(rows, runs, _NO_NODES)
        if row.devices in sizes and row.type in types
    ]
    profiled = {row.type for row in rows}
    is_profiled = parallel.profile is ProfileUse.AUTOMATIC
    return DraftGrids(
        sizes=sizes,
        most_stages=limits.most_stages,
        grids=tuple(found[:MOST_SHOWN]),
        to_profile=tuple(t for t in types[:MOST_TYPES] if is_profiled and t not in profiled),
        hidden=max(0, len(found) - MOST_SHOWN),
    )


def grids_of_document(
    viewer: Viewer, document: Mapping[str, Any], submit_context: SubmitContext
) -> DraftGrids | None:
    """Return the grids of a native document; None without ``parallel``, or if it is not valid.

    Args:
        viewer: the submitter.
        document: the document.
        submit_context: reference data of submits.
    """
    if not document.get("parallel"):
        return None
    try:
        draft = check_draft(document=document, viewer=viewer, submit_context=submit_context)
    except InvalidJobError:
        return None
    return grids_of_draft(viewer, draft.spec, tenant_id=draft.virtual_cluster.tenant_id)


_NO_NODES: Final[Mapping[str, int]] = {}


def _sizes(least: int, most: int, asked: int) -> tuple[int, ...]:
    """Return the powers of two within bounds; the requested size if there are none."""
    powers = tuple(1 << k for k in range(most.bit_length()) if least <= 1 << k <= most)
    return powers if asked in powers else tuple(sorted({*powers, asked}))
