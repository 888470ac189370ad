"""API tokens of the user and of tenant members; a key is shown once and never stored."""

import shlex
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.i18n import Name, gettext_lazy
from portal.web.forms import error_text, made_before, make_once, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from tenants.errors import DomainError, NotFoundError
from tenants.roles import Scope, grantable_scopes
from tenants.selectors import tenant_for, tokens_for, tokens_in_tenant
from tenants.services import IssuedToken, issue_token, revoke_token, rotate_token

LIVES: Final = (
    ("30", gettext_lazy("30 days")),
    ("90", gettext_lazy("90 days")),
    ("365", gettext_lazy("1 year")),
    ("", gettext_lazy("no expiry")),
)
SCOPE_WORDS: Final = {
    Scope.JOBS_READ: gettext_lazy("read jobs and logs"),
    Scope.JOBS_WRITE: gettext_lazy("submit and stop jobs"),
    Scope.VC_ADMIN: gettext_lazy("change virtual clusters and priority classes"),
    Scope.NODES_ADMIN: gettext_lazy("add, drain and remove nodes"),
    Scope.AUDIT_READ: gettext_lazy("read the audit log"),
    Scope.TENANT_ADMIN: gettext_lazy("manage members, limits and tenants"),
}


class TokenForm(forms.Form):
    """Input for a new token."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=80)
    scopes = forms.MultipleChoiceField(
        label=gettext_lazy("Scopes"), widget=forms.CheckboxSelectMultiple
    )
    expires_in_days = forms.ChoiceField(
        label=gettext_lazy("Expires after"), choices=LIVES, required=False
    )
    tenant = forms.TypedChoiceField(
        label=gettext_lazy("Only in tenant"), required=False, coerce=int, empty_value=None
    )

    def __init__(
        self, *args: Any, scopes: Iterable[Scope], tenants: dict[int, str], **kwargs: Any
    ) -> None:
        """Offer the scopes that the person may grant."""
        super().__init__(*args, **kwargs)
        offered = [(s.value, SCOPE_WORDS[s]) for s in Scope if s in set(scopes)]
        bound = [
            ("", _("all my tenants")),
            *((str(pk), Name(name)) for pk, name in tenants.items()),
        ]
        for name, choices in (("scopes", offered), ("tenant", bound)):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)  # noqa: S101 narrows the type only
            field.choices = choices


@page
def tokens(asked: PageRequest) -> HttpResponseBase:
    """Show the list with the form; a new key is only in the response to the form."""
    form = _form(asked)
    issued = None
    if asked.http.method == "POST" and form.is_valid():
        values = form.cleaned_data
        days = values["expires_in_days"]
        issue = partial(
            issue_token,
            viewer=asked.viewer,
            name=values["name"],
            scopes=values["scopes"],
            tenant_id=values["tenant"],
            expires_in=timedelta(days=int(days)) if days else None,
            now=asked.now,
        )
        try:
            issued = make_once(asked, issue, lambda made: made.token.pk)
        except DomainError as refused:
            if made_before(refused):
                messages.warning(
                    asked.http,
                    _(
                        "Token created. It was shown in the response to the first click. If "
                        "you lost it, replace the token."
                    ),
                )
                return redirect("tokens")
            put_faults(form, refused)
    return _page(asked, form, issued)


@require_POST
@page
def rotate(asked: PageRequest, token_id: int) -> HttpResponseBase:
    """Replace a token by a new one of the same kind."""
    try:
        issued = rotate_token(viewer=asked.viewer, token_id=token_id, now=asked.now)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
        return redirect("tokens")
    return _page(asked, None, issued)


@require_POST
@page
def revoke(asked: PageRequest, token_id: int) -> HttpResponseBase:
    revoke_token(viewer=asked.viewer, token_id=token_id, now=asked.now)
    messages.success(asked.http, _("Token revoked."))
    return redirect("tokens")


@posts_from("tenant")
@page
def revoke_of_member(asked: PageRequest, tenant_id: int, token_id: int) -> HttpResponseBase:
    """Revoke a member's token that is limited to one tenant."""
    tenant_for(asked.viewer, tenant_id)
    rows = tokens_in_tenant(asked.viewer, tenant_id, now=asked.now)
    if token_id not in {row.id for row in rows}:
        raise NotFoundError(_("Token not found."), field="token", value=token_id)
    revoke_token(viewer=asked.viewer, token_id=token_id, now=asked.now)
    messages.success(asked.http, _("Token revoked."))
    return redirect("tenant", tenant_id)


def _form(asked: PageRequest) -> TokenForm:
    viewer = asked.viewer
    sent = asked.http.POST if asked.http.method == "POST" else None
    return TokenForm(
        sent,
        scopes=grantable_scopes(
            is_cluster_admin=viewer.is_cluster_admin, roles=viewer.roles.values()
        ),
        tenants=dict(viewer.tenant_names),
        initial={"expires_in_days": "90", "scopes": [Scope.JOBS_READ.value]},
    )


def _page(
    asked: PageRequest, form: TokenForm | None, issued: IssuedToken | None
) -> HttpResponseBase:
    rows = tokens_for(asked.viewer)
    if form is None or issued is not None:
        viewer = asked.viewer
        form = TokenForm(
            scopes=grantable_scopes(
                is_cluster_admin=viewer.is_cluster_admin, roles=viewer.roles.values()
            ),
            tenants=dict(viewer.tenant_names),
            initial={"expires_in_days": "90", "scopes": [Scope.JOBS_READ.value]},
        )
    context = {
        "live": [row for row in rows if row.is_live(asked.now)],
        "over": [row for row in rows if not row.is_live(asked.now)],
        "form": form,
        "issued": issued,
        "shell_line": _shell_line(asked, issued) if issued else "",
        "tenant_names": dict(asked.viewer.tenant_names),
    }
    return asked.render("tenants/tokens.html", context, status=status_of(form))


def _shell_line(asked: PageRequest, issued: IssuedToken) -> str:
    """Return the shell line for the CLI: the key, and the portal that it opens."""
    return f"export TESSERA_URL={shlex.quote(asked.portal_url)} TESSERA_TOKEN={issued.key}"
