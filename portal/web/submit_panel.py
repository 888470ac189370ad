"""The panel beside the form: what would happen if the job were sent as it is."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.addresses import job_url
from portal.api.importers.formats import TITLES
from portal.api.importers.result import Imported
from portal.i18n import said
from portal.web.components import words
from portal.web.submit_check import Checked, Fault
from scheduling.core.forecast.horizon import is_open
from scheduling.core.jobspec import JobClass
from scheduling.core.values import PlacedMember
from scheduling.selectors.wants import wants_in_words
from scheduling.services.drafts import Draft
from scheduling.services.planning import MOST_TASKS, Fits, JobPlan
from tenants.clock import database_now
from tessera.results import Remarks

MOST_NODES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What the panel says.

    Attributes:
        verdict: one or two words, beside ``icon`` in ``tone``.
        headline: the number or the sentence in large letters.
        says: why, in a sentence or two.
        code: the reason code, where there is one.
        facts: names and values.
        warnings: what will be different from what the document asks for.
        remarks: what differs from another system's document, under its three headings.
        system: whose document it is, where it is another system's.
        faults: what has to be fixed first.
        blocked_by: jobs in the way and their pages, as far as the viewer may see them.
        blocked_by_others: how many more there are.
        unblock: what would help.
        alternatives: sentences, and the form's changes that each stands for, as JSON.
    """

    verdict: str
    tone: str
    icon: str
    headline: str
    says: str = ""
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


_VERDICTS: Final = {
    Fits.NOW: ("Fits now", "ok", "succeeded", "Starts in the next round"),
    Fits.LATER: ("Has to wait", "busy", "clock", "No start estimate yet"),
    Fits.NEVER: ("Never", "bad", "failed", "It cannot start here"),
}


