"""Sweeps: one job for each point of a grid, shown and stopped together."""

from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from portal.api.importers.documents import parse_document
from portal.api.importers.result import ImportRefusedError
from portal.api.job_bodies import ground_for
from portal.web.addresses import job_url
from portal.web.components import words
from portal.web.components.states import job_state
from portal.web.components.stats import Stat
from portal.web.once import once_of
from portal.web.submit import usual_cluster
from portal.web.submit_templates import sample_text
from portal.web.viewing import PageRequest, page
from scheduling.core.jobspec import InvalidDocumentError, parse
from scheduling.core.sweeps import MOST_JOBS, GridError, points, read_grid
from scheduling.models import Sweep
from scheduling.selectors.names import virtual_cluster_names
from scheduling.selectors.sweeps import SweepDetail, sweep_detail, sweep_for, sweeps_of
from scheduling.services.idempotency import IdempotencyConflictError
from scheduling.services.personal import template_for
from scheduling.services.sweeps import stop_sweep, submit_sweep
from tenants.errors import DomainError, FieldError, InvalidError
from tenants.roles import Permission

MOST_LISTED: Final = 50
MOST_TEXT: Final = 100_000
GRID: Final = "LR = 0.1, 0.01, 0.001\nSEED = 1, 2, 3\n"


@page
def new_sweep(request: PageRequest) -> HttpResponseBase:
    """The form; a POST submits all jobs at once, or says what is wrong."""
    if request.http.method != "POST":
        return _form(request, text=_beginning(request), grid=GRID)
    form = request.http.POST
    text, grid = form.get("yaml", "")[:MOST_TEXT], form.get("parameters", "")[:MOST_TEXT]
    most = form.get("max_parallel", "").strip()
    try:
        made = _submit(request, text.replace("\r\n", "\n"), grid, most)
    except IdempotencyConflictError as error:
        messages.error(
            request.http,
            "This form has already submitted a sweep. What it says now is another one: nothing "
            "was submitted. Send it again to submit that, too.",
        )
        return _form(request, text=text, grid=grid, most=most, status=error.status)
    except DomainError as error:
        return _form(
            request, text=text, grid=grid, most=most, faults=error.errors or (), status=422
        )
    messages.success(
        request.http, f"{words.plural(made.jobs, 'job is', 'jobs are')} in the queue."
    )
    return redirect("sweep", made.pk)


@require_safe
@page
def sweeps(request: PageRequest) -> HttpResponse:
    """The newest sweeps."""
    rows = list(sweeps_of(request.viewer)[:MOST_LISTED])
    return request.render(
        "sweeps/list.html", {"rows": [(row, _grid_in_words(row)) for row in rows]}
    )


@require_safe
@page
def sweep(request: PageRequest, pk: int) -> HttpResponse:
    """One sweep with the job of each point."""
    found = sweep_detail(request.viewer, pk)
    context = {
        "found": found,
        "sweep": found.sweep,
        "grid": _grid_in_words(found.sweep),
        "names": list(found.sweep.parameters),
        "stats": _stats(found),
        "jobs": [(job, job_url(job.id), list(job.point.items())) for job in found.jobs],
        "query": f"sweep={found.sweep.label}",
        "can_stop": found.live
        and request.viewer.can_stop(found.sweep.tenant_id, found.sweep.owner_id),
    }
    return request.render("sweeps/sweep.html", context)


@require_POST
@page
def stop_all(request: PageRequest, pk: int) -> HttpResponse:
    """End all jobs of a sweep."""
    found = sweep_for(request.viewer, pk)
    count = stop_sweep(sweep=found, viewer=request.viewer, now=request.now)
    messages.success(request.http, f"{words.plural(count, 'job', 'jobs')} asked to stop.")
    return HttpResponseRedirect(reverse("sweep", args=[pk]))


def _submit(request: PageRequest, text: str, grid: str, most: str) -> Sweep:
    once = once_of(request.http.POST)
    try:
        document: Any = parse_document(text)
        wanted = read_grid(grid)
    except ImportRefusedError as error:
        raise InvalidError(str(error), field="yaml", value="", remedy="Mend the text.") from None
    except GridError as error:
        raise InvalidError(str(error), field="parameters", value="", remedy=error.remedy) from None
    if not isinstance(document, dict):
        raise InvalidError("This is not a job.", field="yaml", value="", remedy="Write a job.")
    if most and not (most.isascii() and most.isdecimal() and len(most) < 5):
        raise InvalidError(
            "This is not a number of jobs.",
            field="max_parallel",
            value=most[:20],
            remedy="1 or more.",
        )
    sweep, _ = submit_sweep(
        viewer=request.viewer,
        document=document,
        grid=wanted,
        max_parallel=int(most) if most else None,
        ground=ground_for(request.viewer),
        now=request.now,
        idempotency_key=f"sweep:{once}" if once else "",
    )
    return sweep


def _form(
    request: PageRequest,
    *,
    text: str,
    grid: str,
    most: str = "",
    faults: tuple[FieldError, ...] = (),
    status: int = 200,
) -> HttpResponse:
    context = {
        "text": text,
        "grid": grid,
        "max_parallel": most,
        "faults": faults[:20],
        "jobs": _count(grid),
        "cost": _cost(text, grid),
        "most": MOST_JOBS,
    }
    return request.render("sweeps/new.html", context, status=status)


def _count(grid: str) -> int | None:
    try:
        return len(points(read_grid(grid)))
    except GridError:
        return None


def _cost(text: str, grid: str) -> str:
    """The most device-hours of all jobs together; empty where none of them has a time limit."""
    try:
        spec = parse(parse_document(text))
    except InvalidDocumentError:
        return ""
    jobs = _count(grid)
    if not jobs or not spec.max_duration:
        return ""
    devices = sum(role.instances * role.devices for role in spec.roles.values())
    return words.gpu_hours(jobs * devices * spec.max_duration / 3600)


def _beginning(request: PageRequest) -> str:
    saved = request.http.GET.get("saved", "")
    if saved.isascii() and saved.isdecimal() and len(saved) < 19:
        return template_for(request.viewer, int(saved)).text
    clusters = virtual_cluster_names(request.viewer, Permission.SUBMIT_JOBS)
    return sample_text("sweep", usual_cluster(request, ground_for(request.viewer), clusters))


def _grid_in_words(row: Sweep) -> str:
    return ", ".join(f"{name} ({len(values)})" for name, values in row.parameters.items())


def _stats(found: SweepDetail) -> tuple[Stat, ...]:
    held = sum(job.held for job in found.jobs)
    waiting = found.states.get("queued", 0) - held
    ended = {state: found.states.get(state, 0) for state in ("succeeded", "failed", "stopped")}
    running = found.live - waiting - held
    most = found.sweep.max_parallel
    return (
        Stat(
            label="Jobs",
            value=words.count(found.sweep.jobs),
            context=f"at most {words.count(most)} at a time" if most else "no limit at a time",
        ),
        Stat(label="On devices", value=words.count(running), context="running, or about to"),
        Stat(
            label=job_state("queued").word,
            value=words.count(waiting),
            context=f"and {words.count(held)} held until it is their turn" if held else "",
        ),
        Stat(label="Succeeded", value=words.count(ended["succeeded"])),
        Stat(
            label="Failed",
            value=words.count(ended["failed"]),
            context=f"{words.count(ended['stopped'])} stopped",
            tone="bad" if ended["failed"] else "",
        ),
    )
