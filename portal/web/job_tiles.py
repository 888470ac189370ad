"""Tiles at the top of a job's page: devices, goodput, step, time, device hours."""

from datetime import datetime

from django.utils.translation import gettext as _

from portal.i18n import translated
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.job_goodput import Pace
from scheduling.core.charging import charged_seconds
from scheduling.core.lifecycle import HOLDING
from scheduling.jobs.queries.job_detail import JobDetail
from scheduling.usage.queries.device_hours import DeviceHours


def job_tiles(
    detail: JobDetail, *, pace: Pace | None, hours: DeviceHours, now: datetime
) -> tuple[Stat, ...]:
    """Return five tiles: devices, goodput, step, time, device hours."""
    return (
        _devices(detail),
        _goodput(detail, pace),
        _step(detail, pace),
        _time(detail),
        *_hours(detail, hours, now),
    )


def _devices(detail: JobDetail) -> Stat:
    row = detail.row
    kind = _("opportunistic") if row.is_opportunistic else _("guaranteed")
    held = _held(detail)
    asked = (
        translated(row.wants)
        if held in (0, row.devices)
        else _("%(wants)s requested") % {"wants": translated(row.wants)}
    )
    return Stat(
        label=_("Devices"),
        value=words.count(held or row.devices),
        context=_(", ").join((asked, kind)),
    )


def _held(detail: JobDetail) -> int:
    """Return devices of the running attempt, if any."""
    if detail.row.state not in HOLDING or not detail.attempts:
        return 0
    return sum(len(member.devices) for member in detail.attempts[-1].members)


def _goodput(detail: JobDetail, pace: Pace | None) -> Stat:
    if pace is None:
        says = _("not reported by the job") if detail.row.attempts else _("not started yet")
        return Stat(label=_("Goodput"), value=words.DASH, context=says)
    share = words.percent(pace.goodput / pace.throughput) if pace.throughput else words.DASH
    return Stat(
        label=_("Goodput"),
        value=words.amount(pace.goodput),
        unit=_("samples/s"),
        context=_("%(share)s of %(throughput)s samples/s")
        % {"share": share, "throughput": words.amount(pace.throughput)},
    )


def _step(detail: JobDetail, pace: Pace | None) -> Stat:
    if pace is None:
        attempts = words.plural(detail.row.attempts, "attempt", "attempts")
        return Stat(
            label=_("Step"),
            value=words.DASH,
            context=_("%(attempts)s so far") % {"attempts": attempts},
        )
    parts = []
    if pace.loss is not None:
        parts.append(_("loss %(loss)s") % {"loss": f"{pace.loss:.4g}"})
    if pace.step_seconds:
        parts.append(_("%(step_seconds)s per step") % {"step_seconds": _short(pace.step_seconds)})
    return Stat(label=_("Step"), value=words.count(pace.step), context=_(", ").join(parts))


def _short(seconds: float) -> str:
    """Format the time of a step, which is often a few milliseconds."""
    return words.duration(seconds) if seconds >= 0.1 else f"{words.amount(1000 * seconds)} ms"


def _time(detail: JobDetail) -> Stat:
    row = detail.row
    if row.state == "queued":
        return Stat(
            label=_("Waiting"),
            value=words.running_time(row.submitted_at),
            context=_("submitted %(submitted_at)s")
            % {"submitted_at": words.clock(row.submitted_at)},
        )
    start = row.started_at or row.submitted_at
    label = _("Duration") if row.is_over else _("Running")
    if row.started_at is None:
        label = _("Duration") if row.is_over else _("Starting")
    end = row.finished_at
    waited = (detail.first_started_at or start) - row.submitted_at
    context = _("after %(total_seconds)s in the queue") % {
        "total_seconds": words.duration(waited.total_seconds())
    }
    return Stat(label=label, value=words.running_time(start, end), context=context)


def _hours(detail: JobDetail, hours: DeviceHours, now: datetime) -> list[Stat]:
    lost = _lost_hours(detail, now)
    context = (
        _("%(lost)s in failed attempts") % {"lost": words.gpu_hours(lost)} if lost >= 0.05 else ""
    )
    if not context:
        context = _("so far") if not detail.row.is_over else _("total")
    label = _("Device-hours")
    tiles = [
        Stat(label=label, value=words.gpu_hours(value), unit=unit, context=context)
        for unit, value in ((_("GPU"), hours.gpu), (_("CPU slots"), hours.slot))
        if value
    ]
    return tiles or [Stat(label=label, value=words.gpu_hours(0), context=context)]


def _lost_hours(detail: JobDetail, now: datetime) -> float:
    """Return device hours of failed attempts."""
    return sum(
        charged_seconds(member.started_at, member.exited_at, until=attempt.ended_at or now)
        / 3600
        * len(member.devices)
        for attempt in detail.attempts
        if attempt.outcome == "failed"
        for member in attempt.members
    )
