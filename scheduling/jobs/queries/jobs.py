"""Lists of jobs for pages and REST: pages of rows, filters and counts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final

from django.db.models import Count, Q, QuerySet
from django.db.models.fields.json import KeyTransform

from scheduling.common.paging import DEFAULT_ROWS, Page, cut, page_limit, read_cursor
from scheduling.core.jobspec import Demand
from scheduling.core.lifecycle import LIVE, TERMINAL, JobState
from scheduling.core.messages import sentence
from scheduling.core.reasons import stored_steps, stored_text, with_message
from scheduling.estimates.queries import Eta, eta_of, holds_for, is_of, no_estimate_of, steps_left
from scheduling.jobs.models import Job
from scheduling.jobs.queries.events import no_such_job
from scheduling.jobs.queries.job_columns import (
    ASK_A_LEAD,
    is_left_to_leads,
    jobs_ahead,
    wants_in_words,
)
from tenants.errors import InvalidError
from tenants.models import User
from tenants.viewers import Viewer

LONGEST_SEARCH: Final = 200
_ESTIMATE: Final = (
    "p10",
    "p50",
    "p90",
    "made_at",
    "round_number",
    "basis",
    "opens_at",
    "unreliable",
    "unlimited",
    "steps",
    "sought",
    "sought_for",
    "amendments",
)
_COLUMNS: Final = (
    "id",
    "name",
    "state",
    "state_since",
    "owner__username",
    "virtual_cluster__name",
    "virtual_cluster_id",
    "tenant_id",
    "devices",
    "demand",
    "job_class",
    "priority",
    "labels",
    "submitted_at",
    "started_at",
    "finished_at",
    "reason_code",
    "reason_text",
    "reason",
    "failure_class",
    "exit_code",
    "attempts_made",
    "amendments",
    "retryable",
    "held",
    "held_by_id",
    "gpu_seconds",
    "cpu_seconds",
    "max_duration_seconds",
    "owner_id",
    "idle_spell__since",
    "idle_spell__idle_devices",
    *(f"estimate__{name}" for name in _ESTIMATE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Filters of a list of jobs; empty values do not filter.

    Attributes:
        states: names of states.
        virtual_cluster: name of the virtual cluster.
        user: user name of the owner.
        reason: a reason code.
        text: part of the name or note, a job ID, or ``label=value``.
        mine: only jobs of the viewer.
        submitted_since: lower limit of the submit time.
        submitted_until: upper limit of the submit time.
        ended_since: lower limit of the end; jobs that have not ended match, too.
        held: True for jobs on hold, False for other jobs, None for both.
    """

    states: frozenset[str] = frozenset()
    virtual_cluster: str = ""
    tenant: str = ""
    user: str = ""
    reason: str = ""
    text: str = ""
    mine: bool = False
    submitted_since: datetime | None = None
    submitted_until: datetime | None = None
    ended_since: datetime | None = None
    held: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a list.

    Attributes:
        tenant: name of the tenant.
        wants: demand as a text.
        instances: number of instances over all roles.
        reason_code: code of the reason; empty unless queued, and before the first round tries the
            job.
        unblock: remedies, most useful first.
        exit_code: exit code of the last attempt of an ended job.
        gpu_seconds: device-seconds of ended attempts.
        cpu_seconds: CPUs times seconds of ended attempts of a job without devices.
        eta: start estimate; None if the job does not wait or no estimate exists.
        no_eta: reason of a missing start estimate; empty otherwise.
        ahead: queue position; None if unknown.
        idle_since: time at which all its devices became idle; None if they are busy or unknown.
    """

    id: int
    name: str
    state: str
    state_since: datetime
    owner: str
    owner_id: int
    virtual_cluster: str
    tenant: str
    tenant_id: int
    devices: int
    wants: str
    instances: int
    job_class: str
    priority: int
    labels: Mapping[str, str]
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reason_code: str
    reason_text: str
    unblock: tuple[str, ...]
    failure_class: str
    exit_code: int | None
    attempts: int
    retryable: bool
    held: bool
    gpu_seconds: float
    cpu_seconds: float
    max_duration_seconds: int | None
    eta: Eta | None = None
    no_eta: str = ""
    ahead: int | None = None
    idle_since: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the job is in a final state."""
        return self.state in TERMINAL

    @property
    def shown_state(self) -> str:
        """Return the displayed state: ``held`` if a hold excludes the job from rounds."""
        return shown_state(self.state, held=self.held)

    @property
    def is_opportunistic(self) -> bool:
        """Return whether the job runs on idle devices outside the guarantee."""
        return self.job_class == "opportunistic"


