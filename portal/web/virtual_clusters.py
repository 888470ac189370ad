"""Virtual clusters: the list, and one with its shape, its use and its free cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import npgettext, pgettext

from portal.i18n import gettext_lazy, word
from portal.web.audit import shown_entries
from portal.web.cluster_drawing import tenants_in_order, vc_uses
from portal.web.components import words
from portal.web.components.bars import VcBarUse
from portal.web.components.mapvalues import DeviceMap
from portal.web.components.stats import Stat
from portal.web.policy_fields import policy_names, policy_summary
from portal.web.vc_drawings import CellTrees, assignment_map, cell_trees, owners_of
from portal.web.vc_forms import CapsForm, PolicyForm, counts_in_words
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries import cluster as selected
from scheduling.clusters.queries.cluster import cluster_snapshot
from scheduling.clusters.queries.current_engine import Fit, FitRow
from scheduling.clusters.queries.recommendations import WINDOW, recommended_shape
from scheduling.clusters.queries.shapes import shape_in_force
from scheduling.clusters.queries.vc_cells import VcRoom, virtual_cluster_room
from scheduling.clusters.queries.virtual_clusters import (
    VcDetail,
    list_virtual_clusters,
    shape_rows,
    spec_in_force,
    tenants_of_virtual_clusters,
    virtual_cluster_detail,
    virtual_cluster_for,
)
from scheduling.core.cells.feasibility import AssignedCell
from scheduling.topology.current import TopologyNow, current_topology
from tenants.roles import Permission
from tenants.selectors import audit_page

LAST_CHANGES: Final = 5
FIT_WORDS: Final = {
    Fit.NOW: ("tick", "ok", gettext_lazy("starts now")),
    Fit.LATER: ("clock", "busy", gettext_lazy("starts when jobs of the virtual cluster end")),
    Fit.BORROW: (
        "refresh",
        "warn",
        gettext_lazy("runs only as an opportunistic job on idle devices"),
    ),
    Fit.NEVER: ("minus", "", gettext_lazy("never fits")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCell:
    """One result of the fits table: icon and word, not only a colour."""

    word: str
    icon: str
    tone: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FitLine:
    """Results for one device type; None if the size is too large for it."""

    device_type: str
    cells: tuple[FitCell | None, ...]


@page
def virtual_clusters(asked: PageRequest) -> HttpResponseBase:
    """Show the list, with the bars on one scale."""
    cluster = cluster_snapshot(asked.viewer, now=asked.now)
    topology = current_topology()
    rows = list_virtual_clusters(asked.viewer, cluster.virtual_clusters)
    uses = {use.id: use for use in cluster.virtual_clusters}
    tenants = tenants_in_order(asked.viewer)
    context = {
        "rows": [(row, counts_in_words(topology, row.cells)) for row in rows],
        "uses": vc_uses(uses.values(), tenants),
        "stats": _list_stats(vc_uses(uses.values(), tenants), cluster.unassigned),
        "can_edit": asked.viewer.can(Permission.EDIT_VC),
        "has_cells": bool(topology.chains),
    }
    template = "_list" if asked.wants_part else "list"
    return asked.render(f"virtual_clusters/{template}.html", context)


@page
def virtual_cluster(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    detail = virtual_cluster_detail(asked.viewer, vc_id)
    if asked.wants_part:
        return asked.render("virtual_clusters/_use.html", use_context(asked, detail))
    proposed = asked.http.GET.get("policy", "")
    changes: dict[str, Any] = {}
    if proposed in policy_names():
        changes["policy_form"] = PolicyForm.of(proposed, {}, detail.version)
    return asked.render("virtual_clusters/detail.html", detail_context(asked, detail, **changes))


@page
def past(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Show the shape that past jobs needed; loaded after the rest of the page."""
    cluster = virtual_cluster_for(asked.viewer, vc_id)
    topology = current_topology()
    shape = shape_rows(topology, spec_in_force(topology), cluster.name)
    may_edit = asked.viewer.can(Permission.EDIT_VC, cluster.tenant_id)
    context = {
        "recommended": recommended_shape(cluster.pk, shape, now=asked.now),
        "vc_id": cluster.pk,
        "can_try": may_edit and cluster.archived_at is None,
    }
    return asked.render("virtual_clusters/_recommended.html", context)


