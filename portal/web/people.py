"""People: users, their password links and the rights of cluster admins; for cluster admins."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.addresses import link_address
from portal.i18n import gettext_lazy, word
from portal.web.formfaults import error_text, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from tenants.errors import ConflictError, DomainError, ForbiddenError, NotFoundError
from tenants.models import User
from tenants.roles import Permission
from tenants.selectors import members_for, tenants_for, users_for
from tenants.services import (
    IssuedLink,
    create_user,
    grant_cluster_admin,
    issue_password_link,
    revoke_cluster_admin,
    set_user_active,
)


class PersonForm(forms.Form):
    """A person who is to be able to sign in."""

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
    """The list, with the form for a new person."""
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
    """One person: a password link, access, and the rights of a cluster admin."""
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
    """Return the tenants of the person, and those that they could be added to."""
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