NO_FILTER: Final = JobFilter()


def shown_state(state: str, *, held: bool) -> str:
    """Return the displayed state: ``held`` for a queued job on hold, otherwise ``state``."""
    return "held" if held and state == JobState.QUEUED else state


def page_of_jobs(
    viewer: Viewer,
    filters: JobFilter = NO_FILTER,
    *,
    cursor: str | None = None,
    limit: int = DEFAULT_ROWS,
    oldest_first: bool = False,
) -> Page[JobRow]:
    """Return the jobs that the viewer may see, newest first, in two queries.

    Raises:
        InvalidError: a filter, the cursor or the limit is not valid.
    """
    limit = page_limit(limit)
    key = read_cursor(cursor)
    if oldest_first:
        jobs = _filtered(viewer, filters).filter(id__gt=key[0] if key else 0).order_by("id")
    else:
        jobs = newest_jobs(viewer, filters, before=key[0] if key else None, most=limit + 1)
    rows = _rows(viewer, jobs.values_list(*_COLUMNS)[: limit + 1])
    return cut(rows, limit, lambda row: row.id)


def page_of_queue(
    viewer: Viewer,
    filters: JobFilter = NO_FILTER,
    *,
    cursor: str | None = None,
    limit: int = DEFAULT_ROWS,
) -> Page[JobRow]:
    """Return the queued jobs that the viewer may see, by descending priority, then by age."""
    limit = page_limit(limit)
    key = read_cursor(cursor, parts=2)
    jobs = _filtered(viewer, filters).filter(state=JobState.QUEUED).order_by("-priority", "id")
    if key:
        priority, last = key
        jobs = jobs.filter(Q(priority__lt=priority) | Q(priority=priority, id__gt=last))
    rows = _rows(viewer, jobs.values_list(*_COLUMNS)[: limit + 1])
    return cut(rows, limit, lambda row: (row.priority, row.id))


def rows_of_jobs(viewer: Viewer, ids: list[int]) -> dict[int, JobRow]:
    """Return the rows of those ``ids`` that the viewer may see, by job ID."""
    jobs = Job.objects.visible_to(viewer).filter(pk__in=ids[:1000])
    return {row.id: row for row in _rows(viewer, jobs.values_list(*_COLUMNS))}


def rows_of_new_jobs(viewer: Viewer, jobs: Iterable[Job]) -> dict[int, JobRow]:
    """Return the rows of jobs that the viewer has just submitted, without further queries."""
    names = {"owner__username": viewer.username}
    rows = {}
    for job in jobs:
        names["virtual_cluster__name"] = job.virtual_cluster.name
        values = (names.get(column, getattr(job, column, None)) for column in _COLUMNS)
        rows[job.pk] = _row(viewer, dict(zip(_COLUMNS, values, strict=True)), {})
    return rows


def counts_by_state(viewer: Viewer, filters: JobFilter = NO_FILTER) -> dict[str, int]:
    """Return the number of jobs by state, including states without jobs, in one query."""
    jobs = _filtered(viewer, filters).order_by()
    found = Counter(dict(jobs.values_list("state").annotate(count=Count("id"))))
    return {state.value: found[state.value] for state in JobState}


