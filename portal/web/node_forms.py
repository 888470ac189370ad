"""Adding a node (its host key is confirmed before it is trusted), and editing one."""

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext

from portal.i18n import gettext_lazy
from portal.web.forms import error_text, put_faults, status_of
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.node_isolation import PathView
from scheduling.clusters.queries.nodes import NodeDetail, node_detail
from scheduling.clusters.services.node_values import (
    fingerprint_of,
    node_faults,
    read_jump_host,
)
from scheduling.clusters.services.nodes import add_node, update_node
from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import read_memory
from scheduling.core.jump_hosts import jump_host_text
from tenants.errors import DomainError, InvalidError, StaleEditError
from tenants.roles import Permission
from tessera.job_networks import AUTO, ISOLATED, SHARED
from workers.conf import client_keys, public_key
from workers.transports.base import HostKeyError, UnreachableNodeError
from workers.transports.jump import fetch_key_through, jump_host_of

FETCH_SECONDS = 8.0
_JUMP_FIELDS = {
    "jump_host.host_key_fingerprint": "jump_fingerprint",
    "jump_host.host_key": "jump_fingerprint",
}
_FIELDS = {
    "jump_host.host_key": "jump_host",
    "jump_host.host_key_fingerprint": "jump_host",
    "host_key_fingerprint": "fingerprint",
    "host_key": "fingerprint",
}


class AddressForm(forms.Form):
    """Address and labels of a node."""

    host = forms.CharField(label=gettext_lazy("Host"), max_length=255)
    port = forms.IntegerField(label=gettext_lazy("Port"), initial=22, min_value=1, max_value=65535)
    user = forms.CharField(label=gettext_lazy("User"), max_length=64)
    labels = forms.CharField(
        label=gettext_lazy("Labels"),
        required=False,
        max_length=4000,
        widget=forms.TextInput(attrs={"placeholder": "rack=Rack 1, zone=b"}),
    )

    def clean_labels(self) -> dict[str, str]:
        """Parse ``key=value, key=value`` into a mapping."""
        found: dict[str, str] = {}
        for part in self.cleaned_data["labels"].split(","):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not part.strip():
                continue
            if not equals or not key or key in found:
                raise forms.ValidationError(
                    gettext("%(strip)s is not a valid label. Use name=value, each name once.")
                    % {"strip": part.strip()[:80]}
                )
            found[key] = value
        return found


def jump_field() -> forms.CharField:
    """Return the field of the host through which a node is reached."""
    return forms.CharField(
        label=gettext_lazy("Jump host"),
        required=False,
        max_length=330,
        widget=forms.TextInput(attrs={"placeholder": "user@bastion.example.com:22"}),
    )


class AddForm(AddressForm):
    """A new node; the keys are in the second step only."""

    jump_host = jump_field()
    jump_key = forms.CharField(required=False, widget=forms.HiddenInput, max_length=16_384)

    name = forms.CharField(label=gettext_lazy("Name"), max_length=63)
    host_key = forms.CharField(required=False, widget=forms.HiddenInput, max_length=16_384)
    fingerprint = forms.CharField(required=False, widget=forms.HiddenInput, max_length=100)


KINDS: Final = {"writable": ":rw", "checkpoints": ":checkpoints"}
"""Suffixes of visible paths that are not read-only."""


