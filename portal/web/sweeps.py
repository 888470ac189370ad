"""Sweeps: preview, display and stop of the jobs for all points of a grid."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.addresses import job_url
from portal.api.documents import read_document, round_config, submit_context_for
from portal.api.sweeps import sweep_options
from portal.web.components import words
from portal.web.components.states import job_state
from portal.web.components.stats import Stat
from portal.web.forms import once_of
from portal.web.job_documents import sample_text
from portal.web.submit import usual_cluster
from portal.web.submit_check import Fault
from portal.web.submit_panel import Panel, panel_of_draft, panel_of_faults
from portal.web.viewing import PageRequest, page
from scheduling.compat.result import ImportRefusedError
from scheduling.core.early_stopping import StopRule
from scheduling.core.objectives import Goal, Objective
from scheduling.core.sweeps import MOST_JOBS, Grid, GridError, SweepOptions, read_grid
from scheduling.jobs.models import Sweep
from scheduling.jobs.services.idempotency import IdempotencyConflictError
from scheduling.jobs.services.saved import template_for
from scheduling.sweeps.queries import SweepDetail, sweep_detail, sweep_for, sweeps_of
from scheduling.sweeps.services import plan_sweep, stop_sweep, submit_sweep
from tenants.errors import DomainError, FieldError, InvalidError
from workers.sweep_results import SweepResults, sweep_results

MOST_LISTED: Final = 50
MOST_COMPARED: Final = 4
MOST_TEXT: Final = 100_000
MOST_SHORT: Final = 100
GRID: Final = "LR = 0.1, 0.01, 0.001\nSEED = 1, 2, 3\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSweep:
    """Input of the sweep form; ``max_parallel`` is None if there is no limit."""

    document: Mapping[str, Any]
    grid: Grid
    max_parallel: int | None
    options: SweepOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTexts:
    """The fields of the form as typed."""

    yaml: str
    parameters: str
    max_parallel: str = ""
    samples: str = ""
    seed: str = ""
    metric: str = ""
    goal: str = Goal.MIN
    rule: str = ""
    first_step: str = ""
    reduction: str = ""

    @classmethod
    def of(cls, form: QueryDict) -> "SweepTexts":
        """Read the posted fields, each to its greatest length."""
        long = {"yaml", "parameters"}
        names = [field.name for field in fields(cls)]
        return cls(
            **{
                name: form.get(name, "")[: MOST_TEXT if name in long else MOST_SHORT]
                for name in names
            }
        )


def read_sweep(typed: SweepTexts) -> TypedSweep:
    """Read the fields of the form.

    Raises:
        InvalidError: one of them is not valid.
    """
    text, grid, most = typed.yaml, typed.parameters, typed.max_parallel
    try:
        document: Any = read_document(text.replace("\r\n", "\n"))
        wanted = read_grid(grid)
    except ImportRefusedError as error:
        raise InvalidError(
            str(error), field="yaml", value="", remedy=_("Correct the YAML.")
        ) from None
    except GridError as error:
        raise InvalidError(str(error), field="parameters", value="", remedy=error.remedy) from None
    if not isinstance(document, dict):
        raise InvalidError(
            "This is not a valid job.", field="yaml", value="", remedy=_("Enter a job in YAML.")
        )
    most = most.strip()
    if most and not (most.isascii() and most.isdecimal() and len(most) < 5):
        raise InvalidError(
            "This is not a valid number of jobs.",
            field="max_parallel",
            value=most[:20],
            remedy="Use 1 or more, or leave it empty for no limit.",
        )
    return TypedSweep(
        document=document,
        grid=wanted,
        max_parallel=int(most) if most else None,
        options=_options(typed),
    )


def _options(typed: SweepTexts) -> SweepOptions:
    metric = typed.metric.strip()
    early = {
        "rule": typed.rule,
        "first_step": _number("first_step", typed.first_step or "1"),
        "reduction": _number("reduction", typed.reduction or "3"),
    }
    return sweep_options(
        samples=_number("samples", typed.samples) if typed.samples.strip() else None,
        seed=_number("seed", typed.seed or "0"),
        objective=(metric, typed.goal) if metric else None,
        early=early if typed.rule else None,
    )


def _number(field: str, text: str) -> int:
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text)
    raise InvalidError(
        "This is not a valid number.",
        field=field,
        value=text,
        remedy=_("Use a number without a sign."),
    )


def preview_sweep(request: PageRequest, typed: TypedSweep) -> Panel:
    """Plan all jobs of a sweep together.

    Raises:
        DomainError: the sweep is not valid.
    """
    found = plan_sweep(
        viewer=request.viewer,
        document=typed.document,
        grid=typed.grid,
        max_parallel=typed.max_parallel,
        options=typed.options,
        submit_context=submit_context_for(request.viewer),
        config=round_config(),
        now=request.now,
    )
    panel = panel_of_draft(found.draft, found.plan, found.jobs)
    most = typed.max_parallel
    if most is None or most >= found.jobs:
        return panel
    note = _("At most %(most)s of %(whole)s jobs run at a time. The others are on hold.") % {
        "most": most,
        "whole": found.jobs,
    }
    return replace(panel, warnings=(note, *panel.warnings))


def panel_of_errors(error: DomainError) -> Panel:
    """Build the panel for a sweep that cannot be submitted."""
    return panel_of_faults(
        [
            Fault(
                field=fault.field,
                path=fault.field,
                message=fault.message,
                remedy=fault.remedy,
                use="",
                line=None,
            )
            for fault in error.errors
        ]
    )


@page
def new_sweep(request: PageRequest) -> HttpResponseBase:
    """Show the form. A POST submits all jobs at once, or shows a preview or the errors."""
    if request.http.method != "POST":
        return _form(request, SweepTexts(yaml=_beginning(request), parameters=GRID))
    typed = SweepTexts.of(request.http.POST)
    if request.http.POST.get("change") == "check":
        return _form(request, typed, panel=_panel(request))
    try:
        made = _submit(request, read_sweep(typed))
    except IdempotencyConflictError as error:
        messages.error(
            request.http,
            gettext(
                "This form has already submitted a sweep, and its content has changed since. "
                "Nothing was submitted. Submit again to add another sweep."
            ),
        )
        return _form(request, typed, status=error.status)
    except DomainError as error:
        return _form(request, typed, faults=error.errors or (), status=422)
    messages.success(
        request.http,
        ngettext("%(count)s job queued.", "%(count)s jobs queued.", made.jobs)
        % {"count": words.count(made.jobs)},
    )
    return redirect("sweep", made.pk)


@require_POST
@page
def check(request: PageRequest) -> HttpResponse:
    """Show the preview of the typed text; nothing is stored."""
    context = {"panel": _panel(request)}
    return request.render("sweeps/_preview.html", context)


@require_safe
@page
def sweeps(request: PageRequest) -> HttpResponse:
    rows = list(sweeps_of(request.viewer)[:MOST_LISTED])
    return request.render(
        "sweeps/list.html", {"rows": [(row, _grid_in_words(row)) for row in rows]}
    )


@require_safe
@page
def sweep(request: PageRequest, pk: int) -> HttpResponse:
    """Show one sweep with the job of each point."""
    found = sweep_detail(request.viewer, pk)
    results = sweep_results(found, now=request.now)
    best = results.best
    ranked = [run.job.id for run in results.runs if run.best is not None]
    context = {
        "found": found,
        "sweep": found.sweep,
        "grid": _points_in_words(found.sweep, results.options),
        "names": list(found.sweep.parameters),
        "stats": _stats(found, results),
        "objective": results.options.objective,
        "early_stop": results.options.early_stop,
        "runs": [
            (run, job_url(run.job.id), list(run.job.point.items()), _value(run.best))
            for run in results.runs
        ],
        "best": best,
        "compared": ",".join(map(str, ranked[:MOST_COMPARED])) if len(ranked) > 1 else "",
        "query": f"sweep={found.sweep.label}",
        "can_stop": found.live
        and request.viewer.can_stop(found.sweep.tenant_id, found.sweep.owner_id),
    }
    return request.render("sweeps/sweep.html", context)


@require_POST
@page
def stop_all(request: PageRequest, pk: int) -> HttpResponse:
    found = sweep_for(request.viewer, pk)
    count = stop_sweep(sweep=found, viewer=request.viewer, now=request.now)
    messages.success(
        request.http,
        ngettext("Stop requested for %(count)s job.", "Stop requested for %(count)s jobs.", count)
        % {"count": words.count(count)},
    )
    return HttpResponseRedirect(reverse("sweep", args=[pk]))


def _submit(request: PageRequest, typed: TypedSweep) -> Sweep:
    once = once_of(request.http.POST)
    sweep, _ = submit_sweep(
        viewer=request.viewer,
        document=typed.document,
        grid=typed.grid,
        max_parallel=typed.max_parallel,
        options=typed.options,
        submit_context=submit_context_for(request.viewer),
        now=request.now,
        idempotency_key=f"sweep:{once}" if once else "",
    )
    return sweep


def _form(
    request: PageRequest,
    typed: SweepTexts,
    *,
    panel: Panel | None = None,
    faults: tuple[FieldError, ...] = (),
    status: int = 200,
) -> HttpResponse:
    context = {
        "typed": typed,
        "goals": [(Goal.MIN, gettext("lower is better")), (Goal.MAX, gettext("higher is better"))],
        "rules": [
            ("", gettext("none")),
            (StopRule.MEDIAN, gettext("median rule")),
            (StopRule.ASHA, gettext("successive halving (ASHA)")),
        ],
        "faults": faults[:20],
        "panel": panel,
        "most": MOST_JOBS,
    }
    return request.render("sweeps/new.html", context, status=status)


def _panel(request: PageRequest) -> Panel:
    try:
        typed = read_sweep(SweepTexts.of(request.http.POST))
        return preview_sweep(request, typed)
    except DomainError as error:
        return panel_of_errors(error)


def _beginning(request: PageRequest) -> str:
    saved = request.http.GET.get("saved", "")
    if saved.isascii() and saved.isdecimal() and len(saved) < 19:
        return template_for(request.viewer, int(saved)).text
    return sample_text("sweep", usual_cluster(request.viewer, submit_context_for(request.viewer)))


def _points_in_words(row: Sweep, options: SweepOptions) -> str:
    if options.samples is None:
        return _grid_in_words(row)
    return gettext("random search, seed %(seed)s: %(names)s") % {
        "seed": options.seed,
        "names": ", ".join(row.parameters),
    }


def _grid_in_words(row: Sweep) -> str:
    return ", ".join(f"{name} ({len(values)})" for name, values in row.parameters.items())


def _value(value: float | None) -> str:
    return words.DASH if value is None else f"{value:.4g}"


def _best_tile(results: SweepResults, objective: Objective) -> Stat:
    best = results.best
    return Stat(
        label=gettext("Best %(metric)s") % {"metric": objective.metric},
        value=_value(best.best if best else None),
        context=gettext("%(job)s, step %(step)s")
        % {"job": best.job.name, "step": words.count(best.step or 0)}
        if best
        else gettext("no value yet"),
        url=job_url(best.job.id) if best else "",
    )


def _stats(found: SweepDetail, results: SweepResults) -> tuple[Stat, ...]:
    held = sum(job.held for job in found.jobs)
    waiting = found.states.get("queued", 0) - held
    ended = {state: found.states.get(state, 0) for state in ("succeeded", "failed", "stopped")}
    running = found.live - waiting - held
    most = found.sweep.max_parallel
    objective = results.options.objective
    early = sum(run.ended_early for run in results.runs)
    hours = sum(run.hours for run in results.runs)
    return (
        *((_best_tile(results, objective),) if objective else ()),
        Stat(
            label=gettext("Jobs"),
            value=words.count(found.sweep.jobs),
            context=gettext("at most %(most)s at a time") % {"most": words.count(most)}
            if most
            else gettext("no concurrency limit"),
        ),
        Stat(
            label=gettext("Holding devices"),
            value=words.count(running),
            context=gettext("starting or running"),
        ),
        Stat(
            label=job_state("queued").word,
            value=words.count(waiting),
            context=gettext("plus %(held)s on hold (concurrency limit)")
            % {"held": words.count(held)}
            if held
            else "",
        ),
        Stat(label=gettext("Succeeded"), value=words.count(ended["succeeded"])),
        *(
            (Stat(label=gettext("Ended early"), value=words.count(early)),)
            if results.options.early_stop
            else ()
        ),
        Stat(label=gettext("Device-hours"), value=words.gpu_hours(hours)),
        Stat(
            label=gettext("Failed"),
            value=words.count(ended["failed"]),
            context=gettext("%(stopped)s stopped") % {"stopped": words.count(ended["stopped"])},
            tone="bad" if ended["failed"] else "",
        ),
    )
