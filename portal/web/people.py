"""People: users of the cluster with their rights, and members of tenants with roles and limits."""

from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.addresses import link_address
from portal.i18n import gettext_lazy, word
from portal.web.forms import error_text, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.cluster import vc_uses
from scheduling.clusters.services.virtual_clusters import set_member_limits
from scheduling.jobs.queries.job_limits import MemberJobLimit, job_limits_of_members
from scheduling.jobs.services.job_limits import MOST, set_member_limit
from scheduling.usage.queries.device_hours import limits_of_members
from tenants.errors import (
    ConflictError,
    DomainError,
    ForbiddenError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import Membership, User
from tenants.roles import Permission, Role
from tenants.selectors import member_for, members_for, tenant_for, tenants_for, users_for
from tenants.services import (
    UNCHANGED,
    IssuedLink,
    add_member,
    create_user,
    grant_cluster_admin,
    issue_password_link,
    remove_member,
    revoke_cluster_admin,
    set_user_active,
    update_member,
)

ROLES = [
    (Role.VIEWER.value, gettext_lazy("viewer: reads jobs of the tenant")),
    (Role.MEMBER.value, gettext_lazy("member: submits jobs, manages own jobs")),
    (Role.LEAD.value, gettext_lazy("lead: manages members, limits and all jobs")),
]


MOST_OFFERED: Final = 500


class PersonForm(forms.Form):
    """A new user account."""

    username = forms.CharField(label=gettext_lazy("Username"), max_length=64)
    password = forms.CharField(
        label=gettext_lazy("Initial password"),
        required=False,
        empty_value=None,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    email = forms.EmailField(label=gettext_lazy("E-mail"), required=False)
    is_cluster_admin = forms.BooleanField(label=gettext_lazy("Cluster admin"), required=False)


@page
def people(asked: PageRequest) -> HttpResponseBase:
    """Show the list, with the form for a new person."""
    asked.viewer.require(Permission.MANAGE_USERS, what="users")
    form = PersonForm(asked.http.POST or None)
    if asked.http.method == "POST" and form.is_valid():
        try:
            made = create_user(viewer=asked.viewer, **form.cleaned_data)
        except DomainError as refused:
            put_faults(form, refused)
        else:
            if form.cleaned_data["password"] is None:
                messages.success(
                    asked.http,
                    _("User %(username)s added. Create a password link now.")
                    % {"username": made.username},
                )
            else:
                messages.success(
                    asked.http, _("User %(username)s added.") % {"username": made.username}
                )
            return redirect("person", made.pk)
    tenants: dict[int, list[str]] = {}
    for member in members_for(asked.viewer):
        tenants.setdefault(member.user_id, []).append(
            _("%(tenant_name)s (%(role)s)")
            % {"tenant_name": member.tenant.name, "role": word(member.role)}
        )
    rows = [(user, _(", ").join(tenants.get(user.pk, ()))) for user in users_for(asked.viewer)]
    context = {"rows": rows, "form": form}
    return asked.render("tenants/people.html", context, status=status_of(form))


@page
def person(asked: PageRequest, user_id: int) -> HttpResponseBase:
    """Show one person: a password link, access, and the rights of a cluster admin."""
    return _person_page(asked, _user(asked, user_id))


@posts_from("person")
@page
def password_link(asked: PageRequest, user_id: int) -> HttpResponseBase:
    """Create a one-time link and show it in this response only."""
    user = _user(asked, user_id)
    try:
        link = issue_password_link(viewer=asked.viewer, username=user.username, now=asked.now)
    except (ConflictError, ForbiddenError) as refused:
        messages.error(asked.http, error_text(refused))
        return redirect("person", user_id)
    return _person_page(asked, user, link)


@posts_from("person")
@page
def change(asked: PageRequest, user_id: int, verb: str) -> HttpResponseBase:
    """Activate or deactivate a person; grant or revoke cluster admin."""
    user = _user(asked, user_id)
    acts: dict[str, tuple[Callable[..., Any], dict[str, bool], str]] = {
        "keep-out": (
            set_user_active,
            {"is_active": False},
            _("%(name)s blocked."),
        ),
        "let-in": (set_user_active, {"is_active": True}, _("%(name)s unblocked.")),
        "make-admin": (grant_cluster_admin, {}, _("Cluster admin granted to %(name)s.")),
        "unmake-admin": (revoke_cluster_admin, {}, _("Cluster admin revoked from %(name)s.")),
    }
    if verb not in acts:
        raise NotFoundError(_("Unknown action."), field="verb", value=verb)
    act, values, done = acts[verb]
    try:
        act(viewer=asked.viewer, user_id=user_id, **values)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(asked.http, done % {"name": user.username})
    return redirect("person", user_id)


def _person_page(
    asked: PageRequest, user: User, link: IssuedLink | None = None
) -> HttpResponseBase:
    is_self = user.pk == asked.viewer.user_id
    address = link_address(asked.portal_url, link) if link else ""
    context = {"person": user, "is_self": is_self, "link": link, "link_address": address}
    return asked.render("tenants/person.html", context | _homes(asked, user))


def _homes(asked: PageRequest, user: User) -> dict[str, Any]:
    """Return the tenants of the person, and the tenants to which the viewer may add them."""
    members = list(members_for(asked.viewer).filter(user=user))
    inside = {row.tenant_id for row in members}
    tenants = tenants_for(asked.viewer, with_archived=False)
    return {"members": members, "others": [row for row in tenants if row.pk not in inside]}


def _user(asked: PageRequest, user_id: int) -> User:
    asked.viewer.require(Permission.MANAGE_USERS, what="users")
    user = users_for(asked.viewer).filter(pk=user_id).first()
    if user is None:
        raise NotFoundError(_("User not found."), field="user", value=user_id)
    return user


class MemberForm(forms.Form):
    """Role and caps of a member."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    role = forms.ChoiceField(label=gettext_lazy("Role"), choices=ROLES)
    max_devices = forms.IntegerField(
        label=gettext_lazy("Device limit"), required=False, min_value=1, max_value=1_000_000
    )


class AddMemberForm(MemberForm):
    """A person to add as a member."""

    username = forms.CharField(
        label=gettext_lazy("Username"),
        max_length=64,
        widget=forms.TextInput(attrs={"list": "known-people", "autocomplete": "off"}),
    )


class EditMemberForm(MemberForm):
    """Role, limits and the virtual clusters of one member."""

    max_live_jobs = forms.IntegerField(
        label=gettext_lazy("Live job limit"), required=False, min_value=1, max_value=MOST
    )
    virtual_clusters = forms.MultipleChoiceField(
        label=gettext_lazy("Virtual clusters"), required=False, widget=forms.CheckboxSelectMultiple
    )

    def __init__(self, *args: Any, names: list[str], **kwargs: Any) -> None:
        """Add the tenant's virtual clusters as choices."""
        super().__init__(*args, **kwargs)
        choice = self.fields["virtual_clusters"]
        assert isinstance(choice, forms.MultipleChoiceField)  # noqa: S101 narrows the type only
        choice.choices = [(name, name) for name in names]


@page
def add(asked: PageRequest, tenant_id: int) -> HttpResponseBase:
    tenant = tenant_for(asked.viewer, tenant_id)
    asked.viewer.require(Permission.MANAGE_MEMBERS, tenant_id, what="the members of the tenant")
    proposed = {"role": Role.MEMBER.value, "username": asked.http.GET.get("user", "")}
    form = AddMemberForm(asked.http.POST or None, initial=proposed)
    if asked.http.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            add_member(
                viewer=asked.viewer,
                tenant_id=tenant_id,
                username=values["username"],
                role=values["role"],
                max_devices=values["max_devices"],
            )
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(
                asked.http,
                _("%(username)s added to %(name)s as %(word_role)s.")
                % {
                    "username": values["username"],
                    "word_role": word(values["role"]),
                    "name": tenant.name,
                },
            )
            return redirect("tenant", tenant_id)
    can_make_people = asked.viewer.can(Permission.MANAGE_USERS)
    there = {member.user_id for member in members_for(asked.viewer, tenant_id=tenant_id)}
    offered = users_for(asked.viewer).filter(is_active=True).exclude(pk__in=there)
    context = {
        "tenant": tenant,
        "form": form,
        "can_make_people": can_make_people,
        "people": offered.values_list("username", flat=True)[:MOST_OFFERED],
    }
    return asked.render("tenants/member_add.html", context, status=status_of(form))


@page
def edit(asked: PageRequest, tenant_id: int, member_id: int) -> HttpResponseBase:
    """Change role, limits and virtual clusters of a member, all or none."""
    member = _member(asked, tenant_id, member_id)
    asked.viewer.require(Permission.MANAGE_MEMBERS, tenant_id, what="the member")
    names = [vc.name for vc in vc_uses(asked.viewer) if vc.tenant_id == tenant_id]
    limits = limits_of_members(asked.viewer, tenant_id).get(member_id, ())
    (limit,) = job_limits_of_members([member])
    initial = _initial(member, limits, limit)
    form = EditMemberForm(asked.http.POST or None, names=names, initial=initial)
    stale = False
    if asked.http.method == "POST" and form.is_valid():
        try:
            _save(asked, limit, form)
        except StaleEditError:
            member = _member(asked, tenant_id, member_id)
            initial = _initial(member, limits, limit)
            form, stale = EditMemberForm(names=names, initial=initial), True
        except DomainError as refused:
            put_faults(form, refused, {"per_person": "max_live_jobs"})
        else:
            messages.success(asked.http, _("%(name)s changed.") % {"name": member.user.username})
            return redirect("tenant", tenant_id)
    context = {"member": member, "tenant": member.tenant, "form": form, "stale": stale}
    context |= {"has_vcs": bool(names), "limit": limit}
    return asked.render("tenants/member.html", context, status=status_of(form))


@posts_from("tenant")
@page
def remove(asked: PageRequest, tenant_id: int, member_id: int) -> HttpResponseBase:
    """Remove a member from a tenant; a member can also remove themselves."""
    member = _member(asked, tenant_id, member_id)
    try:
        remove_member(viewer=asked.viewer, membership_id=member_id)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
        return redirect("tenant", tenant_id)
    messages.success(
        asked.http,
        _("%(username)s removed from %(name)s.")
        % {"username": member.user.username, "name": member.tenant.name},
    )
    is_self = member.user_id == asked.viewer.user_id
    left = is_self and not asked.viewer.is_cluster_admin
    return redirect("tenants") if left else redirect("tenant", tenant_id)


@transaction.atomic
def _save(asked: PageRequest, limit: MemberJobLimit, form: EditMemberForm) -> None:
    member = limit.membership
    values = form.cleaned_data
    is_capping = values["max_devices"] != member.max_devices
    update_member(
        viewer=asked.viewer,
        membership_id=member.pk,
        role=values["role"],
        max_devices=values["max_devices"] if is_capping else UNCHANGED,
        expected_version=values["version"],
    )
    set_member_limits(
        viewer=asked.viewer,
        membership_id=member.pk,
        virtual_clusters=values["virtual_clusters"],
        now=asked.now,
    )
    most = values["max_live_jobs"]
    if most != limit.per_person.own:
        set_member_limit(viewer=asked.viewer, member=member, per_person=most)


def _member(asked: PageRequest, tenant_id: int, member_id: int) -> Membership:
    member = member_for(asked.viewer, member_id)
    if member.tenant_id != tenant_id:
        raise Http404
    return member


def _initial(member: Membership, limits: tuple[str, ...], limit: MemberJobLimit) -> dict[str, Any]:
    return {
        "version": member.version,
        "role": member.role,
        "max_devices": member.max_devices,
        "virtual_clusters": list(limits),
        "max_live_jobs": limit.per_person.own,
    }
