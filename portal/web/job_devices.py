"""The devices of a job: a part that is fetched after the page."""

from typing import Final

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from portal.i18n import gettext_lazy
from portal.web.components.devicecharts import device_rows
from portal.web.viewing import PageRequest, page
from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.jobs.queries.jobs import visible_job
from workers.device_curves import USUAL_RANKS, device_curves

MOST_RANK: Final = 100_000
SPANS: Final = {
    60: gettext_lazy("a minute"),
    600: gettext_lazy("ten minutes"),
    3600: gettext_lazy("an hour"),
}


@require_safe
@page
def devices(request: PageRequest, job_id: int) -> HttpResponse:
    """Load and memory of the devices of some ranks, over the job's life."""
    job = visible_job(request.viewer, job_id)
    asked = request.http.GET.get("first", "")
    first = min(int(asked), MOST_RANK) if asked.isascii() and asked.isdecimal() else 0
    curves = device_curves(request.viewer, job.pk, now=request.now, first=first)
    rows = device_rows(curves)
    last = first + len(curves.ranks)
    is_measured = any(row.device.points for row in rows)
    context = {
        "job_id": job.pk,
        "curves": curves,
        "rows": rows,
        "is_over": JobState(job.state) in TERMINAL,
        "is_measured": is_measured,
        # Some ranks may have no data, others much.
        "is_table": is_measured or bool(first) or last < curves.total,
        "has_slots": any(not row.device.is_gpu for row in rows),
        "span": SPANS[curves.span_seconds],
        "first": first,
        "from_rank": first + 1,
        "to_rank": last,
        "previous": max(0, first - USUAL_RANKS) if first else None,
        "more": max(0, curves.total - last),
    }
    return request.render("job/_devices.html", context)
