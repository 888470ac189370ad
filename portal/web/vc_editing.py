"""Editing of virtual clusters: create, change of shape and caps, archive, and the live check."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.web.cluster_drawing import cells_in_words
from portal.web.components import words
from portal.web.forms import error_text, put_faults, shown_version, status_of
from portal.web.policy_fields import policy_names
from portal.web.vc_forms import (
    CapsForm,
    NewForm,
    PolicyForm,
    cell_name,
    counts_sent,
    rows_in_words,
)
from portal.web.viewing import PageRequest, page, posts_from
from portal.web.virtual_clusters import detail_context, drawn_assignment
from scheduling.clusters.models import VcValues
from scheduling.clusters.queries.recommendations import recommended_shape
from scheduling.clusters.queries.shapes import NEW, ShapeAnswer, TooMany, try_shape
from scheduling.clusters.queries.virtual_clusters import (
    VcDetail,
    virtual_cluster_detail,
    virtual_cluster_for,
)
from scheduling.clusters.services.cluster_edits import ArchiveVc, ChangeVc, CreateVc
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from scheduling.clusters.services.vc_values import CAPS
from scheduling.topology.current import current_topology
from tenants.errors import DomainError, InvalidError, StaleEditError
from tenants.roles import Permission
from tenants.selectors import tenants_for


@page
def create(asked: PageRequest) -> HttpResponseBase:
    """Create a virtual cluster, or only check its shape."""
    asked.viewer.require(Permission.EDIT_VC, what="virtual clusters")
    names = [tenant.name for tenant in tenants_for(asked.viewer, with_archived=False)]
    sent = asked.http.POST if asked.http.method == "POST" else None
    form = NewForm(sent, tenants=names, initial={"tenant": asked.http.GET.get("tenant", "")})
    policy_form = PolicyForm.sent(sent) if sent else _proposed(asked.http.GET.get("policy"))
    counts, fault = _counts(asked)
    is_asked_for = sent is not None and "check" not in sent
    if is_asked_for and not fault and form.is_valid() & policy_form.is_valid():
        made = _create(asked, form, policy_form, counts)
        if made is not None:
            return redirect("virtual-cluster", made)
    answer = try_shape(asked.viewer, counts)
    context = {
        "form": form,
        "policy_form": policy_form,
        "has_tenants": bool(names),
        **verdict_context(
            asked, answer, label=form["name"].value() or _("the new virtual cluster"), fault=fault
        ),
    }
    status = HTTPStatus.UNPROCESSABLE_ENTITY if is_asked_for else HTTPStatus.OK
    return asked.render("virtual_clusters/new.html", context, status=status)


def _proposed(policy: str | None) -> PolicyForm:
    """Return the form with the policy that the address proposes, if it exists."""
    return PolicyForm.of(policy if policy in policy_names() else "fifo", {}, None)


@require_POST
@page
def check(asked: PageRequest, vc_id: int = 0) -> HttpResponseBase:
    """Check the shape in the form; nothing is written."""
    detail = virtual_cluster_detail(asked.viewer, vc_id) if vc_id else None
    counts, fault = _counts(asked)
    answer = try_shape(asked.viewer, counts, name=detail.use.name if detail else NEW)
    label = (
        detail.use.name
        if detail
        else asked.http.POST.get("name", "") or _("the new virtual cluster")
    )
    context = verdict_context(asked, answer, label=label[:63], fault=fault, detail=detail)
    # A page that was opened earlier has no fields for the levels of a newer device type.
    shown = [row for row in answer.rows if cell_name(row.chain, row.type) in asked.http.POST]
    context |= {
        "rows": shown,
        "has_new_rows": len(shown) < len(answer.rows),
        "own": detail.use.name if detail else "",
    }
    return asked.render("virtual_clusters/_verdict_swap.html", context)


@page
def recommended(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Show the editor with the shape that past jobs needed; nothing is written."""
    detail = virtual_cluster_detail(asked.viewer, vc_id)
    asked.viewer.require(Permission.EDIT_VC, what="the virtual cluster")
    wanted = recommended_shape(vc_id, detail.shape, now=asked.now)
    answer = try_shape(asked.viewer, wanted.counts, name=detail.use.name)
    shown = verdict_context(asked, answer, label=detail.use.name, detail=detail)
    return _detail(asked, detail, **shown)


