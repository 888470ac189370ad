"""Context of the pages of one job, read once for a whole page or for the parts of a swap."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from portal.addresses import address, job_url, node_url
from portal.i18n import gettext_lazy
from portal.web.cluster_drawing import cell
from portal.web.components.placement import Placement, placement
from portal.web.job_calls import first_rank
from portal.web.job_elastic import (
    elastic_words,
    layout_words,
    outlook_words,
    sizes_figure,
    sizes_in_words,
)
from portal.web.job_goodput import pace_of
from portal.web.job_history import history_of
from portal.web.job_tiles import job_tiles
from portal.web.viewing import PageRequest
from scheduling.enums import FailureClassChoice
from scheduling.jobs.queries.events import life_of_job
from scheduling.jobs.queries.instances import parts_shown
from scheduling.jobs.queries.job_detail import JobDetail, job_detail
from scheduling.jobs.queries.why import why
from scheduling.runs.queries.predictions import outlook_of_job
from scheduling.usage.queries.device_hours import DeviceHours, hours_of_jobs
from scheduling.watching.queries import idling_of
from workers.curves import newest_points

TABS = (
    ("job", gettext_lazy("Overview")),
    ("job-logs", gettext_lazy("Logs")),
    ("job-attempts", gettext_lazy("Attempts")),
    ("job-events", gettext_lazy("Events")),
    ("job-receipts", gettext_lazy("Receipts")),
    ("job-spec", gettext_lazy("Spec")),
    ("job-calls", gettext_lazy("REST and CLI")),
)


def head_context(request: PageRequest, job_id: int, tab: str) -> dict[str, Any]:
    """Return the context above the tabs of every page of a job.

    Raises:
        NotFoundError: unknown job, or not visible to the viewer.
    """
    detail = job_detail(request.viewer, job_id)
    row = detail.row
    hours = hours_of_jobs([row.id], now=request.now).get(row.id, DeviceHours())
    pace = pace_of(newest_points(request.viewer, row.id))
    reason = why(
        request.viewer, row.id, now=request.now, round_seconds=settings.TESSERA.round_seconds
    )
    return {
        "detail": detail,
        "job": row,
        "tiles": job_tiles(detail, pace=pace, hours=hours, now=request.now),
        "why": reason,
        "blockers": tuple((number, job_url(number)) for number in reason.blocked_by),
        "unlimited": tuple((number, job_url(number)) for number in reason.unlimited),
        "idling": idling_of(row.id) if row.state == "running" else None,
        "failure": FailureClassChoice(row.failure_class).label if row.failure_class else "",
        "tab": tab,
        "tabs": tuple((name, text, address(name, row.id)) for name, text in TABS),
        "topic": f"job:{row.id}",
    }


def overview_context(request: PageRequest, detail: JobDetail) -> dict[str, Any]:
    """The parts of the first tab."""
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
        "placements": placements(detail),
        "is_placed": newest is not None and newest.ended_at is None,
        "role": role,
        "rank": rank,
        "streams": streams(detail),
        "facts": facts(detail),
        "outlook": outlook_words(outlook),
        "sizes": sizes_figure(outlook),
        "sizes_say": sizes_in_words(outlook),
        "parts": parts_shown(request.viewer, detail.parts),
    }


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


def _layout(detail: JobDetail) -> str:
    """Return the layout of the logical workers of the newest attempt."""
    if not detail.attempts:
        return ""
    newest = detail.attempts[-1]
    return layout_words(newest.layout, sum(len(member.devices) for member in newest.members))