def counts_by_reason(viewer: Viewer, filters: JobFilter = NO_FILTER) -> dict[str, int]:
    """Return the number of queued jobs by reason code, the most frequent first, in one query."""
    jobs = _filtered(viewer, filters).filter(state=JobState.QUEUED).order_by()
    counted = jobs.values_list("reason_code").annotate(count=Count("id"))
    return dict(sorted(counted, key=lambda pair: (-pair[1], pair[0])))


def newest_jobs(
    viewer: Viewer, filters: JobFilter, *, before: int | None, most: int
) -> "QuerySet[Job]":
    """Return at least the newest ``most`` of the matching jobs, newest first.

    With several states, the index that begins with the state finds the newest jobs of each state.
    Otherwise the database would read and sort all rows of these states for one page.
    """
    jobs = _filtered(viewer, filters)
    if before is not None:
        jobs = jobs.filter(id__lt=before)
    states = _known_states(filters.states) if filters.states else []
    if len(states) < 2:
        return jobs.order_by("-id")
    newest = (jobs.filter(state=state).order_by("-id").values("id")[:most] for state in states)
    either = reduce(or_, (Q(pk__in=ids) for ids in newest))
    return Job.objects.visible_to(viewer).filter(either).order_by("-id")


def _filtered(viewer: Viewer, filters: JobFilter) -> "QuerySet[Job]":
    jobs: QuerySet[Job] = Job.objects.visible_to(viewer)
    if filters.states:
        jobs = jobs.filter(state__in=_known_states(filters.states))
    exact = {
        "virtual_cluster__name": filters.virtual_cluster,
        "tenant__name": filters.tenant,
        "reason_code": filters.reason,
    }
    jobs = jobs.filter(**{lookup: _storable(value) for lookup, value in exact.items() if value})
    if filters.reason:
        # Only queued jobs have a reason, and the index of reasons begins with the state.
        jobs = jobs.filter(state=JobState.QUEUED)
    if filters.user:
        # By ID: with a name, the database would not use an index of owners.
        named = User.objects.filter(username__iexact=_storable(filters.user))
        jobs = jobs.filter(owner_id__in=list(named.values_list("id", flat=True)))
    if filters.mine:
        jobs = jobs.filter(owner_id=viewer.user_id)
    if filters.held is not None:
        jobs = jobs.filter(held=filters.held)
    if filters.submitted_since:
        jobs = jobs.filter(submitted_at__gte=filters.submitted_since)
    if filters.submitted_until:
        jobs = jobs.filter(submitted_at__lte=filters.submitted_until)
    if filters.ended_since:
        jobs = jobs.filter(Q(finished_at__isnull=True) | Q(finished_at__gte=filters.ended_since))
    return _searched(jobs, filters.text.strip()) if filters.text.strip() else jobs


def _searched(jobs: "QuerySet[Job]", text: str) -> "QuerySet[Job]":
    if len(text) > LONGEST_SEARCH:
        raise InvalidError(
            sentence("search-most-characters", most=LONGEST_SEARCH),
            field="text",
            value=text,
            remedy=sentence("search-less"),
        )
    text = _storable(text)
    label, equals, value = text.partition("=")
    if equals and label:
        jobs = jobs.annotate(wanted_label=KeyTransform(label.strip(), "labels"))
        return jobs.filter(wanted_label=value.strip())
    found = Q(name__icontains=text) | Q(note__icontains=text)
    # The subquery reads names and notes from their index instead of the rows of all jobs.
    wanted = Q(pk__in=Job.objects.unscoped().filter(found).order_by().values("id"))
    if text.isascii() and text.isdecimal() and len(text) < 19:
        wanted |= Q(pk=int(text))
    return jobs.filter(wanted)


def _storable(text: str) -> str:
    # PostgreSQL rejects NUL in a parameter; no stored text contains it.
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def _known_states(states: frozenset[str]) -> list[str]:
    unknown = sorted(states - {state.value for state in JobState} - {"live", "ended"})
    if unknown:
        raise InvalidError(
            sentence("no-job-state", state=repr(unknown[0])),
            field="state",
            value=unknown[0],
            remedy=sentence("use-job-state", names=", ".join(state.value for state in JobState)),
        )
    groups = {"live": LIVE, "ended": TERMINAL}
    return sorted({s for name in states for s in groups.get(name, (name,))})


