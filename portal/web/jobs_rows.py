"""A job in the list: the texts of its row besides the state."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from portal.addresses import address, job_url
from portal.i18n import translated
from portal.web.components import words
from portal.web.job_goodput import Pace, pace_of
from scheduling.enums import FailureClassChoice
from scheduling.jobs.queries.jobs import JobRow
from scheduling.usage.queries.device_hours import DeviceHours, hours_of_jobs
from tenants.roles import Permission
from tenants.viewers import Viewer
from workers.curves import trends_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A row of the list.

    Attributes:
        shape: the second line of its request.
        says: its end as text; empty while it is live.
        held_for: device hours as text; empty for none.
        started: start of the displayed span: of the wait or the run.
        ended: its end; None while it is live.
        pace: its current pace, if reported.
        can_stop: the viewer may stop it, and it has not ended.
        can_clone: the viewer may submit a copy.
    """

    row: JobRow
    url: str
    clone_url: str
    shape: str
    says: str
    held_for: str
    started: datetime
    ended: datetime | None
    can_stop: bool
    can_clone: bool
    pace: Pace | None

    @property
    def can_pick(self) -> bool:
        """Return whether any bulk action applies."""
        return self.can_stop or self.can_clone

    @property
    def stop(self) -> str:
        """Return whether it can be stopped in bulk, or the reason."""
        if self.can_stop:
            return "yes"
        return "ended" if self.row.is_over else "refused"

    @property
    def hold(self) -> str:
        """Return whether it can be held in bulk, or the reason."""
        if self.can_stop:
            return "yes" if self.waits else "running"
        return self.stop

    @property
    def release(self) -> str:
        """Return whether it can be released in bulk, or the reason."""
        if not self.row.held or not self.waits:
            return "unheld"
        return self.stop

    @property
    def waits(self) -> bool:
        return self.row.state == "queued"


def listed_jobs(viewer: Viewer, rows: Iterable[JobRow], *, now: datetime) -> tuple[ListedJob, ...]:
    """Return the displayed rows, in the same order, in two queries."""
    rows = tuple(rows)
    hours = hours_of_jobs([row.id for row in rows if row.is_over], now=now)
    trends = trends_of([row.id for row in rows if row.state == "running"], now=now)
    return tuple(
        _listed(viewer, row, hours.get(row.id, DeviceHours()), pace_of(trends.get(row.id, ())))
        for row in rows
    )


def hours_in_words(hours: DeviceHours) -> str:
    """``39.3 GPU-hours``; CPU slots are slot-hours and never mixed in; empty for none."""
    parts = (
        (hours.gpu, _("%(hours)s GPU-hours")),
        (hours.slot, _("%(hours)s slot-hours")),
    )
    return _(", ").join(
        text % {"hours": words.gpu_hours(value)} for value, text in parts if value >= 0.05
    )


def end_in_words(row: JobRow) -> str:
    """Describe a failure by its class and exit code; empty for any other end."""
    if row.state != "failed":
        return ""
    parts = []
    if row.failure_class:
        parts.append(translated(str(FailureClassChoice(row.failure_class).label)))
    if row.exit_code is not None:
        parts.append(_("exit %(exit_code)s") % {"exit_code": row.exit_code})
    text = _(", ").join(parts)
    return text[:1].upper() + text[1:]


def _listed(viewer: Viewer, row: JobRow, hours: DeviceHours, pace: Pace | None) -> ListedJob:
    waits = row.state == "queued"
    return ListedJob(
        row=row,
        url=job_url(row.id),
        clone_url=f"{address('submit')}?clone={row.id}",
        shape=_("opportunistic")
        if row.is_opportunistic
        else _("priority %(priority)s") % {"priority": row.priority},
        says=end_in_words(row),
        pace=pace,
        held_for=hours_in_words(hours) if row.is_over else "",
        started=row.submitted_at if waits else (row.started_at or row.submitted_at),
        ended=row.finished_at,
        can_stop=not row.is_over and viewer.can_stop(row.tenant_id, row.owner_id),
        can_clone=viewer.can(Permission.SUBMIT_JOBS, row.tenant_id),
    )
