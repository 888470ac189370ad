"""Actions on nodes: cordon, uncordon, declare dead, remove."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

from django.contrib import messages
from django.db.models import Model
from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.forms import error_text
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.nodes import NodeRow, node_detail
from scheduling.clusters.services import nodes as services
from scheduling.clusters.services.cluster_rules import set_least_isolation
from scheduling.clusters.services.guest_limits import limit_guests
from scheduling.clusters.services.node_rows import DRIVER_HANGS
from scheduling.clusters.services.node_tenancies import reset_isolation
from scheduling.runs.services.guests import set_sharing
from tenants.errors import DomainError, InvalidError
from tenants.roles import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An action of an admin on a node.

    Attributes:
        verb: name in the address.
        word: label of the button.
        summary: effect.
        needs_reason: a reason must be given.
        done: text of the confirmation.
        act: the service.
    """

    verb: str
    word: str
    summary: str
    needs_reason: bool
    done: str
    act: Callable[..., Model]


ACTS: Final = {
    act.verb: act
    for act in (
        Act(
            verb="cordon",
            word=gettext_lazy("Cordon"),
            summary=gettext_lazy("No new jobs start on the node. Running jobs continue."),
            needs_reason=True,
            done=gettext_lazy("%(node)s cordoned."),
            act=services.cordon_node,
        ),
        Act(
            verb="drain",
            word=gettext_lazy("Drain"),
            summary=gettext_lazy(
                "No new jobs start on the node. Running jobs get a notice, save their work, "
                "and are requeued. Work not saved within the grace period is lost."
            ),
            needs_reason=True,
            done=gettext_lazy("%(node)s is draining."),
            act=services.drain_node,
        ),
        Act(
            verb="uncordon",
            word=gettext_lazy("Uncordon"),
            summary=gettext_lazy("New jobs can start on the node from the next scheduling round."),
            needs_reason=False,
            done=gettext_lazy("%(node)s uncordoned."),
            act=services.uncordon_node,
        ),
        Act(
            verb="declare-dead",
            word=gettext_lazy("Declare dead"),
            summary=gettext_lazy(
                "The scheduler requeues the jobs of the node. Do this only if the machine is "
                "off: a job that still runs there would run twice."
            ),
            needs_reason=True,
            done=gettext_lazy("%(node)s declared dead. Its jobs are requeued."),
            act=services.declare_node_dead,
        ),
        Act(
            verb="reset-isolation",
            word=gettext_lazy("Reset isolation"),
            summary=gettext_lazy(
                "The node no longer belongs to its tenant, and other tenants can use it. "
                "Clean the node first: jobs may have left files, cron jobs or keys."
            ),
            needs_reason=True,
            done=gettext_lazy("Isolation of %(node)s reset."),
            act=reset_isolation,
        ),
    )
}


@page
def act_on_node(asked: PageRequest, node_id: int, verb: str) -> HttpResponseBase:
    """Cordon or uncordon a node; ask for a missing reason."""
    act = ACTS.get(verb)
    if act is None:
        raise Http404
    detail = node_detail(asked.viewer, node_id)
    asked.viewer.require(Permission.MANAGE_NODES, what="the node")
    error = ""
    if asked.http.method == "POST":
        try:
            act.act(
                viewer=asked.viewer,
                node_id=node_id,
                reason=asked.http.POST.get("reason", "").strip(),
                now=asked.now,
            )
        except InvalidError as refused:
            error = error_text(refused) if "asked" in asked.http.POST else ""
        except DomainError as refused:
            messages.error(asked.http, error_text(refused))
            return redirect("node", node_id)
        else:
            messages.success(asked.http, act.done % {"node": detail.row.name})
            return redirect(_back(asked, node_id))
    return asked.render(
        "nodes/act.html",
        {
            "detail": detail,
            "act": act,
            "error": error,
            "reason": asked.http.POST.get("reason", ""),
        },
        status=HTTPStatus.UNPROCESSABLE_ENTITY if error else HTTPStatus.OK,
    )


@posts_from("node")
@page
def remove_node(asked: PageRequest, node_id: int) -> HttpResponseBase:
    detail = node_detail(asked.viewer, node_id)
    try:
        services.remove_node(viewer=asked.viewer, node_id=node_id, now=asked.now)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
        return redirect("node", node_id)
    messages.success(
        asked.http, _("%(name)s removed. Its history is retained.") % {"name": detail.row.name}
    )
    return redirect("nodes")


@posts_from("nodes")
@page
def set_cluster_isolation(asked: PageRequest) -> HttpResponseBase:
    asked.viewer.require(Permission.MANAGE_NODES, what="nodes")
    try:
        rules = set_least_isolation(
            viewer=asked.viewer,
            level=asked.http.POST.get("least_isolation", ""),
            now=asked.now,
        )
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(
            asked.http,
            _("Jobs run on nodes of isolation level %(key)s or better.")
            % {"key": rules.least_isolation},
        )
    return redirect("nodes")


@posts_from("nodes")
@page
def set_cluster_sharing(asked: PageRequest) -> HttpResponseBase:
    """Turn device sharing on or off; off orders all guests to leave."""
    enabled = asked.http.POST.get("sharing") == "on"
    try:
        set_sharing(viewer=asked.viewer, enabled=enabled, now=asked.now)
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(
            asked.http,
            _("Device sharing is on.") if enabled else _("Device sharing is off."),
        )
    return redirect("nodes")


@posts_from("node")
@page
def limit_node_guests(asked: PageRequest, node_id: int) -> HttpResponseBase:
    """Limit the guests on a node, or on one device; others leave."""
    given = asked.http.POST
    device = given.get("device", "")
    try:
        limit_guests(
            viewer=asked.viewer,
            node_id=node_id,
            guests=given.get("guests", ""),
            device=int(device) if device.isascii() and device.isdecimal() else None,
            now=asked.now,
        )
    except DomainError as refused:
        messages.error(asked.http, error_text(refused))
    else:
        messages.success(asked.http, _("Guests limited. Others leave within 5 s."))
    return redirect("node", node_id)


def acts_for(row: NodeRow, declared_dead_at: datetime | None) -> tuple[Act, ...]:
    """Return the actions that apply to a node in its current state."""
    verbs = []
    if row.held:
        verbs.append("uncordon")
    if row.held != "cordoned":
        verbs.append("cordon")
    if row.can_drain:
        verbs.append("drain")
    is_silent = row.contact != "ready" and row.view.state_reason != DRIVER_HANGS
    if is_silent and declared_dead_at is None:
        verbs.append("declare-dead")
    if row.isolation.owner:
        verbs.append("reset-isolation")
    return tuple(ACTS[verb] for verb in verbs)


def _back(asked: PageRequest, node_id: int) -> str:
    if asked.http.POST.get("from") == "list":
        return reverse("nodes")
    return reverse("node", args=[node_id])