def _rows(viewer: Viewer, found: Iterable[tuple[Any, ...]]) -> list[JobRow]:
    """Return rows in one query, and in a second one their queue positions if some of them wait."""
    read = [dict(zip(_COLUMNS, values, strict=True)) for values in found]
    waiting = (facts for facts in read if facts["state"] == JobState.QUEUED)
    places = jobs_ahead({facts["virtual_cluster_id"] for facts in waiting})
    return [_row(viewer, facts, places) for facts in read]


def _row(viewer: Viewer, facts: Mapping[str, Any], places: Mapping[int, int]) -> JobRow:
    waits = facts["state"] == JobState.QUEUED
    estimate = {name: facts[f"estimate__{name}"] for name in _ESTIMATE} if waits else {}
    if not is_of(facts["amendments"], estimate):
        estimate = {}
    demand = Demand.from_json(facts["demand"])
    return JobRow(
        id=facts["id"],
        name=facts["name"],
        state=facts["state"],
        state_since=facts["state_since"],
        owner=facts["owner__username"],
        owner_id=facts["owner_id"],
        virtual_cluster=facts["virtual_cluster__name"],
        tenant=viewer.name_of(facts["tenant_id"]),
        tenant_id=facts["tenant_id"],
        devices=facts["devices"],
        wants=wants_in_words(demand),
        instances=demand.instances,
        job_class=facts["job_class"],
        priority=facts["priority"],
        labels=facts["labels"],
        submitted_at=facts["submitted_at"],
        started_at=facts["started_at"],
        finished_at=facts["finished_at"],
        reason_code=facts["reason_code"],
        reason_text=stored_text(facts["reason_text"], facts["reason"]),
        unblock=_what_helps(viewer, facts, estimate),
        failure_class=facts["failure_class"],
        exit_code=facts["exit_code"],
        attempts=facts["attempts_made"],
        retryable=facts["retryable"],
        held=facts["held"],
        gpu_seconds=facts["gpu_seconds"],
        cpu_seconds=facts["cpu_seconds"],
        max_duration_seconds=facts["max_duration_seconds"],
        eta=eta_of(estimate),
        no_eta=no_estimate_of(estimate),
        # Without a reason, no round has tried the job since its last change, and the stored queue
        # order is older.
        ahead=places.get(facts["id"]) if waits and facts["reason_code"] else None,
        idle_since=_idle_since(facts),
    )


def _idle_since(facts: Mapping[str, Any]) -> datetime | None:
    is_whole = facts["state"] == JobState.RUNNING and facts["idle_spell__idle_devices"] is None
    return facts["idle_spell__since"] if is_whole else None


def _what_helps(
    viewer: Viewer, facts: Mapping[str, Any], estimate: Mapping[str, Any]
) -> tuple[str, ...]:
    if facts["held"] and is_left_to_leads(
        viewer,
        tenant=facts["tenant_id"],
        owner=facts["owner_id"],
        holder=facts["held_by_id"],
    ):
        return (sentence(ASK_A_LEAD),)
    is_sought = holds_for(facts["reason_code"], estimate)
    steps = steps_left(estimate["steps"], facts["reason"]) if is_sought else ()
    return (
        *(with_message(step)["text"] for step in steps),
        *stored_steps(facts["reason"]),
    )


def visible_job(viewer: Viewer, job_id: int) -> Job:
    """Return one job for services, with owner, virtual cluster, tenant and estimate.

    Raises:
        NotFoundError: the job is unknown, or the viewer may not see it.
    """
    if not 0 < job_id < 2**63:
        raise no_such_job(job_id)
    job = (
        Job.objects.visible_to(viewer)
        .select_related("owner", "virtual_cluster", "tenant", "estimate")
        .filter(pk=job_id)
        .first()
    )
    if job is None:
        raise no_such_job(job_id)
    return job