class EditForm(AddressForm):
    """A known node; ``version`` is the one that the editor saw."""

    version = forms.IntegerField(widget=forms.HiddenInput)
    dedicated_to = forms.CharField(
        label=gettext_lazy("Dedicated to"), required=False, max_length=4000
    )
    visible_paths = forms.CharField(
        label=gettext_lazy("Visible paths"),
        required=False,
        max_length=100_000,
        widget=forms.Textarea(attrs={"rows": 3, "placeholder": "/data/sets\n/scratch:rw @vision"}),
    )

    job_network = forms.ChoiceField(
        label=gettext_lazy("Network of jobs without an image"),
        required=False,
        choices=[
            ("", gettext_lazy("From the node's configuration file (default: auto)")),
            (AUTO, gettext_lazy("auto: own network, connected if possible, else shared")),
            (ISOLATED, gettext_lazy("isolated: own network, connected if possible")),
            (SHARED, gettext_lazy("shared: the network of the node")),
        ],
    )

    data_interface = forms.CharField(
        label=gettext_lazy("Network interface of gangs"),
        required=False,
        max_length=15,
        widget=forms.TextInput(attrs={"placeholder": "ib0"}),
    )

    device_cpus = forms.FloatField(
        label=gettext_lazy("CPUs of each device"),
        required=False,
        min_value=0.1,
        max_value=4096,
    )
    device_memory_bytes = forms.CharField(
        label=gettext_lazy("Memory of each device"),
        required=False,
        max_length=20,
        widget=forms.TextInput(attrs={"placeholder": "60GiB"}),
    )

    jump_host = jump_field()
    jump_fingerprint = forms.CharField(
        label=gettext_lazy("Host key of the jump host"),
        required=False,
        max_length=100,
        widget=forms.TextInput(attrs={"placeholder": "SHA256:…"}),
    )

    def clean_device_memory_bytes(self) -> int | None:
        """Parse a size such as 60GiB; None if empty."""
        given = self.cleaned_data["device_memory_bytes"].strip()
        if not given:
            return None
        try:
            return read_memory(int(given) if given.isdecimal() else given)
        except RefusalError as refused:
            raise forms.ValidationError(f"{refused.message} {refused.remedy}") from None

    def clean_dedicated_to(self) -> list[str]:
        """Return names of tenants with commas between them."""
        names = self.cleaned_data["dedicated_to"].split(",")
        return [name.strip() for name in names if name.strip()]

    def clean_visible_paths(self) -> list[dict[str, Any]]:
        """Parse lines of ``PATH[:rw|:checkpoints] [@TENANT,...]``."""
        found = []
        for line in self.cleaned_data["visible_paths"].splitlines():
            place, _, names = line.strip().partition("@")
            path = place.strip()
            if not path:
                continue
            tenants = [name.strip() for name in names.split(",") if name.strip()]
            kinds = {name: path.endswith(suffix) for name, suffix in KINDS.items()}
            for suffix in KINDS.values():
                path = path.removesuffix(suffix)
            found.append({"path": path, **kinds, "tenants": tenants})
        return found


@page
def add(asked: PageRequest) -> HttpResponseBase:
    """Ask for the address, show the host key, and store the node after its confirmation."""
    asked.viewer.require(Permission.MANAGE_NODES, what="nodes")
    form = AddForm(asked.http.POST or None)
    context: dict[str, Any] = {
        "form": form,
        "seen": "",
        "portal_key": public_key(),
    }
    if asked.http.method != "POST" or not form.is_valid():
        return asked.render("nodes/add.html", context, status=status_of(form))
    values = form.cleaned_data
    if values["fingerprint"] and "confirm" in asked.http.POST:
        stored = _store(asked, form)
        if stored is not None:
            messages.success(
                asked.http,
                gettext("%(name)s added. Tessera is probing it.") % {"name": values["name"]},
            )
            return redirect("node", stored)
        return asked.render("nodes/add.html", context, status=status_of(form))
    found = _keys_shown(form)
    if found:
        key, jump_key = found
        context |= {"seen": fingerprint_of(key) or "", "key": key, "jump_key": jump_key}
        context["jump_seen"] = fingerprint_of(jump_key) or ""
    return asked.render("nodes/add.html", context, status=status_of(form))


@page
def edit(asked: PageRequest, node_id: int) -> HttpResponseBase:
    """Change the address or the labels of a node."""
    detail = node_detail(asked.viewer, node_id)
    asked.viewer.require(Permission.MANAGE_NODES, what="the node")
    if asked.http.method != "POST":
        return _edit_page(asked, detail, EditForm(initial=_initial(detail)))
    form = EditForm(asked.http.POST)
    if not form.is_valid():
        return _edit_page(asked, detail, form)
    values = form.cleaned_data
    try:
        update_node(
            viewer=asked.viewer,
            node_id=node_id,
            now=asked.now,
            expected_version=values["version"],
            host=values["host"],
            port=values["port"],
            user=values["user"],
            labels=values["labels"],
            dedicated_to=values["dedicated_to"],
            visible_paths=values["visible_paths"],
            job_network=values["job_network"],
            data_interface=values["data_interface"],
            device_cpus=values["device_cpus"],
            device_memory_bytes=values["device_memory_bytes"],
            **_edited_jump(detail, values),
        )
    except StaleEditError as refused:
        fresh = node_detail(asked.viewer, node_id)
        return _edit_page(asked, fresh, EditForm(_as_data(fresh)), stale=error_text(refused))
    except DomainError as refused:
        put_faults(form, refused, _JUMP_FIELDS)
        return _edit_page(asked, detail, form)
    messages.success(asked.http, gettext("%(name)s changed.") % {"name": detail.row.name})
    return redirect("node", node_id)


