"""The panel next to the form: the preview of the submit."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.addresses import job_url
from portal.i18n import gettext_lazy, is_english, translated
from portal.web.components import words
from portal.web.submit_check import Fault, SubmitCheck
from scheduling.compat.formats import TITLES
from scheduling.compat.result import Imported
from scheduling.core.forecast import is_open
from scheduling.core.jobspec import JobClass
from scheduling.core.round_result import PlacedMember
from scheduling.estimates.services.submit_plans import MOST_TASKS, Fits, JobPlan
from scheduling.jobs.queries.job_columns import wants_in_words
from scheduling.jobs.validation import ValidatedJob
from scheduling.parallelism.drafts import DraftGrids
from tenants.clock import database_now
from tessera.results import Remarks

MOST_NODES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Content of the panel.

    Attributes:
        verdict: one or two words, next to ``icon`` in ``tone``.
        headline: the number or the sentence in large letters.
        summary: the reason, in one or two sentences.
        code: the reason code, where there is one.
        facts: names and values.
        warnings: deviations from the document.
        remarks: deviations from another system's document, under three headings.
        system: the other system of the document, if any.
        faults: faults to fix first.
        blocked_by: jobs in the way and their pages, as far as the viewer may see them.
        blocked_by_others: number of further blocking jobs.
        unblock: remedies.
        alternatives: sentences, and the form's changes for each, as JSON.
        grids: grids of a hybrid job; None for other jobs.
    """

    verdict: str
    tone: str
    icon: str
    headline: str
    summary: str = ""
    code: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    remarks: tuple[Remarks, ...] = ()
    system: str = ""
    blocked_by: tuple[tuple[int, str], ...] = ()
    blocked_by_others: int = 0
    unblock: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, str], ...] = ()
    faults: tuple[Fault, ...] = ()
    grids: DraftGrids | None = None


_VERDICTS: Final = {
    Fits.NOW: (
        gettext_lazy("Fits now"),
        "ok",
        "succeeded",
        gettext_lazy("Starts in the next round"),
    ),
    Fits.LATER: (
        gettext_lazy("Must wait"),
        "busy",
        "clock",
        gettext_lazy("No start estimate yet"),
    ),
    Fits.NEVER: (
        gettext_lazy("Does not fit"),
        "bad",
        "failed",
        gettext_lazy("The job cannot start in this virtual cluster"),
    ),
}


def panel_of(
    checked: SubmitCheck, plan: JobPlan | None = None, grids: DraftGrids | None = None
) -> Panel:
    """Build the panel for a checked text.

    Args:
        checked: the text and its faults.
        plan: plan of the job; None if not requested.
        grids: grids of a hybrid job; None for other jobs.
    """
    imported = checked.typed.imported
    tasks = len(imported.specs) if imported is not None else 1
    found = (
        panel_of_draft(checked.draft, plan, tasks)
        if checked.draft
        else panel_of_faults(checked.faults)
    )
    return replace(
        found,
        grids=grids,
        warnings=(*_several(imported), *found.warnings),
        remarks=imported.remarks if imported else (),
        system=TITLES[imported.format] if imported else "",
    )


def _several(imported: Imported | None) -> tuple[str, ...]:
    """Build the note that a document of another system becomes several jobs."""
    if imported is None or not imported.more:
        return ()
    number = len(imported.specs)
    return (
        _(
            "The script creates %(number)s jobs, one per task of the array. The form shows "
            "the first job."
        )
        % {"number": number},
    )


def panel_of_faults(faults: Sequence[Fault]) -> Panel:
    """Build the panel for an invalid text."""
    number = len(faults)
    return Panel(
        verdict=_("Not valid"),
        tone="bad",
        icon="failed",
        headline=_("%(number)s to fix") % {"number": words.plural(number, "error", "errors")},
        summary=_("Correct the errors, then submit."),
        faults=tuple(faults),
    )


def panel_of_draft(draft: ValidatedJob, plan: JobPlan | None, tasks: int) -> Panel:
    """Build the panel for ``tasks`` equal jobs, of which one was checked and all were planned."""
    if plan is None:
        return Panel(
            verdict=_("Valid"),
            tone="ok",
            icon="succeeded",
            headline=wants_in_words(draft.demand),
            summary=_("The next scheduling round decides the placement."),
            facts=_facts(draft, tasks),
            warnings=draft.warnings,
        )
    verdict, tone, icon, headline = _VERDICTS[plan.fits]
    if plan.fits is Fits.LATER and plan.starts is not None:
        p10, _p50, p90 = plan.starts
        latest = math.inf if is_open(p90) else p90
        when = words.estimate(p10, latest, database_now(), soonest=plan.gate)
        headline = _("Starts %(p10)s") % {"p10": when}
    elif plan.fits is Fits.LATER and plan.no_starts:
        headline = translated(plan.no_starts)
    if tasks > 1:
        headline = _of_tasks(headline, plan, tasks)
    return Panel(
        verdict=verdict,
        tone=tone,
        icon=icon,
        headline=headline,
        summary=_where(plan, tasks),
        code=plan.code,
        blocked_by=tuple((number, job_url(number)) for number in plan.blocked_by),
        blocked_by_others=plan.blocked_by_others,
        unblock=plan.unblock,
        facts=_facts(draft, tasks),
        warnings=plan.warnings,
        alternatives=tuple(
            (each.text, json.dumps(_as_typed(each.changes))) for each in plan.alternatives
        ),
    )


