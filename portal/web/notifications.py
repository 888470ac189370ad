"""Notifications: mail preferences, sent mails, and webhooks with their deliveries."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.api.notices import hook_networks
from portal.i18n import gettext_lazy
from portal.web.forms import error_text, made_before, make_once, put_faults, status_of
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.core.notices import CLUSTER_EVENTS, EVENT_WORDS, JOB_EVENTS, QUOTA_EVENTS
from scheduling.notices.models import LONGEST_URL, Delivery, DeliveryState
from scheduling.notices.queries import (
    HookRow,
    deliveries_for,
    delivery_row,
    hook_for,
    hooks_for,
    mail_events_of,
)
from scheduling.notices.services import deliveries
from scheduling.notices.services.webhooks import (
    NewSecret,
    create_hook,
    delete_hook,
    offered_events,
    ping,
    rotate_secret,
    set_mail_events,
    update_hook,
)
from tenants.errors import DomainError, StaleEditError
from tenants.models import User
from tenants.roles import Permission, Role
from tenants.services import set_email

SHOWN: Final = 25
ROWS: Final = 25
CLUSTER: Final = ""


class NotificationsForm(forms.Form):
    """An e-mail address, and the events to be mailed."""

    email = forms.CharField(
        label=gettext_lazy("Your e-mail address"), required=False, max_length=254
    )
    jobs = forms.MultipleChoiceField(
        label=gettext_lazy("Your jobs"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        choices=[(event.value, EVENT_WORDS[event]) for event in JOB_EVENTS],
    )
    quotas = forms.MultipleChoiceField(
        label=gettext_lazy("Quotas of the tenants you lead"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        choices=[(event.value, EVENT_WORDS[event]) for event in QUOTA_EVENTS],
    )
    nodes = forms.MultipleChoiceField(
        label=gettext_lazy("Nodes and hosts"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        choices=[(event.value, EVENT_WORDS[event]) for event in CLUSTER_EVENTS],
    )

    def chosen(self) -> list[str]:
        """Return all ticked events."""
        return [event for name in ("jobs", "quotas", "nodes") for event in self.cleaned_data[name]]


@page
def notifications(asked: PageRequest) -> HttpResponseBase:
    """Show the mail preferences, with recent mails."""
    user = asked.http.user
    assert isinstance(user, User)  # noqa: S101 narrows the type only
    wanted = set(mail_events_of(asked.viewer))
    initial = {"email": user.email, "jobs": wanted, "quotas": wanted, "nodes": wanted}
    form = NotificationsForm(asked.http.POST or None, initial=initial)
    if asked.http.method == "POST" and form.is_valid() and _save(asked, form):
        return redirect("notifications")
    mails = deliveries_for(asked.viewer).filter(user=asked.viewer.user_id)[:SHOWN]
    return asked.render(
        "notices/notifications.html",
        {
            "form": form,
            "sends_mail": bool(settings.TESSERA.email_url),
            "leads": Role.LEAD in asked.viewer.roles.values(),
            "runs_cluster": asked.viewer.is_cluster_admin,
            "rows": [delivery_row(row) for row in mails],
        },
        status=status_of(form),
    )


def _save(asked: PageRequest, form: NotificationsForm) -> bool:
    try:
        set_email(viewer=asked.viewer, email=form.cleaned_data["email"])
    except DomainError as refused:
        put_faults(form, refused)
        return False
    set_mail_events(viewer=asked.viewer, events=form.chosen())
    messages.success(asked.http, _("Settings saved."))
    return True


class HookForm(forms.Form):
    """Editable fields of a webhook."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    name = forms.CharField(label=gettext_lazy("Name"), max_length=80)
    url = forms.CharField(label=gettext_lazy("URL"), max_length=LONGEST_URL)
    events = forms.MultipleChoiceField(
        label=gettext_lazy("Events"), widget=forms.CheckboxSelectMultiple
    )

    def __init__(self, *args: Any, tenant_id: int | None, **kwargs: Any) -> None:
        """Offer the events of this kind of webhook."""
        super().__init__(*args, **kwargs)
        choice = self.fields["events"]
        assert isinstance(choice, forms.MultipleChoiceField)  # noqa: S101 narrows the type only
        choice.choices = [(e.value, EVENT_WORDS[e]) for e in offered_events(tenant_id)]


class NewHookForm(HookForm):
    """A new webhook, of a tenant or of the whole cluster."""

    tenant = forms.TypedChoiceField(
        label=gettext_lazy("Owner"), required=False, coerce=int, empty_value=None
    )

    def __init__(self, *args: Any, owners: list[tuple[str, str]], **kwargs: Any) -> None:
        """Offer the tenants whose webhooks the person may manage."""
        super().__init__(*args, tenant_id=None, **kwargs)
        choice = self.fields["tenant"]
        assert isinstance(choice, forms.ChoiceField)  # noqa: S101 narrows the type only
        choice.choices = owners


