"""Storages: the list for all users, and the forms for node managers."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
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
from scheduling.clusters.queries.storages import StorageView, list_storages
from scheduling.clusters.services.storages import create_storage, delete_storage, update_storage
from scheduling.common.storages import ENGINE
from tenants.errors import DomainError, NotFoundError, StaleEditError
from tenants.roles import Permission
from tessera import storage

CAUSES: Final = {
    "": gettext_lazy("usable"),
    "unknown": gettext_lazy("not yet probed"),
    ENGINE: gettext_lazy("for jobs with an image; the container engine mounts it"),
    storage.MISSING: gettext_lazy("The directory does not exist."),
    storage.NOT_DIRECTORY: gettext_lazy("This is not a directory."),
    storage.LINKED: gettext_lazy("The path contains a symbolic link. Use its target."),
    storage.NOT_MOUNTED: gettext_lazy("The node has not mounted the export."),
    storage.NOT_RESPONDING: gettext_lazy("The file system does not respond."),
    storage.RUNNER_DIRECTORY: gettext_lazy("This is the directory of the runner."),
    storage.DENIED: gettext_lazy("The account of the node may not read it."),
}


class Names(forms.CharField):
    """Names, separated by commas or spaces."""

    def prepare_value(self, value: Any) -> Any:
        """Return the names as a text."""
        return ", ".join(value) if isinstance(value, list | tuple) else value

    def clean(self, value: Any) -> list[str]:
        return str(super().clean(value) or "").replace(",", " ").split()


class StorageForm(forms.Form):
    """The values of a storage besides its name."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    source = forms.CharField(label=gettext_lazy("Source"), max_length=1300)
    mount = forms.CharField(label=gettext_lazy("Mount point"), max_length=1024, required=False)
    writable = forms.BooleanField(label=gettext_lazy("Jobs may write"), required=False)
    checkpoints = forms.BooleanField(label=gettext_lazy("For checkpoints only"), required=False)
    tenants = Names(label=gettext_lazy("Tenants"), required=False)
    virtual_clusters = Names(label=gettext_lazy("Virtual clusters"), required=False)
    default_for = Names(label=gettext_lazy("Default for"), required=False)
    note = forms.CharField(label=gettext_lazy("Note"), max_length=500, required=False)


class NewStorageForm(StorageForm):
    """All values of a storage."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=40)


@page
def storages(asked: PageRequest) -> HttpResponseBase:
    """Show the list, with the form for a new storage."""
    can_edit = asked.viewer.can(Permission.MANAGE_NODES)
    form = NewStorageForm(asked.http.POST or None)
    if asked.http.method == "POST":
        asked.viewer.require(Permission.MANAGE_NODES, what="storages")
        if form.is_valid() and _create(asked, form):
            return redirect("storages")
    rows = list_storages(asked.viewer)
    context = {"rows": rows, "form": form, "can_edit": can_edit}
    return asked.render("storages/list.html", context, status=status_of(form))


@page
def one_storage(asked: PageRequest, storage_id: int) -> HttpResponseBase:
    """Show a storage on each node, with the form for its values."""
    asked.viewer.require(Permission.MANAGE_NODES, what="storages")
    row = _row(asked, storage_id)
    form = StorageForm(asked.http.POST or None, initial=_initial(row))
    stale = False
    if asked.http.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            update_storage(
                viewer=asked.viewer,
                storage_id=storage_id,
                expected_version=values.pop("version"),
                **values,
            )
        except StaleEditError:
            row = _row(asked, storage_id)
            form, stale = StorageForm(initial=_initial(row)), True
        except DomainError as refused:
            put_faults(form, refused)
        else:
            messages.success(asked.http, _("%(name)s changed.") % {"name": row.name})
            return redirect("storages")
    nodes = _nodes(row)
    context = {"row": row, "form": form, "stale": stale, "nodes": nodes}
    return asked.render("storages/edit.html", context, status=status_of(form))


@posts_from("storage")
@page
def delete(asked: PageRequest, storage_id: int) -> HttpResponseBase:
    try:
        delete_storage(
            viewer=asked.viewer,
            storage_id=storage_id,
            expected_version=shown_version(asked.http.POST.get("version", "")),
        )
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(asked.http, _("Storage deleted. Its files remain."))
    return redirect("storages")


def _create(asked: PageRequest, form: NewStorageForm) -> bool:
    values = dict(form.cleaned_data)
    values.pop("version")
    create = partial(create_storage, viewer=asked.viewer, now=asked.now, **values)
    try:
        make_once(asked, create, lambda made: made.pk)
    except DomainError as refused:
        if not made_before(refused):
            put_faults(form, refused)
            return False
    messages.success(asked.http, _("Storage added. Nodes report within 1 minute if they have it."))
    return True


def _row(asked: PageRequest, storage_id: int) -> StorageView:
    for row in list_storages(asked.viewer):
        if row.id == storage_id:
            return row
    raise NotFoundError(_("Storage not found."), field="id", value=storage_id)


def _initial(row: StorageView) -> dict[str, Any]:
    return {name: getattr(row, name) for name in StorageForm.base_fields}


def _nodes(row: StorageView) -> Sequence[tuple[Any, Any, int]]:
    """Return the nodes with the text of each cause, and the percentage in use."""
    return [
        (
            node,
            CAUSES.get(node.cause, node.cause),
            round(100 * (1 - node.free_bytes / node.total_bytes)) if node.total_bytes else 0,
        )
        for node in row.nodes
    ]