def _of_tasks(headline: str, plan: JobPlan, tasks: int) -> str:
    """Describe the start of an array or a sweep: the jobs that start in the next round."""
    if plan.tasks_now == tasks:
        return _("All %(whole)s jobs start in the next round") % {"whole": tasks}
    if plan.tasks_now == MOST_TASKS:
        return _("At least %(some)s of %(whole)s jobs start in the next round") % {
            "some": plan.tasks_now,
            "whole": tasks,
        }
    if plan.tasks_now:
        return _("%(some)s of %(whole)s jobs start in the next round") % {
            "some": plan.tasks_now,
            "whole": tasks,
        }
    return _("First of %(whole)s jobs: %(when)s") % {
        "whole": tasks,
        "when": _in_a_sentence(str(headline)),
    }


def _where(plan: JobPlan, tasks: int) -> str:
    """Describe the devices of a job that starts now, or the reason why it does not."""
    if tasks == 1:
        return _cells(plan.placement) if plan.placement else plan.text
    if not plan.placement:
        return plan.text
    first = _cells(plan.placement)
    text = _("First job: %(where)s") % {"where": _in_a_sentence(first)}
    if plan.fits is Fits.LATER:
        text += _(" The others wait: %(reason)s") % {"reason": translated(plan.text)}
    return text


def _in_a_sentence(text: str) -> str:
    """Return the text with a lower first letter for use behind a colon; only in English."""
    return text[:1].lower() + text[1:] if is_english() else text


def _cells(placement: Sequence[PlacedMember]) -> str:
    """Format cells as ``On node-1 (devices 0, 1) and node-2 (devices 4, 5).``"""
    by_node: dict[str, list[int]] = {}
    for member in placement:
        by_node.setdefault(member.node, []).extend(member.device_indices)
    named = [
        node
        if not held
        else (
            _("%(node)s (device %(index)s)")
            if len(held) == 1
            else _("%(node)s (devices %(index)s)")
        )
        % {"node": node, "index": _span(sorted(held))}
        for node, held in by_node.items()
    ]
    shown = named[:MOST_NODES]
    more = ""
    if len(named) > MOST_NODES:
        more = " " + _("and %(named)s more nodes") % {"named": len(named) - MOST_NODES}
    return _("On %(shown)s%(more)s.") % {"shown": ", ".join(shown), "more": more}


def _span(indices: Sequence[int]) -> str:
    if len(indices) > 2 and indices[-1] - indices[0] == len(indices) - 1:
        return f"{indices[0]} {words.DASH} {indices[-1]}"
    return ", ".join(str(index) for index in indices)


def _as_typed(changes: Mapping[str, Any]) -> dict[str, str]:
    """Format changes as texts of the form's fields."""
    return {
        path: ", ".join(map(str, value)) if isinstance(value, list) else _text(value)
        for path, value in changes.items()
    }


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _facts(draft: ValidatedJob, tasks: int) -> tuple[tuple[str, str], ...]:
    """Return devices and cost of the job; for an array or a sweep of all jobs, or of each."""
    spec, demand = draft.spec, draft.demand
    is_free = draft.job_class is JobClass.OPPORTUNISTIC
    cluster = draft.virtual_cluster.name
    wants = translated(wants_in_words(demand))
    facts = [
        (
            _("Requested"),
            wants
            if tasks == 1
            else _("%(whole)s jobs, each %(wants)s") % {"whole": tasks, "wants": wants},
        ),
        (
            _("Quota"),
            _("none (opportunistic)")
            if is_free
            else _("%(cluster)s guarantee") % {"cluster": cluster},
        ),
        (
            _("Can be preempted by"),
            _("any guaranteed job that needs the devices")
            if is_free
            else _("priority above %(priority)s in %(cluster)s")
            % {"priority": draft.priority, "cluster": cluster},
        ),
    ]
    if demand.instances > 1:
        in_all = words.plural(demand.devices, "device", "devices")
        members = _("%(instances)s members, %(in_all)s total") % {
            "instances": words.count(demand.instances),
            "in_all": in_all,
        }
        facts.insert(
            1, (_("Gang"), members if tasks == 1 else _("each %(remark)s") % {"remark": members})
        )
    if spec.max_duration:
        facts += _ends_and_costs(demand.devices, spec.max_duration, tasks)
    if draft.after:
        facts.append((_("Depends on jobs"), ", ".join(str(number) for number in draft.after)))
    return tuple(facts)


def _ends_and_costs(devices: int, seconds: int, tasks: int) -> list[tuple[str, str]]:
    """Return the latest end, and the maximum device-hours of all jobs together."""
    most = devices * seconds / 3600
    ends = _("at most %(max_duration)s after the start") % {
        "max_duration": words.duration(seconds)
    }
    if tasks == 1:
        return [
            (_("Latest end"), ends),
            (_("Cost"), _("at most %(most)s device-hours") % {"most": words.gpu_hours(most)}),
        ]
    total = _("at most %(most)s device-hours") % {"most": words.gpu_hours(most * tasks)}
    return [
        (_("Latest end"), _("each %(remark)s") % {"remark": ends}),
        (
            _("Cost"),
            _("%(total)s: %(whole)s jobs of %(each)s")
            % {"total": total, "whole": tasks, "each": words.gpu_hours(most)},
        ),
    ]