@page
def hooks(asked: PageRequest) -> HttpResponseBase:
    """Show the webhooks that the reader manages; the response to a POST has a new one's secret."""
    if not asked.viewer.can_somewhere(Permission.MANAGE_HOOKS):
        asked.viewer.require(Permission.MANAGE_HOOKS, what="hooks")
    made = None
    form = _new_form(asked, asked.http.POST or None)
    if asked.http.method == "POST" and form.is_valid():
        values = form.cleaned_data
        create = partial(
            create_hook,
            viewer=asked.viewer,
            name=values["name"],
            url=values["url"],
            events=values["events"],
            tenant_id=values["tenant"],
            now=asked.now,
            networks=hook_networks(),
        )
        try:
            made = make_once(asked, create, lambda new: new.hook.pk)
        except DomainError as refused:
            if earlier := made_before(refused):
                messages.warning(
                    asked.http,
                    _(
                        "Webhook created. Its secret was shown in the response to the first "
                        "click. If you lost it, rotate the secret."
                    ),
                )
                return redirect("hook", earlier)
            put_faults(form, refused)
        else:
            form = _new_form(asked, None)
    context = {"rows": hooks_for(asked.viewer), "form": form, "made": made}
    return asked.render("notices/hooks.html", context, status=status_of(form))


@page
def hook(asked: PageRequest, hook_id: int) -> HttpResponseBase:
    """Show and edit one webhook, with its deliveries."""
    row = hook_for(asked.viewer, hook_id)
    form = HookForm(asked.http.POST or None, tenant_id=row.tenant_id, initial=_initial(row))
    stale = False
    if asked.http.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            update_hook(
                viewer=asked.viewer,
                hook_id=hook_id,
                expected_version=values.pop("version"),
                networks=hook_networks(),
                **values,
            )
        except StaleEditError:
            row = hook_for(asked.viewer, hook_id)
            form, stale = HookForm(tenant_id=row.tenant_id, initial=_initial(row)), True
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(asked.http, _("%(name)s changed.") % {"name": values["name"]})
            return redirect("hook", hook_id)
    return _page(asked, row, form, stale=stale)


@posts_from("hook")
@page
def switch(asked: PageRequest, hook_id: int) -> HttpResponseBase:
    """Disable or enable a webhook."""
    row = hook_for(asked.viewer, hook_id)
    update_hook(viewer=asked.viewer, hook_id=hook_id, enabled=not row.enabled)
    messages.success(
        asked.http,
        (_("%(name)s disabled.") if row.enabled else _("%(name)s enabled.")) % {"name": row.name},
    )
    return redirect("hook", hook_id)


@posts_from("hook")
@page
def test(asked: PageRequest, hook_id: int) -> HttpResponseBase:
    """Send a ping."""
    if _is_sent(asked, partial(ping, viewer=asked.viewer, hook_id=hook_id, now=asked.now)):
        messages.success(asked.http, _("Ping sent. The response appears below."))
    return redirect("hook", hook_id)


@posts_from("hook")
@page
def rotate(asked: PageRequest, hook_id: int) -> HttpResponseBase:
    """Replace the webhook's secret, which is shown in this response only."""
    made = rotate_secret(viewer=asked.viewer, hook_id=hook_id)
    row = hook_for(asked.viewer, hook_id)
    form = HookForm(tenant_id=row.tenant_id, initial=_initial(row))
    return _page(asked, row, form, made=made)


@posts_from("hook")
@page
def delete(asked: PageRequest, hook_id: int) -> HttpResponseBase:
    row = hook_for(asked.viewer, hook_id)
    delete_hook(viewer=asked.viewer, hook_id=hook_id)
    messages.success(asked.http, _("%(name)s deleted.") % {"name": row.name})
    return redirect("hooks")


@require_POST
@page
def replay(asked: PageRequest, delivery_id: int) -> HttpResponseBase:
    """Deliver again."""
    again = partial(deliveries.replay, viewer=asked.viewer, delivery_id=delivery_id, now=asked.now)
    if _is_sent(asked, again):
        messages.success(asked.http, _("Delivery queued again."))
    rows = deliveries_for(asked.viewer).filter(pk=delivery_id)
    hook_id = rows.values_list("hook_id", flat=True).first()
    return redirect("notifications") if hook_id is None else redirect("hook", hook_id)


def _is_sent(asked: PageRequest, send: Callable[[], Delivery]) -> bool:
    """Return whether the delivery was created; else show the reason, such as a repeated form."""
    try:
        make_once(asked, send, lambda made: made.pk)
    except DomainError as refused:
        tell = messages.warning if made_before(refused) else messages.error
        tell(asked.http, error_text(refused))
        return False
    return True


def _page(
    asked: PageRequest,
    row: HookRow,
    form: HookForm,
    *,
    stale: bool = False,
    made: NewSecret | None = None,
) -> HttpResponseBase:
    state = asked.http.GET.get("state", "")
    state = state if state in DeliveryState.values else ""
    found = [
        delivery_row(one)
        for one in deliveries_for(asked.viewer, hook_id=row.id, state=state)[:ROWS]
    ]
    return asked.render(
        "notices/_hook_deliveries.html" if asked.wants_part else "notices/hook.html",
        {
            "row": row,
            "form": form,
            "stale": stale,
            "made": made,
            "state": state,
            "states": DeliveryState.choices,
            "deliveries": found,
            "waits": any(one.state == DeliveryState.WAITING for one in found),
        },
        status=status_of(form),
    )


def _new_form(asked: PageRequest, sent: Any) -> NewHookForm:
    viewer = asked.viewer
    names = sorted(viewer.tenant_names.items(), key=lambda item: item[1])
    owners = [
        (str(pk), _("tenant %(name)s") % {"name": name})
        for pk, name in names
        if viewer.can(Permission.MANAGE_HOOKS, pk)
    ]
    if viewer.can(Permission.MANAGE_HOOKS):
        owners.insert(0, (CLUSTER, _("Whole cluster")))
    return NewHookForm(sent, owners=owners)


def _initial(row: HookRow) -> dict[str, Any]:
    return {"version": row.version, "name": row.name, "url": row.url, "events": row.events}
