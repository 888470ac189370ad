"""Device sharing on the page of a job: who shares its devices, and its loss by minute."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.shared_devices import SharedMinuteRow, sharing_minutes
from scheduling.jobs.queries.jobs import visible_job
from scheduling.runs.queries.sharing import HOLDER, JobSharing, job_sharing, slowdown_percent


@require_safe
@page
def sharing(request: PageRequest, job_id: int) -> HttpResponse:
    """Show the jobs on the devices of a job, and the measured loss of the holder."""
    job = visible_job(request.viewer, job_id)
    found = job_sharing(request.viewer, job_id)
    is_on = found.enabled and found.stopped_at is None and bool(found.guests)
    context = {
        "sharing": found,
        "stats": _stats(found),
        "is_paired": any(device.is_pair for device in found.devices),
        "can_stop": is_on and request.viewer.can_stop(job.tenant_id, job.owner_id),
    }
    return request.render("job/_sharing.html", context)


@require_safe
@page
def loss(request: PageRequest, job_id: int) -> HttpResponse:
    """Return the figure of the loss by minute, fetched when the chart comes into view."""
    job = visible_job(request.viewer, job_id)
    figure = loss_figure(sharing_minutes(job.pk, slowdown_percent(job) / 100))
    return JsonResponse(figure, headers={"Cache-Control": "private, no-store"})


def loss_figure(minutes: Sequence[SharedMinuteRow]) -> dict[str, Any]:
    """Build the figure of the loss by minute in percent, with its sentence."""
    known = [row for row in minutes if row.loss is not None]
    if not known:
        return {"data": [], "layout": {}, "summary": _("No minutes with guests in the last day.")}
    losses = [row.loss or 0.0 for row in known]
    over = sum(row.over_limit for row in known)
    at = [words.on_chart(row.minute) for row in known]
    traces = [
        {
            "x": at,
            "y": [round(100 * loss, 2) for loss in losses],
            "name": _("loss"),
            "type": "bar",
            "colour": "c1",
        },
        {
            "x": at,
            "y": [round(100 * row.limit, 2) for row in known],
            "name": _("limit"),
            "type": "scatter",
            "mode": "lines",
            "line": {"dash": "dash", "shape": "hv"},
            "colour": "bad",
        },
    ]
    summary = _("Mean %(mean)s, largest %(most)s; limit %(limit)s, exceeded in %(over)s.") % {
        "mean": words.percent(sum(losses) / len(losses)),
        "most": words.percent(max(losses)),
        "limit": words.percent(known[-1].limit),
        "over": words.plural(over, "minute", "minutes"),
    }
    return {"data": traces, "layout": {"yaxis": {"ticksuffix": " %"}}, "summary": summary}


def _stats(found: JobSharing) -> tuple[Stat, ...]:
    """Build the tiles of a holder with guests or an equal."""
    measured = [row for row in found.devices if row.loss is not None]
    if found.role != HOLDER or not measured:
        return ()
    worst = max(measured, key=lambda row: row.loss or 0.0)
    value, unit = words.percent(max(worst.loss or 0.0, 0.0)).split(words.NO_BREAK)
    context = _("limit %(share)s") % {"share": words.percent(worst.limit)}
    if worst.loss_low is not None and worst.loss_high is not None:
        context = _("%(limit)s; 95 %% interval %(low)s to %(high)s") % {
            "limit": context,
            "low": words.percent(worst.loss_low),
            "high": words.percent(worst.loss_high),
        }
    return (
        Stat(label=_("Loss, last minute"), value=value, unit=unit, context=context),
        Stat(
            label=_("Delay by paired jobs") if worst.is_pair else _("Delay by guests"),
            value=words.duration(max(row.delay_seconds for row in measured)),
            context=_("since the start of the job"),
        ),
        Stat(
            label=_("Step time alone"),
            value="" if worst.baseline is None else words.decimal(1000 * worst.baseline, 0),
            unit="ms",
            context=_("mean of the newest closed steps"),
        ),
    )