def _keys_shown(form: AddForm) -> tuple[str, str] | None:
    """Return the current host keys of the node and of its jump host; None after errors."""
    values = form.cleaned_data
    fields = ("name", "host", "port", "user", "labels")
    faults = node_faults({name: values[name] for name in fields})
    jump: dict[str, Any] = {}
    try:
        InvalidError.raise_if(faults)
        jump = read_jump_host(values["jump_host"])
    except InvalidError as refused:
        put_faults(form, refused)
        return None
    where = "jump_host"
    try:
        if jump:
            key = fetch_key_through(
                None, client_keys(), jump["host"], jump["port"], seconds=FETCH_SECONDS
            )
            jump["host_key"] = async_to_sync(_awaited)(key)
        where = "host"
        line = fetch_key_through(
            jump_host_of(jump),
            client_keys(),
            values["host"],
            values["port"],
            seconds=FETCH_SECONDS,
        )
        return async_to_sync(_awaited)(line), jump.get("host_key", "")
    except (HostKeyError, UnreachableNodeError) as error:
        form.add_error(
            where,
            gettext(
                "No SSH server responds: %(error)s. Check the address, and that sshd is "
                "reachable from the Tessera server."
            )
            % {"error": error},
        )
    return None


async def _awaited(found: Awaitable[str]) -> str:
    return await found


def _jump_of(values: Mapping[str, Any], key: str, fingerprint: str) -> dict[str, Any]:
    jump = read_jump_host(values["jump_host"])
    return {**jump, "host_key": key, "host_key_fingerprint": fingerprint} if jump else {}


def _edited_jump(detail: NodeDetail, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change of the jump host; a new one needs the fingerprint of its key.

    Raises:
        InvalidError: the address is not valid, the host does not respond, or presents another key.
    """
    wanted = read_jump_host(values["jump_host"])
    if jump_host_text(wanted) == detail.jump_host and (
        not wanted or values["jump_fingerprint"] in ("", detail.jump_host_key_fingerprint)
    ):
        return {}
    if not wanted:
        return {"jump_host": {}}
    try:
        line = async_to_sync(_awaited)(
            fetch_key_through(
                None, client_keys(), wanted["host"], wanted["port"], seconds=FETCH_SECONDS
            )
        )
    except UnreachableNodeError as error:
        raise InvalidError(
            gettext("The jump host does not respond: %(error)s.") % {"error": error},
            field="jump_host",
        ) from None
    return {"jump_host": _jump_of(values, line, values["jump_fingerprint"])}


def _store(asked: PageRequest, form: AddForm) -> int | None:
    values = form.cleaned_data
    try:
        node = add_node(
            viewer=asked.viewer,
            name=values["name"],
            host=values["host"],
            port=values["port"],
            user=values["user"],
            host_key=values["host_key"],
            fingerprint=values["fingerprint"],
            labels=values["labels"],
            jump_host=_jump_of(
                values, values["jump_key"], fingerprint_of(values["jump_key"]) or ""
            ),
            now=asked.now,
        )
    except DomainError as refused:
        put_faults(form, refused, _FIELDS)
        return None
    return int(node.pk)


def _edit_page(
    asked: PageRequest, detail: NodeDetail, form: EditForm, *, stale: str = ""
) -> HttpResponseBase:
    context = {"detail": detail, "form": form, "stale": stale}
    return asked.render("nodes/edit.html", context, status=status_of(form))


def _initial(detail: NodeDetail) -> dict[str, Any]:
    row = detail.row
    labels = ", ".join(f"{key}={value}" for key, value in row.labels.items())
    return {
        "host": row.host,
        "port": row.port,
        "user": row.user,
        "labels": labels,
        "version": row.version,
        "dedicated_to": ", ".join(row.isolation.dedicated_to),
        "visible_paths": "\n".join(map(_path_line, row.isolation.visible_paths)),
        "job_network": row.isolation.job_network,
        "data_interface": row.data_interface,
        "device_cpus": detail.cpu_use.device_cpus,
        "device_memory_bytes": detail.cpu_use.device_memory_bytes,
        "jump_host": detail.jump_host,
        "jump_fingerprint": detail.jump_host_key_fingerprint,
    }


def _path_line(visible: PathView) -> str:
    kinds = {"writable": visible.writable, "checkpoints": visible.checkpoints}
    mode = "".join(KINDS[name] for name, is_set in kinds.items() if is_set)
    names = f" @{', '.join(visible.tenants)}" if visible.tenants else ""
    return f"{visible.path}{mode}{names}"


def _as_data(detail: NodeDetail) -> dict[str, str]:
    given = _initial(detail).items()
    return {key: "" if value is None else str(value) for key, value in given}