@page
def room(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Show cells and the jobs that fit them, from the engine; loaded after the page."""
    found = virtual_cluster_room(asked.viewer, vc_id)
    sizes, fits = fits_table(found.fits)
    context = {"room": found, "sizes": sizes, "fits": fits, "trees": _trees(asked, found)}
    return asked.render("virtual_clusters/_room.html", context)


def detail_context(asked: PageRequest, detail: VcDetail, **changes: Any) -> dict[str, Any]:
    """Return the context of the page of one virtual cluster; ``changes`` replace parts of it."""
    return {
        **use_context(asked, detail),
        "rows": detail.shape,
        "past_days": WINDOW.days,
        "chains": sorted({row.device_type for row in detail.shape if row.count}),
        "assignment": _assignment(asked, detail) if detail.can_edit else None,
        "policy_form": PolicyForm.of(detail.policy, detail.policy_args, detail.version),
        "policy_summary": policy_summary(detail.policy),
        "caps_form": CapsForm(initial={"version": detail.version, **detail.columns()}),
        "changes": _changes(asked, detail),
        "is_archived": detail.archived_at is not None,
        **changes,
    }


def use_context(asked: PageRequest, detail: VcDetail) -> dict[str, Any]:
    """Return the context of the live part: numbers, bar and people."""
    tenants = tenants_in_order(asked.viewer)
    return {
        "detail": detail,
        "vc": detail.use,
        "stats": _stats(detail),
        "uses": vc_uses([detail.use], tenants, linked=False),
    }


def fits_table(rows: Sequence[FitRow]) -> tuple[tuple[int, ...], tuple[FitLine, ...]]:
    """Build the table with sizes as columns and device types as lines."""
    sizes = tuple(sorted({size for row in rows for size in row.sizes}))
    lines = []
    for row in rows:
        answers = dict(zip(row.sizes, row.fits, strict=True))
        lines.append(
            FitLine(
                device_type=row.device_type,
                cells=tuple(_fit_cell(answers.get(size)) for size in sizes),
            )
        )
    return sizes, tuple(lines)


def drawn_assignment(
    asked: PageRequest,
    topology: TopologyNow,
    assigned: Sequence[AssignedCell],
    *,
    own: str = "",
    label: str = "",
    own_tenant: str = "",
) -> DeviceMap:
    """Draw the certificate; only for those who may see every virtual cluster."""
    tenants = tenants_in_order(asked.viewer)
    names = dict(tenants_of_virtual_clusters(asked.viewer))
    names.setdefault(own, own_tenant)
    missing: Mapping[str, str] = {cell.vc: "" for cell in assigned if cell.vc not in names}
    owners = owners_of({**names, **missing}, tenants, own=own, label=label or own)
    return assignment_map(topology, assigned, owners)


def _assignment(asked: PageRequest, detail: VcDetail) -> DeviceMap | None:
    topology = current_topology()
    assigned = shape_in_force(topology)
    return drawn_assignment(asked, topology, assigned) if topology.chains else None


def _trees(asked: PageRequest, found: VcRoom) -> CellTrees:
    tenants = tenants_in_order(asked.viewer)
    return cell_trees(current_topology(), found.cells, tenants, tenant=found.tenant)


def _changes(asked: PageRequest, detail: VcDetail) -> Any:
    if not asked.viewer.can(Permission.READ_AUDIT, detail.use.tenant_id):
        return None
    found = audit_page(
        asked.viewer,
        limit=LAST_CHANGES,
        object_type="virtualcluster",
        object_id=str(detail.use.id),
    )
    return shown_entries(found.rows)


def _fit_cell(fit: Fit | None) -> FitCell | None:
    if fit is None:
        return None
    icon, tone, summary = FIT_WORDS[fit]
    # A context, since other pages use "never" for past events: a token that was never used.
    shown = pgettext("job size", "never") if fit is Fit.NEVER else word(fit.value)
    return FitCell(word=shown, icon=icon, tone=tone, summary=summary)


def _stats(detail: VcDetail) -> tuple[Stat, ...]:
    use = detail.use
    unused = use.guarantee - use.used
    lent = _(", %(lent)s of them lent") % {"lent": words.count(use.lent)} if use.lent else ""
    return (
        Stat(
            label=_("In use"),
            value=words.count(use.used),
            unit=_("of %(guarantee)s guaranteed") % {"guarantee": words.count(use.guarantee)},
            context=_("%(unused)s not in use%(lent)s")
            % {"unused": words.count(unused), "lent": lent}
            if unused > 0
            else _all_words(use),
        ),
        Stat(
            label=_("Borrowed"),
            value=words.count(use.borrowed),
            unit=npgettext("count", "device", "devices", use.borrowed),
            context=_borrow_words(detail),
        ),
        Stat(
            label=_("Queued"),
            value=words.count(use.queued),
            unit=npgettext("count", "device", "devices", use.queued),
            context=_("requested by %(queued_jobs)s")
            % {"queued_jobs": words.plural(use.queued_jobs, "job", "jobs")}
            if use.queued_jobs
            else _("none queued"),
        ),
        Stat(
            label=_("Unavailable"),
            value=words.count(use.unhealthy + use.cordoned),
            unit=_("of the guarantee"),
            context=_("%(unhealthy)s unhealthy, %(cordoned)s cordoned")
            % {"unhealthy": words.count(use.unhealthy), "cordoned": words.count(use.cordoned)}
            if use.unhealthy or use.cordoned
            else _("full guarantee available"),
            tone="warn" if use.unhealthy else "",
        ),
        Stat(
            label=_("Jobs"),
            value=words.count(use.running_jobs),
            unit=_("holding devices"),
            context=words.plural(len(detail.people), "person", "people"),
        ),
    )


def _all_words(use: selected.VcUse) -> str:
    return _("all") if use.guarantee else _("no guarantee")


def _borrow_words(detail: VcDetail) -> str:
    most = detail.max_opportunistic_devices
    return (
        _("at most %(most)s") % {"most": words.count(most)}
        if most is not None
        else _("no limit; reclaimable")
    )


def _list_stats(uses: Iterable[VcBarUse], unassigned: Mapping[str, int]) -> tuple[Stat, ...]:
    uses = tuple(uses)
    guarantee = sum(use.guarantee for use in uses)
    used = sum(use.used for use in uses)
    free = sum(unassigned.values())
    return (
        Stat(
            label=_("Virtual clusters"),
            value=words.count(len(uses)),
            context=_("visible to you"),
        ),
        Stat(
            label=_("In use"),
            value=words.count(used),
            unit=_("of %(guarantee)s guaranteed") % {"guarantee": words.count(guarantee)},
            context=_("%(lent)s lent") % {"lent": words.count(sum(use.lent for use in uses))},
        ),
        Stat(
            label=_("Borrowed"),
            value=words.count(sum(use.borrowed for use in uses)),
            unit=_("devices"),
            context=_("reclaimable"),
        ),
        Stat(
            label=_("Queued"),
            value=words.count(sum(use.queued for use in uses)),
            unit=_("devices"),
            context=_("requested by queued jobs"),
        ),
        Stat(
            label=_("Not assigned"),
            value=words.count(free),
            unit=_("devices"),
            context=_("guaranteed to no virtual cluster"),
        ),
    )
