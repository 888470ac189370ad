"""Live reconfiguration: all quotas on one page, the preview of a change, and its application."""

from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.web.components import words
from portal.web.formfaults import error_text
from portal.web.reconfigure_form import (
    EMPTY,
    Sent,
    edits_of,
    new_pins,
    pin_rows,
    read_form,
    share_rows,
)
from portal.web.viewing import PageRequest, page
from scheduling.clusters.queries.reconfiguration import Effect
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.reconfiguration import Reconfigured, reconfigure
from scheduling.topology.current import current_topology
from tenants.errors import DomainError, StaleEditError
from tenants.roles import Permission


@page
def reconfigure_page(asked: PageRequest) -> HttpResponseBase:
    """Show the form; preview its input; after a preview, apply the change."""
    asked.viewer.require(Permission.EDIT_VC, what="virtual clusters")
    if asked.http.method != "POST":
        return _shown(asked, EMPTY)
    try:
        sent = read_form(asked.http.POST)
    except DomainError as error:
        return _shown(asked, EMPTY, refused=error_text(error))
    try:
        return _answered(asked, sent)
    except StaleEditError:
        return _shown(asked, sent, is_stale=True, status=HTTPStatus.CONFLICT)
    except DomainError as error:
        return _shown(asked, sent, refused=error_text(error))


def _answered(asked: PageRequest, sent: Sent) -> HttpResponseBase:
    """Return the preview; or apply the change, if exactly it was previewed."""
    edits = edits_of(sent, spec_in_force(current_topology()))
    if not edits:
        return _shown(asked, sent, nothing=True)
    wants_it = "apply" in asked.http.POST
    was_seen = asked.http.POST.get("seen") == sent.digest()
    answer = reconfigure(
        viewer=asked.viewer,
        edits=edits,
        now=asked.now,
        dry_run=not (wants_it and was_seen),
        expected_version=sent.version,
        reason=sent.reason,
    )
    if answer.dry_run:
        return _shown(asked, sent, effect=answer.effect, must_look_again=wants_it)
    messages.success(asked.http, done_words(answer))
    return redirect("virtual-clusters")


def done_words(answer: Reconfigured) -> str:
    """Describe the applied change, for the toast."""
    loses = len(answer.effect.loses)
    if not loses:
        return _("Cluster reconfigured. No running job lost its guarantee.")
    return ngettext(
        "Cluster reconfigured. %(count)s running job becomes opportunistic in the next round.",
        "Cluster reconfigured. %(count)s running jobs become opportunistic in the next round.",
        loses,
    ) % {"count": words.count(loses)}


def _shown(
    asked: PageRequest,
    sent: Sent,
    *,
    effect: Effect | None = None,
    status: int = HTTPStatus.OK,
    **said: Any,
) -> HttpResponseBase:
    topology = current_topology()
    spec = spec_in_force(topology)
    context = {
        "vcs": tuple(spec.virtual_clusters),
        "rows": share_rows(topology, spec, sent),
        "pins": pin_rows(spec, sent),
        "new_pins": new_pins(sent),
        "sent": sent,
        "version": topology.version,
        "effect": effect,
        "acts": (*sent.cordoned, *sent.uncordoned, *sent.removed),
        "seen": sent.digest() if effect is not None and effect.change.fits else "",
        "can_manage_nodes": asked.viewer.can(Permission.MANAGE_NODES),
        **said,
    }
    return asked.render("virtual_clusters/reconfigure.html", context, status=status)