@posts_from("virtual-cluster")
@page
def shape(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Write the shape, or only check it (in browsers without scripts)."""
    detail = virtual_cluster_detail(asked.viewer, vc_id)
    asked.viewer.require(Permission.EDIT_VC, what="the virtual cluster")
    counts, fault = _counts(asked)
    answer = try_shape(asked.viewer, counts, name=detail.use.name)
    shown = verdict_context(asked, answer, label=detail.use.name, fault=fault, detail=detail)
    if "check" in asked.http.POST or fault:
        status = HTTPStatus.UNPROCESSABLE_ENTITY if fault else HTTPStatus.OK
        return _detail(asked, detail, status=status, **shown)
    return _write(
        asked,
        detail,
        ChangeVc(virtual_cluster=detail.use.name, cells=_entries(counts)),
        done=_("Guarantee of %(name)s changed: %(rows)s.")
        % {"name": detail.use.name, "rows": rows_in_words(answer.rows)},
        yours=rows_in_words(answer.rows),
        refused=lambda error: {**shown, "refused": error_text(error)},
    )


@posts_from("virtual-cluster")
@page
def policy(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Write the policy and its parameters; a newly chosen policy shows its parameters."""
    detail = virtual_cluster_detail(asked.viewer, vc_id)
    asked.viewer.require(Permission.EDIT_VC, what="the virtual cluster")
    form = PolicyForm.sent(asked.http.POST)
    if not form.is_valid():
        return _detail(asked, detail, status=status_of(form), policy_form=form)

    def refused(error: DomainError) -> dict[str, Any]:
        put_faults(form, error)
        return {"policy_form": form}

    return _write(
        asked,
        detail,
        ChangeVc(virtual_cluster=detail.use.name, values=form.values()),
        done=_("Policy of %(name)s changed to %(policy)s from the next round.")
        % {"name": detail.use.name, "policy": form.cleaned_data["policy"]},
        yours=form.cleaned_data["policy"],
        refused=refused,
    )


@page
def policy_fields(asked: PageRequest) -> HttpResponseBase:
    """Render the fields of the chosen policy's parameters."""
    asked.viewer.require(Permission.EDIT_VC, what="virtual clusters")
    form = PolicyForm.of(asked.http.GET.get("policy", ""), {}, None)
    return asked.render("virtual_clusters/_policy_args.html", {"policy_form": form})


@posts_from("virtual-cluster")
@page
def caps(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    """Write the caps; for a cluster admin also the other columns of the form."""
    detail = virtual_cluster_detail(asked.viewer, vc_id)
    asked.viewer.require(
        Permission.SET_CAPS, detail.use.tenant_id, what="the caps of the virtual cluster"
    )
    form = CapsForm(asked.http.POST, only_caps=not detail.can_edit)
    if not form.is_valid():
        return _detail(asked, detail, status=status_of(form), caps_form=form)
    values = {
        name: value
        for name, value in form.values().items()
        if name in CAPS or value != getattr(detail, name)
    }

    def refused(error: DomainError) -> dict[str, Any]:
        put_faults(form, error)
        return {"caps_form": form}

    return _write(
        asked,
        detail,
        ChangeVc(virtual_cluster=detail.use.name, values=values),
        done=_("Limits of %(name)s changed.") % {"name": detail.use.name},
        yours=", ".join(
            f"{form.fields[name].label}: {_('none') if value in (None, '') else value}"
            for name, value in values.items()
        ),
        refused=refused,
    )


@posts_from("virtual-cluster")
@page
def archive(asked: PageRequest, vc_id: int) -> HttpResponseBase:
    detail = virtual_cluster_detail(asked.viewer, vc_id)
    try:
        edit = ArchiveVc(virtual_cluster=detail.use.name)
        edit_virtual_cluster(viewer=asked.viewer, edit=edit, now=asked.now)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
        return redirect("virtual-cluster", vc_id)
    messages.success(
        asked.http,
        _("Virtual cluster %(name)s archived. Its guarantee is released.")
        % {"name": detail.use.name},
    )
    return redirect("virtual-clusters")


def verdict_context(
    asked: PageRequest,
    answer: ShapeAnswer,
    *,
    label: str,
    fault: str = "",
    detail: VcDetail | None = None,
) -> dict[str, Any]:
    """Return the context of the editor's check for one shape."""
    topology = current_topology()
    own = detail.use.name if detail else NEW
    tenant = detail.use.tenant if detail else asked.http.POST.get("tenant", "")
    return {
        "answer": answer,
        "effect": answer.effect,
        "rows": answer.rows,
        "fault": fault,
        "summary": rows_in_words(answer.rows),
        "left": rows_in_words_left(answer),
        "limits": [limit_words(limit) for limit in answer.too_many],
        "assignment": drawn_assignment(
            asked, topology, answer.assignment, own=own, label=label, own_tenant=tenant
        )
        if answer.fits and topology.chains
        else None,
    }


def rows_in_words_left(answer: ShapeAnswer) -> str:
    """Describe the largest cells that remain assignable, by type."""
    best: dict[str, str] = {}
    for row in answer.rows:
        if row.left and row.device_type not in best:
            best[row.device_type] = cells_in_words(row.left, row.device_type, row.level)
    return _(" and ").join(best.values())


def limit_words(limit: TooMany) -> str:
    """Describe the guarantee that is too large, and the maximum that fits."""
    most = (
        _("at most %(most)s fit") % {"most": words.count(limit.most)}
        if limit.most
        else _("none fits")
    )
    if limit.most == 1:
        most = _("at most 1 fits")
    return _(
        "%(asked)s × %(device_type)s %(level)s is too much: %(most)s with the other guarantees."
    ) % {
        "asked": words.count(limit.asked),
        "device_type": limit.device_type,
        "level": limit.level,
        "most": most,
    }


def _counts(asked: PageRequest) -> tuple[dict[tuple[str, str], int], str]:
    try:
        return counts_sent(asked.http.POST), ""
    except InvalidError as error:
        return {}, error_text(error)


def _create(
    asked: PageRequest,
    form: NewForm,
    policy_form: PolicyForm,
    counts: dict[tuple[str, str], int],
) -> int | None:
    name = form.cleaned_data["name"]
    edit = CreateVc(
        name=name,
        tenant=form.cleaned_data["tenant"],
        values=VcValues(**policy_form.values(), **form.values()),
        cells=_entries(counts),
    )
    try:
        edit_virtual_cluster(viewer=asked.viewer, edit=edit, now=asked.now)
    except DomainError as refused:
        put_faults(form, refused)
        return None
    messages.success(
        asked.http,
        _("Virtual cluster %(name)s created. Users can submit jobs to it.") % {"name": name},
    )
    return int(virtual_cluster_for(asked.viewer, name).pk)


def _entries(counts: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    return [
        {"chain": chain, "level": level, "count": count}
        for (chain, level), count in counts.items()
    ]


def _write(
    asked: PageRequest,
    detail: VcDetail,
    edit: ChangeVc,
    *,
    done: str,
    yours: str,
    refused: Callable[[DomainError], dict[str, Any]],
) -> HttpResponseBase:
    """Apply ``edit`` if the row is unchanged since the form was shown; else show both."""
    try:
        edit_virtual_cluster(
            viewer=asked.viewer,
            edit=edit,
            now=asked.now,
            expected_version=shown_version(asked.http.POST.get("version", "")),
        )
    except StaleEditError:
        fresh = virtual_cluster_detail(asked.viewer, detail.use.id)
        return _detail(asked, fresh, status=HTTPStatus.CONFLICT, stale=yours)
    except DomainError as error:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return _detail(asked, detail, status=status, **refused(error))
    messages.success(asked.http, done)
    return redirect("virtual-cluster", detail.use.id)


def _detail(
    asked: PageRequest, detail: VcDetail, *, status: int = HTTPStatus.OK, **changes: Any
) -> HttpResponseBase:
    return asked.render(
        "virtual_clusters/detail.html", detail_context(asked, detail, **changes), status=status
    )
