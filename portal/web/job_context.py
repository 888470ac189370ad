"""Context of the pages of one job: tiles, facts and history, of a whole page or of a swap."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _

from portal.addresses import address, job_url, node_url
from portal.i18n import gettext_lazy, translated
from portal.web.api_calls import first_rank
from portal.web.cluster_drawing import cell
from portal.web.components import words
from portal.web.components.history import Held, HistoryDrawing, Mark, StateSpan, history
from portal.web.components.placement import Placement, placement
from portal.web.components.stats import Stat
from portal.web.job_training import (
    Pace,
    elastic_words,
    layout_words,
    outlook_words,
    pace_of,
    sizes_figure,
    sizes_in_words,
)
from portal.web.viewing import PageRequest
from portal.web.waiting_picture import asked_finish, devices_of, offers_of
from scheduling.compat.slurm.shell import own_lines
from scheduling.core.charging import charged_seconds
from scheduling.core.lifecycle import HOLDING, TERMINAL, PreemptionRule
from scheduling.enums import FailureClassChoice
from scheduling.jobs.queries.events import JobLife, StateChange, life_of_job
from scheduling.jobs.queries.instances import parts_shown
from scheduling.jobs.queries.job_detail import AttemptView, JobDetail, job_detail
from scheduling.jobs.queries.jobs import JobRow, rows_of_jobs
from scheduling.jobs.queries.why import why
from scheduling.runs.queries.predictions import outlook_of_job
from scheduling.usage.queries.device_hours import DeviceHours, hours_of_jobs
from scheduling.watching.queries import idling_of
from workers.goodput import newest_points
from workers.idle_devices import idle_devices_of

PARALLELISM: Final = "job-parallelism"
"""The tab that only jobs with hybrid parallelism have."""
TABS = (
    ("job", gettext_lazy("Overview")),
    ("job-logs", gettext_lazy("Logs")),
    ("job-attempts", gettext_lazy("Attempts")),
    ("job-events", gettext_lazy("Events")),
    (PARALLELISM, gettext_lazy("Parallelism")),
    ("job-receipts", gettext_lazy("Receipts")),
    ("job-spec", gettext_lazy("Spec")),
    ("job-calls", gettext_lazy("REST and CLI")),
)
MOST_VARIABLES: Final = 4
_MARKS: Final = {
    "preempt": "preempted",
    "retry": gettext_lazy("retried"),
    "contact-lost": gettext_lazy("no contact to node"),
}
_CAUSES: Final[Mapping[str, str]] = {
    PreemptionRule.RESIZE: gettext_lazy("resized"),
    PreemptionRule.MOVE: gettext_lazy("moved"),
    PreemptionRule.REVERT: gettext_lazy("reverted"),
}


def head_context(request: PageRequest, job_id: int, tab: str) -> dict[str, Any]:
    """Return the context above the tabs of every page of a job.

    Raises:
        NotFoundError: unknown job, or not visible to the viewer.
    """
    detail = job_detail(request.viewer, job_id)
    row = detail.row
    hours = hours_of_jobs([row.id], now=request.now).get(row.id, DeviceHours())
    newest = newest_points(request.viewer, row.id)
    pace = pace_of(newest)
    reason = why(
        request.viewer, row.id, now=request.now, round_seconds=settings.TESSERA.round_seconds
    )
    return {
        "detail": detail,
        "job": row,
        "tiles": job_tiles(detail, pace=pace, hours=hours, now=request.now),
        "newest_points": newest,
        "why": reason,
        "asked_devices": devices_of(detail.spec),
        "asked_finish": asked_finish(reason, detail.spec),
        "offers": offers_of(reason, detail.spec, state=row.state, now=request.now),
        "blockers": _blockers(request, reason.blocked_by),
        "unlimited": tuple((number, job_url(number)) for number in reason.unlimited),
        **_idleness(request, row),
        "failure": FailureClassChoice(row.failure_class).label if row.failure_class else "",
        "tab": tab,
        "tabs": tuple(
            (name, text, address(name, row.id))
            for name, text in TABS
            if name != PARALLELISM or "parallel" in detail.spec
        ),
        "topic": f"job:{row.id}",
    }


def _idleness(request: PageRequest, row: JobRow) -> dict[str, Any]:
    """Return the idle warning of a running job, else a hint at devices that idle beside others."""
    if row.state != "running":
        return {}
    idling = idling_of(row.id)
    has_hint = idling is None and row.devices > 1
    hint = idle_devices_of(row.id, now=request.now) if has_hint else None
    return {"idling": idling, "idle_devices": hint}


def _blockers(
    request: PageRequest, ids: Sequence[int]
) -> tuple[tuple[int, str, JobRow | None], ...]:
    """Return blocking jobs with their addresses and rows; at most two queries."""
    rows = rows_of_jobs(request.viewer, list(ids)) if ids else {}
    return tuple((number, job_url(number), rows.get(number)) for number in ids)


def overview_context(request: PageRequest, detail: JobDetail) -> dict[str, Any]:
    """Return the context of the first tab."""
    role, rank = first_rank(detail)
    life = life_of_job(request.viewer, detail.row.id)
    newest = detail.attempts[-1] if detail.attempts else None
    is_elastic = bool(detail.spec.get("elastic"))
    outlook = (
        outlook_of_job(request.viewer, detail.row.id, now=request.now) if is_elastic else None
    )
    return {
        "life": life,
        "history": history_of(life, detail.attempts, now=request.now),
        "newest": newest,
        "has_devices": any(
            member.devices and member.started_at
            for attempt in detail.attempts
            for member in attempt.members
        ),
        "has_sharing": bool(detail.spec.get("sharing")) and not detail.row.is_over,
        "placements": placements(detail),
        "is_placed": newest is not None and newest.ended_at is None,
        "role": role,
        "rank": rank,
        "streams": streams(detail),
        "facts": facts(detail),
        "summary": summary_of(detail),
        "outlook": outlook_words(outlook),
        "sizes": sizes_figure(outlook, held=_devices_in_use(detail)),
        "sizes_say": sizes_in_words(outlook),
        "parts": parts_shown(request.viewer, detail.parts),
    }


def _devices_in_use(detail: JobDetail) -> int:
    """Return the devices of the running attempt; 0 without one."""
    running = (attempt for attempt in detail.attempts if attempt.ended_at is None)
    return sum(len(member.devices) for attempt in running for member in attempt.members)


def placements(detail: JobDetail) -> tuple[Placement, ...]:
    """Draw the placement of the newest attempt, one drawing per node."""
    return tuple(
        placement(
            node=part.node,
            tree=cell(part.tree),
            ranks={index: name.rpartition(" ")[2] for index, name in part.ranks.items()},
            url=node_url(part.node_id),
        )
        for part in detail.placement
    )


def streams(detail: JobDetail) -> tuple[tuple[str, int], ...]:
    """Return all logs: role and rank of every member of any attempt, in order."""
    found: dict[tuple[str, int], int] = {}
    for attempt in detail.attempts:
        for member in attempt.members:
            found.setdefault((member.role, member.rank), member.node_rank)
    return tuple(sorted(found, key=lambda stream: (found[stream], stream)))


def facts(detail: JobDetail) -> Mapping[str, Any]:
    """Return the specification as a list of facts."""
    spec = detail.spec
    roles = spec["roles"].values()
    source = spec.get("source") or {}
    git = source.get("git") or {}
    return {
        "within": ", ".join(dict.fromkeys(role["within"] for role in roles)),
        "pins": ", ".join(
            dict.fromkeys(role["pinned_cell"] for role in roles if role.get("pinned_cell"))
        ),
        "images": tuple(dict.fromkeys(role["image"] for role in roles if role.get("image"))),
        "elastic": elastic_words(spec.get("elastic"), detail.row.devices),
        "layout": _layout(detail),
        "source": f"{git['url']} {git.get('ref', '')}".strip() if git else "",
        "archive": source.get("archive", ""),
        "after": tuple((number, job_url(number)) for number in detail.after),
        "origin": detail.cloned_from,
        "origin_url": job_url(detail.cloned_from),
    }


def summary_of(detail: JobDetail) -> Mapping[str, Any]:
    """Return commands and environment; values of secrets are not part of a specification."""
    roles = detail.spec["roles"]
    variables = dict.fromkeys(
        f"{name}={value}"
        for role in roles.values()
        for name, value in (role.get("env") or {}).items()
    )
    shown = _(", ").join(list(variables)[:MOST_VARIABLES])
    more = len(variables) - MOST_VARIABLES
    return {
        "roles": [
            {"name": name, "command": command, "shown": own_lines(command)}
            for name, role in roles.items()
            for command in (_command(role.get("command")),)
        ],
        "environment": _("%(shown)s, %(more)s more") % {"shown": shown, "more": more}
        if more > 0
        else shown,
    }


def _command(command: object) -> str:
    return " ".join(map(str, command)) if isinstance(command, list) else str(command or "")


def _layout(detail: JobDetail) -> str:
    """Return the layout of the logical workers of the newest attempt."""
    if not detail.attempts:
        return ""
    newest = detail.attempts[-1]
    return layout_words(newest.layout, sum(len(member.devices) for member in newest.members))


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
    if not row.devices:
        roles = detail.spec["roles"].values()
        cpus = sum(role.get("instances", 1) * (role.get("cpus") or 0.0) for role in roles)
        return Stat(label=_("CPUs"), value=words.amount(cpus), context=_(", ").join((asked, kind)))
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
        summary = _("not reported by the job") if detail.row.attempts else _("not started yet")
        return Stat(label=_("Goodput"), value=words.DASH, context=summary)
    share = words.percent(pace.goodput / pace.throughput) if pace.throughput else words.DASH
    return Stat(
        label=_("Goodput"),
        value=words.amount(pace.goodput),
        unit=_("samples/s"),
        context=_("equal to the throughput")
        if share == words.percent(1.0)
        else _("%(share)s of %(throughput)s samples/s")
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
    if not detail.row.devices:
        used = words.gpu_hours(detail.row.cpu_seconds / 3600)
        return [Stat(label=_("CPU-hours"), value=used, context=_("of ended attempts"))]
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


def history_of(
    life: JobLife, attempts: Sequence[AttemptView], *, now: datetime
) -> HistoryDrawing | None:
    """Draw the history; None for a job without one.

    Args:
        life: intervals of the job by state.
        attempts: oldest first.
        now: end of the drawing for a live job.
    """
    changes = life.changes
    spells = [
        StateSpan(state=change.state, start=change.at, end=end, attempt=change.attempt or 0)
        for change, end in zip(changes, _ends(changes, now), strict=True)
        if change.state not in TERMINAL
    ]
    held = [
        Held(
            devices=sum(len(member.devices) for member in attempt.members),
            start=attempt.created_at,
            end=attempt.ended_at or now,
        )
        for attempt in attempts
    ]
    return history(spells, held, marks=marks_of(life), checkpoints=life.checkpoints)


def marks_of(life: JobLife) -> list[Mark]:
    """Return the marks of changes: preemptions, resizes, moves, retries, lost contacts."""
    return [
        Mark(
            at=change.at,
            what=_mark(change),
            cause=_("attempt %(attempt)s") % {"attempt": change.attempt or 1},
        )
        for change in life.changes
        if change.kind in _MARKS
    ]


def _mark(change: StateChange) -> str:
    """Describe a mark: a restart at another size is a resize, not just a preemption."""
    return _CAUSES.get(change.cause) or _MARKS[change.kind]


def _ends(changes: Sequence[StateChange], now: datetime) -> list[datetime]:
    return [*(change.at for change in changes[1:]), now][: len(changes)]
