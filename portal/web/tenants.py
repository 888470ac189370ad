"""Tenants: the list, and one with its members, its virtual clusters and its usage."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy, word
from portal.web.cluster_drawing import tenants_in_order, vc_uses
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.forms import error_text, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.cluster import VcUse
from scheduling.clusters.queries.cluster import vc_uses as uses_for
from scheduling.notices.queries import budget_of
from scheduling.notices.services.quotas import gpu_hours_since, month_start, set_budget
from scheduling.usage.queries.device_hours import (
    NO_USE,
    Use,
    limits_of_members,
    use_by_person,
    use_by_tenant,
    use_together,
)
from tenants.errors import DomainError, StaleEditError
from tenants.models import Membership, Tenant
from tenants.roles import Permission, Role
from tenants.selectors import members_for, tenant_for, tenants_for, tokens_in_tenant
from tenants.services import archive_tenant, create_tenant, restore_tenant, update_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant in the list."""

    tenant: Tenant
    members: int
    leads: tuple[str, ...]
    vcs: tuple[VcUse, ...]
    use: Use
    role: str

    @property
    def guarantee(self) -> int:
        """Devices guaranteed to the tenant's virtual clusters."""
        return sum(vc.guarantee for vc in self.vcs)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A member with their usage; ``limits`` are the only virtual clusters they may use."""

    membership: Membership
    use: Use
    limits: tuple[str, ...]


class TenantForm(forms.Form):
    """Display name and note of a tenant."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    display_name = forms.CharField(
        label=gettext_lazy("Display name"), required=False, max_length=80
    )
    note = forms.CharField(
        label=gettext_lazy("Note"),
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
    )


class EditTenantForm(TenantForm):
    """``CreateTenantForm`` with the expected usage."""

    gpu_hours_per_month = forms.FloatField(
        label=gettext_lazy("GPU-hours per month"), required=False, min_value=0.1, max_value=1e9
    )


class NewTenantForm(TenantForm):
    """A new tenant; its name cannot be changed later."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=40)


@page
def tenants(asked: PageRequest) -> HttpResponseBase:
    """Show the tenants that the user may see."""
    found = list(tenants_for(asked.viewer))
    used = use_by_tenant(asked.viewer, now=asked.now)
    vcs = uses_for(asked.viewer)
    members = list(members_for(asked.viewer))
    rows = [_row(asked, tenant, used, vcs, members) for tenant in found]
    return asked.render(
        "tenants/tenants.html",
        {
            "rows": [row for row in rows if not row.tenant.is_archived],
            "archived": [row for row in rows if row.tenant.is_archived],
            "can_manage": asked.viewer.can(Permission.MANAGE_TENANTS),
        },
    )


@page
def tenant(asked: PageRequest, tenant_id: int) -> HttpResponseBase:
    return asked.render("tenants/tenant.html", tenant_context(asked, tenant_id))


@page
def new(asked: PageRequest) -> HttpResponseBase:
    asked.viewer.require(Permission.MANAGE_TENANTS, what="tenants")
    form = NewTenantForm(asked.http.POST or None)
    if asked.http.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            made = create_tenant(
                viewer=asked.viewer,
                name=values["name"],
                display_name=values["display_name"],
                note=values["note"],
            )
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(
                asked.http, _("Tenant %(name)s created. Add the first lead.") % {"name": made.name}
            )
            return redirect("tenant", made.pk)
    return asked.render("tenants/new.html", {"form": form}, status=status_of(form))


@page
def edit(asked: PageRequest, tenant_id: int) -> HttpResponseBase:
    """Edit the texts of a tenant."""
    found = tenant_for(asked.viewer, tenant_id)
    asked.viewer.require(Permission.MANAGE_TENANTS, what="the tenant")
    form = EditTenantForm(asked.http.POST or None, initial=_initial(asked, found))
    stale = False
    if asked.http.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            update_tenant(
                viewer=asked.viewer,
                tenant_id=tenant_id,
                display_name=values["display_name"],
                note=values["note"],
                expected_version=values["version"],
            )
            hours = values["gpu_hours_per_month"]
            set_budget(viewer=asked.viewer, tenant_id=tenant_id, hours=hours)
        except StaleEditError:
            found = tenant_for(asked.viewer, tenant_id)
            form, stale = EditTenantForm(initial=_initial(asked, found)), True
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(asked.http, _("%(name)s changed.") % {"name": found.name})
            return redirect("tenant", tenant_id)
    context = {"tenant": found, "form": form, "stale": stale}
    return asked.render("tenants/edit.html", context, status=status_of(form))


@posts_from("tenant")
@page
def archive(asked: PageRequest, tenant_id: int) -> HttpResponseBase:
    """Archive a tenant, or restore it."""
    found = tenant_for(asked.viewer, tenant_id)
    try:
        if found.is_archived:
            restore_tenant(viewer=asked.viewer, tenant_id=tenant_id)
            messages.success(asked.http, _("Tenant %(name)s restored.") % {"name": found.name})
        else:
            archive_tenant(viewer=asked.viewer, tenant_id=tenant_id, now=asked.now)
            messages.success(asked.http, _("Tenant %(name)s archived.") % {"name": found.name})
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    return redirect("tenant", tenant_id)


def tenant_context(asked: PageRequest, tenant_id: int) -> dict[str, Any]:
    viewer = asked.viewer
    found = tenant_for(viewer, tenant_id)
    vcs = tuple(vc for vc in uses_for(viewer) if vc.tenant_id == tenant_id)
    people = use_by_person(viewer, tenant_id, now=asked.now)
    limits = limits_of_members(viewer, tenant_id)
    members = tuple(
        MemberRow(
            membership=membership,
            use=people.get(membership.user_id, NO_USE),
            limits=limits.get(membership.pk, ()),
        )
        for membership in members_for(viewer, tenant_id=tenant_id)
    )
    use = use_together(people.values())
    return {
        "tenant": found,
        "members": members,
        "tokens": tokens_in_tenant(viewer, tenant_id, now=asked.now),
        "uses": vc_uses(vcs, tenants_in_order(viewer)),
        "stats": (*_stats(members, vcs, use), *_budget(asked, tenant_id)),
        "roles": [role.value for role in Role],
        "shows_slots": any(row.use.hours.slot for row in members) or bool(use.hours.slot),
        "can_manage_members": viewer.can(Permission.MANAGE_MEMBERS, tenant_id),
        "can_set_caps": viewer.can(Permission.SET_CAPS, tenant_id),
        "can_read_audit": viewer.can(Permission.READ_AUDIT, tenant_id),
        "can_manage": viewer.can(Permission.MANAGE_TENANTS),
        "can_make_clusters": viewer.can(Permission.EDIT_VC),
        "role": role_words(viewer.role_in(tenant_id), is_admin=viewer.is_cluster_admin),
    }


def role_words(role: Role | None, *, is_admin: bool) -> str:
    """Return the reader's role in a tenant."""
    if role is not None:
        return _("you are a %(value)s") % {"value": word(role.value)}
    return _("you have access as a cluster admin") if is_admin else ""


