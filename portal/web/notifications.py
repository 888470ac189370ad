"""Mail preferences, and sent notifications."""

from typing import Final

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.formfaults import put_faults, status_of
from portal.web.viewing import PageRequest, page
from scheduling.core.notices import CLUSTER_EVENTS, EVENT_WORDS, JOB_EVENTS, QUOTA_EVENTS
from scheduling.notices.queries import deliveries_for, delivery_row, mail_events_of
from scheduling.notices.services.preferences import set_mail_events
from tenants.errors import DomainError
from tenants.models import User
from tenants.roles import Role
from tenants.services import set_email

SHOWN: Final = 25


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
    """Show the choice, with recent mails."""
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
