"""Device-hours as comma-separated values, for the page and for the API."""

import csv
from collections.abc import Mapping
from io import StringIO
from typing import Any, Final

from django.http import HttpResponse
from rest_framework.renderers import BaseRenderer, JSONRenderer

from scheduling.usage.queries.usage import Hours, Usage, UsageLine
from tenants.audit import record_once
from tenants.viewers import Viewer

MEDIA_TYPE: Final = "text/csv"
HEAD: Final = (
    "since", "until", "name", "tenant", "job", "user", "virtual_cluster", "unit",
    "guaranteed_hours", "borrowed_hours", "lost_preempted_hours", "lost_failed_hours",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class CsvRenderer(BaseRenderer):
    """Accept requests for CSV; problems stay JSON."""

    media_type = MEDIA_TYPE
    format = "csv"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Render a problem; the file itself is not rendered by the framework."""
        rendered: bytes = JSONRenderer().render(data)
        return rendered


def csv_answer(viewer: Viewer, found: Usage, name: str) -> HttpResponse:
    """Return the lines of a period as a file: one row per line and device type.

    The audit records each export with its person.
    """
    period = {"since": found.since, "until": found.until, "by": found.by}
    record_once(
        actor=viewer,
        action="usage.export",
        object_type="usage",
        object_id=name[:64],
        object_name=name,
        after=period,
    )
    text = StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(HEAD)
    for line in found.lines:
        for unit, hours in (("gpu", line.gpu), ("slot", line.slot)):
            if hours.held or hours.lost:
                writer.writerow(_cells(found, line, unit, hours))
    return HttpResponse(
        text.getvalue(),
        content_type=f"{MEDIA_TYPE}; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "private, no-store",
        },
    )


def _cells(found: Usage, line: UsageLine, unit: str, hours: Hours) -> list[str]:
    numbers = (hours.guaranteed, hours.borrowed, hours.lost_preempted, hours.lost_failed)
    texts = (
        str(found.since),
        str(found.until),
        line.name,
        line.tenant,
        "" if line.job is None else str(line.job),
        line.user,
        line.virtual_cluster,
        unit,
    )
    return [*map(_plain, texts), *(f"{number:.4f}" for number in numbers)]


def _plain(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