def panel_of(checked: Checked, plan: JobPlan | None = None) -> Panel:
    """The panel for a checked text.

    Args:
        checked: the text and its faults.
        plan: what would become of it; None while nobody has asked.
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
        warnings=(*_several(imported), *found.warnings),
        remarks=imported.remarks if imported else (),
        system=TITLES[imported.format] if imported else "",
    )


def _several(imported: Imported | None) -> tuple[str, ...]:
    """The note that a document of another system becomes several jobs."""
    if imported is None or not imported.more:
        return ()
    number = len(imported.specs)
    return (
        f"It becomes {number} jobs, one for each task of the array; the form shows the first.",
    )


def panel_of_faults(faults: Sequence[Fault]) -> Panel:
    """The panel for what cannot be submitted."""
    number = len(faults)
    return Panel(
        verdict="Not valid",
        tone="bad",
        icon="failed",
        headline=f"{words.plural(number, 'error', 'errors')} to fix",
        says="Correct the errors, then submit.",
        faults=tuple(faults),
    )


def panel_of_draft(draft: Draft, plan: JobPlan | None, tasks: int) -> Panel:
    """The panel for ``tasks`` equal jobs, of which one was checked and all were planned."""
    if plan is None:
        return Panel(
            verdict="Valid",
            tone="ok",
            icon="succeeded",
            headline=wants_in_words(draft.demand),
            says="The next round decides where it runs.",
            facts=_facts(draft, tasks),
            warnings=draft.warnings,
        )
    verdict, tone, icon, headline = _VERDICTS[plan.fits]
    if plan.fits is Fits.LATER and plan.starts is not None:
        p10, _p50, p90 = plan.starts
        latest = math.inf if is_open(p90) else p90
        when = words.estimate(p10, latest, database_now(), soonest=plan.gate)
        headline = f"Starts {when}"
    elif plan.fits is Fits.LATER and plan.no_starts:
        headline = plan.no_starts
    if tasks > 1:
        headline = _of_tasks(headline, plan, tasks)
    return Panel(
        verdict=verdict,
        tone=tone,
        icon=icon,
        headline=headline,
        says=_where(plan, tasks),
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
    """When an array or a sweep starts: how many of its jobs start in the next round."""
    if plan.tasks_now == tasks:
        return f"All {tasks} jobs start in the next round"
    if plan.tasks_now == MOST_TASKS:
        return f"At least {plan.tasks_now} of {tasks} jobs start in the next round"
    if plan.tasks_now:
        return f"{plan.tasks_now} of {tasks} jobs start in the next round"
    return f"First of {tasks} jobs: {headline[:1].lower()}{headline[1:]}"


def _where(plan: JobPlan, tasks: int) -> str:
    """The devices of a job that starts now, or why it does not."""
    if tasks == 1:
        return _cells(plan.placement) if plan.placement else plan.text
    if not plan.placement:
        return plan.text
    first = _cells(plan.placement)
    waits = f" The others wait: {plan.text}" if plan.fits is Fits.LATER else ""
    return f"First job: {first[:1].lower()}{first[1:]}{waits}"


def _cells(placement: Sequence[PlacedMember]) -> str:
    """``On node-1 (devices 0, 1) and node-2 (devices 4, 5).``"""
    by_node: dict[str, list[int]] = {}
    for member in placement:
        by_node.setdefault(member.node, []).extend(member.device_indices)
    named = [
        (_("%(node)s (device %(index)s)") if len(held) == 1 else _("%(node)s (devices %(index)s)"))
        % {"node": node, "index": _span(sorted(held))}
        for node, held in by_node.items()
    ]
    shown = named[:MOST_NODES]
    more = ""
    if len(named) > MOST_NODES:
        more = " " + _("and %(named)s more nodes") % {"named": len(named) - MOST_NODES}
    return f"On {', '.join(shown)}{more}."


def _span(indices: Sequence[int]) -> str:
    if len(indices) > 2 and indices[-1] - indices[0] == len(indices) - 1:
        return f"{indices[0]} {words.DASH} {indices[-1]}"
    return ", ".join(str(index) for index in indices)


def _as_typed(changes: Mapping[str, Any]) -> dict[str, str]:
    """Changes as the form's fields take them."""
    return {
        path: ", ".join(map(str, value)) if isinstance(value, list) else _text(value)
        for path, value in changes.items()
    }


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _facts(draft: Draft, tasks: int) -> tuple[tuple[str, str], ...]:
    """Devices and cost of the job; of an array or a sweep those of all jobs, or of each."""
    spec, demand = draft.spec, draft.demand
    is_free = draft.job_class is JobClass.OPPORTUNISTIC
    cluster = draft.virtual_cluster.name
    wants = wants_in_words(demand)
    facts = [
        ("Asks for", wants if tasks == 1 else f"{tasks} jobs, each {said(wants)}"),
        ("Counts", "against no guarantee" if is_free else f"against {cluster}'s guarantee"),
        (
            "Preempted",
            "when somebody with a claim needs the devices"
            if is_free
            else f"only by a higher priority than {draft.priority} in {cluster}",
        ),
    ]
    if demand.instances > 1:
        in_all = words.plural(demand.devices, "device", "devices")
        members = f"{words.count(demand.instances)} members, {in_all} in all"
        facts.insert(1, ("Gang", members if tasks == 1 else f"each {members}"))
    if spec.max_duration:
        facts += _ends_and_costs(demand.devices, spec.max_duration, tasks)
    if draft.after:
        facts.append(("After", ", ".join(str(number) for number in draft.after)))
    return tuple(facts)


def _ends_and_costs(devices: int, seconds: int, tasks: int) -> list[tuple[str, str]]:
    """The latest end, and the most device-hours of all jobs together."""
    most = devices * seconds / 3600
    ends = f"{words.duration(seconds)} after its start at the latest"
    if tasks == 1:
        return [("Ends", ends), ("Costs", f"at most {words.gpu_hours(most)} device-hours")]
    total = f"at most {words.gpu_hours(most * tasks)} device-hours"
    return [
        ("Ends", f"each {ends}"),
        ("Costs", f"{total}: {tasks} jobs of {words.gpu_hours(most)}"),
    ]
