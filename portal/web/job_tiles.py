"""The numbers that a job's page opens with."""

from datetime import datetime

from portal.i18n import said
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.job_goodput import Pace
from scheduling.core.charging import charged_seconds
from scheduling.core.lifecycle import HOLDING
from scheduling.core.messages import sentence
from scheduling.selectors.hours import DeviceHours
from scheduling.selectors.job_detail import JobDetail
from tessera.messages import Listing, message_of, plain


def job_tiles(
    detail: JobDetail, *, pace: Pace | None, hours: DeviceHours, now: datetime
) -> tuple[Stat, ...]:
    """Five tiles: devices, goodput, step, time, hours."""
    return (
        _devices(detail),
        _goodput(detail, pace),
        _step(detail, pace),
        _time(detail),
        *_hours(detail, hours, now),
    )


def _devices(detail: JobDetail) -> Stat:
    row = detail.row
    kind = "opportunistic" if row.is_opportunistic else "guaranteed"
    held = _held(detail)
    asked = row.wants if held in (0, row.devices) else f"asked for {said(row.wants)}"
    context = sentence("wanted-together", members=Listing((message_of(asked), plain(kind))))
    return Stat(label="Devices", value=words.count(held or row.devices), context=context)


def _held(detail: JobDetail) -> int:
    """Devices of the attempt that runs; none of a job that holds none."""
    if detail.row.state not in HOLDING or not detail.attempts:
        return 0
    return sum(len(member.devices) for member in detail.attempts[-1].members)


def _goodput(detail: JobDetail, pace: Pace | None) -> Stat:
    if pace is None:
        says = "the job reports none" if detail.row.attempts else "it has not run yet"
        return Stat(label="Goodput", value=words.DASH, context=says)
    share = words.percent(pace.goodput / pace.throughput) if pace.throughput else words.DASH
    return Stat(
        label="Goodput",
        value=words.amount(pace.goodput),
        unit="samples/s",
        context=f"{share} of {words.amount(pace.throughput)} samples/s",
    )


def _step(detail: JobDetail, pace: Pace | None) -> Stat:
    if pace is None:
        attempts = words.plural(detail.row.attempts, "attempt", "attempts")
        return Stat(label="Step", value=words.DASH, context=f"{attempts} so far")
    parts = []
    if pace.loss is not None:
        parts.append(f"loss {pace.loss:.4g}")
    if pace.step_seconds:
        parts.append(f"{_short(pace.step_seconds)} a step")
    return Stat(label="Step", value=words.count(pace.step), context=", ".join(parts))


def _short(seconds: float) -> str:
    """The time of a step, which is often a few milliseconds."""
    return words.duration(seconds) if seconds >= 0.1 else f"{words.amount(1000 * seconds)} ms"


def _time(detail: JobDetail) -> Stat:
    row = detail.row
    if row.state == "queued":
        return Stat(
            label="Waits for",
            value=words.running_time(row.submitted_at),
            context=f"submitted {words.clock(row.submitted_at)}",
        )
    start = row.started_at or row.submitted_at
    label = "Ran for" if row.is_over else "Runs for"
    if row.started_at is None:
        label = "Lasted" if row.is_over else "Starts since"
    end = row.finished_at
    waited = (detail.first_started_at or start) - row.submitted_at
    context = f"after a wait of {words.duration(waited.total_seconds())}"
    return Stat(label=label, value=words.running_time(start, end), context=context)


def _hours(detail: JobDetail, hours: DeviceHours, now: datetime) -> list[Stat]:
    lost = _lost_hours(detail, now)
    context = f"{words.gpu_hours(lost)} in attempts that failed" if lost >= 0.05 else ""
    if not context:
        context = "so far" if not detail.row.is_over else "in all"
    tiles = [
        Stat(label=label, value=words.gpu_hours(value), context=context)
        for label, value in (("GPU-hours", hours.gpu), ("Slot-hours", hours.slot))
        if value
    ]
    return tiles or [Stat(label="Device-hours", value=words.gpu_hours(0), context=context)]


def _lost_hours(detail: JobDetail, now: datetime) -> float:
    """Device hours of attempts that did not end well."""
    return sum(
        charged_seconds(member.started_at, member.exited_at, until=attempt.ended_at or now)
        / 3600
        * len(member.devices)
        for attempt in detail.attempts
        if attempt.outcome == "failed"
        for member in attempt.members
    )