def _row(
    asked: PageRequest,
    tenant: Tenant,
    used: Mapping[int, Use],
    vcs: Sequence[VcUse],
    members: Sequence[Membership],
) -> TenantRow:
    own = [member for member in members if member.tenant_id == tenant.pk]
    role = asked.viewer.role_in(tenant.pk)
    return TenantRow(
        tenant=tenant,
        members=len(own),
        leads=tuple(m.user.username for m in own if m.role == Role.LEAD.value),
        vcs=tuple(vc for vc in vcs if vc.tenant_id == tenant.pk),
        use=used.get(tenant.pk, NO_USE),
        role=role.value if role else "",
    )


def _stats(members: Sequence[MemberRow], vcs: Sequence[VcUse], use: Use) -> tuple[Stat, ...]:
    roles = Counter(row.membership.role for row in members)
    counted = [
        words.plural(roles[role.value], role.value, f"{role.value}s")
        for role in reversed(Role)
        if roles[role.value]
    ]
    guarantee = sum(vc.guarantee for vc in vcs)
    tiles = [
        Stat(
            label=_("Members"),
            value=words.count(len(members)),
            context=_(", ").join(counted) or _("none"),
        ),
        Stat(
            label=_("Devices held"),
            value=words.count(use.devices),
            unit=_("of %(guarantee)s guaranteed") % {"guarantee": words.count(guarantee)},
            context=_("%(borrowed)s borrowed")
            % {"borrowed": words.count(sum(vc.borrowed for vc in vcs))},
        ),
        Stat(
            label=_("GPU-hours so far"),
            value=words.gpu_hours(use.hours.gpu),
            context=_("total of all jobs"),
        ),
    ]
    if use.hours.slot:
        tiles.append(
            Stat(
                label=_("Slot-hours so far"),
                value=words.gpu_hours(use.hours.slot),
                context=_("CPU slots, counted separately"),
            )
        )
    queued = sum(vc.queued_jobs for vc in vcs)
    tiles.append(
        Stat(
            label=_("Jobs"),
            value=words.count(sum(vc.running_jobs for vc in vcs)),
            unit=_("holding devices"),
            context=_("%(queued)s queued") % {"queued": words.count(queued)}
            if queued
            else _("none queued"),
        )
    )
    return tuple(tiles)


def _budget(asked: PageRequest, tenant_id: int) -> tuple[Stat, ...]:
    """Return the tile of the tenant's budget; none without a budget."""
    hours = budget_of(asked.viewer, tenant_id)
    if hours is None:
        return ()
    used = gpu_hours_since(month_start(asked.now), now=asked.now, tenant_ids={tenant_id})
    spent = used.get(tenant_id, 0.0)
    tile = Stat(
        label=_("Budget left"),
        value=words.gpu_hours(max(hours - spent, 0.0)),
        unit=_("of %(hours)s GPU-hours") % {"hours": words.gpu_hours(hours)},
        context=_("%(hours)s used this month") % {"hours": words.gpu_hours(spent)},
        tone="bad" if spent >= hours else "",
    )
    return (tile,)


def _initial(asked: PageRequest, found: Tenant) -> dict[str, Any]:
    return {
        "gpu_hours_per_month": budget_of(asked.viewer, found.pk),
        "version": found.version,
        "display_name": found.display_name,
        "note": found.note,
    }
