"""Announcements: the dismissible banner, and the page of its editors."""

from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.forms import (
    error_text,
    made_before,
    make_once,
    put_faults,
    shown_version,
    status_of,
)
from portal.web.viewing import PageRequest, page, posts_from
from tenants.announcements import AnnouncementRow, announcements_for
from tenants.errors import DomainError, NotFoundError, StaleEditError
from tenants.models import Severity
from tenants.models.announcements import LONGEST_TEXT
from tenants.roles import Permission
from tenants.services import (
    create_announcement,
    delete_announcement,
    dismiss_announcement,
    update_announcement,
)

_FORMAT: Final = "%Y-%m-%dT%H:%M"


class _Moment(forms.DateTimeInput):
    """Browser input for date and time."""

    input_type = "datetime-local"

    def __init__(self) -> None:
        """Set the format that browsers expect."""
        super().__init__(format=_FORMAT)


class AnnouncementForm(forms.Form):
    """Text and period of an announcement."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    text = forms.CharField(
        label=gettext_lazy("Text"),
        max_length=LONGEST_TEXT,
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    severity = forms.ChoiceField(label=gettext_lazy("Severity"), choices=Severity.choices)
    starts_at = forms.DateTimeField(
        label=gettext_lazy("From"),
        required=False,
        widget=_Moment,
        input_formats=[_FORMAT, f"{_FORMAT}:%S"],
    )
    ends_at = forms.DateTimeField(
        label=gettext_lazy("Until"),
        required=False,
        widget=_Moment,
        input_formats=[_FORMAT, f"{_FORMAT}:%S"],
    )


@page
def announcements(asked: PageRequest) -> HttpResponseBase:
    """Show all announcements, with the form for a new one."""
    asked.viewer.require(Permission.ANNOUNCE, what="announcements")
    form = AnnouncementForm(asked.http.POST or None)
    if asked.http.method == "POST" and form.is_valid() and _create(asked, form):
        return redirect("announcements")
    rows = announcements_for(asked.viewer, now=asked.now)
    lines = [(row, Severity(row.severity).label, _when(row, asked)) for row in rows]
    context = {"lines": lines, "form": form}
    return asked.render("announcements/list.html", context, status=status_of(form))


@page
def announcement(asked: PageRequest, announcement_id: int) -> HttpResponseBase:
    asked.viewer.require(Permission.ANNOUNCE, what="announcements")
    row = _row(asked, announcement_id)
    form = AnnouncementForm(asked.http.POST or None, initial=_initial(row))
    stale = False
    if asked.http.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        values["starts_at"] = values["starts_at"] or row.starts_at
        try:
            update_announcement(
                viewer=asked.viewer,
                announcement_id=announcement_id,
                expected_version=values.pop("version"),
                **values,
            )
        except StaleEditError:
            row = _row(asked, announcement_id)
            form, stale = AnnouncementForm(initial=_initial(row)), True
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(
                asked.http, _("Announcement changed. It appears again for all users.")
            )
            return redirect("announcements")
    context = {"row": row, "form": form, "stale": stale}
    return asked.render("announcements/edit.html", context, status=status_of(form))


@posts_from("announcement")
@page
def delete(asked: PageRequest, announcement_id: int) -> HttpResponseBase:
    try:
        delete_announcement(
            viewer=asked.viewer,
            announcement_id=announcement_id,
            expected_version=shown_version(asked.http.POST.get("version", "")),
        )
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
        return redirect("announcements")
    messages.success(asked.http, _("Announcement withdrawn."))
    return redirect("announcements")


@posts_from("announcements")
@page
def dismiss(asked: PageRequest, announcement_id: int) -> HttpResponseBase:
    """Close the banner for this person, and return to the page."""
    try:
        dismiss_announcement(viewer=asked.viewer, announcement_id=announcement_id)
    except NotFoundError:
        pass
    return redirect(_back(asked.http))


def _create(asked: PageRequest, form: AnnouncementForm) -> bool:
    values = dict(form.cleaned_data)
    values.pop("version")
    create = partial(create_announcement, viewer=asked.viewer, now=asked.now, **values)
    try:
        make_once(asked, create, lambda made: made.pk)
    except DomainError as refused:
        if not made_before(refused):
            put_faults(form, refused)
            return False
    messages.success(asked.http, _("Announcement saved. It appears within 10 s of its start."))
    return True


def _row(asked: PageRequest, announcement_id: int) -> AnnouncementRow:
    for row in announcements_for(asked.viewer, now=asked.now):
        if row.id == announcement_id:
            return row
    raise NotFoundError(_("Announcement not found."), field="id", value=announcement_id)


def _initial(row: AnnouncementRow) -> dict[str, Any]:
    return {
        "text": row.text,
        "severity": row.severity,
        "starts_at": row.starts_at,
        "ends_at": row.ends_at,
        "version": row.version,
    }


def _when(row: AnnouncementRow, asked: PageRequest) -> str:
    if row.is_shown(asked.now):
        return _("active")
    return _("scheduled") if row.starts_at > asked.now else "over"


def _back(request: HttpRequest) -> str:
    wanted = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return wanted if is_ours else "/"
