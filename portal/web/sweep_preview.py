"""The preview of a sweep: the fields of the form, and the plan of all its jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext as _

from portal.api.documents import ground_for, read_document, round_config
from portal.web.submit_check import Fault
from portal.web.submit_panel import Panel, panel_of_draft, panel_of_faults
from portal.web.viewing import PageRequest
from scheduling.compat.result import ImportRefusedError
from scheduling.core.sweeps import Grid, GridError, read_grid
from scheduling.sweeps.services import plan_sweep
from tenants.errors import DomainError, InvalidError


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSweep:
    """A sweep as it was typed; ``max_parallel`` None: no limit."""

    document: Mapping[str, Any]
    grid: Grid
    max_parallel: int | None


def read_sweep(text: str, grid: str, most: str) -> TypedSweep:
    """Read the three fields of the form.

    Raises:
        InvalidError: one of them is not valid.
    """
    try:
        document: Any = read_document(text.replace("\r\n", "\n"))
        wanted = read_grid(grid)
    except ImportRefusedError as error:
        raise InvalidError(
            str(error), field="yaml", value="", remedy=_("Correct the YAML.")
        ) from None
    except GridError as error:
        raise InvalidError(str(error), field="parameters", value="", remedy=error.remedy) from None
    if not isinstance(document, dict):
        raise InvalidError(
            "This is not a valid job.", field="yaml", value="", remedy=_("Enter a job in YAML.")
        )
    most = most.strip()
    if most and not (most.isascii() and most.isdecimal() and len(most) < 5):
        raise InvalidError(
            "This is not a valid number of jobs.",
            field="max_parallel",
            value=most[:20],
            remedy="Use 1 or more, or leave it empty for no limit.",
        )
    return TypedSweep(document=document, grid=wanted, max_parallel=int(most) if most else None)


def preview_sweep(request: PageRequest, typed: TypedSweep) -> Panel:
    """Plan all jobs of a sweep together.

    Raises:
        DomainError: it cannot be submitted as it is.
    """
    found = plan_sweep(
        viewer=request.viewer,
        document=typed.document,
        grid=typed.grid,
        max_parallel=typed.max_parallel,
        ground=ground_for(request.viewer),
        config=round_config(),
        now=request.now,
    )
    panel = panel_of_draft(found.draft, found.plan, found.jobs)
    most = typed.max_parallel
    if most is None or most >= found.jobs:
        return panel
    note = _("At most %(most)s of %(whole)s jobs run at a time. The others are on hold.") % {
        "most": most,
        "whole": found.jobs,
    }
    return replace(panel, warnings=(note, *panel.warnings))


def panel_of_errors(error: DomainError) -> Panel:
    """The panel for a sweep that cannot be submitted."""
    return panel_of_faults(
        [
            Fault(
                field=fault.field,
                path=fault.field,
                message=fault.message,
                remedy=fault.remedy,
                use="",
                line=None,
            )
            for fault in error.errors
        ]
    )
