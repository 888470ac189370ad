"""*Needs attention* for cluster admins: texts of problems, and snoozing them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.addresses import address, job_url, node_url
from portal.i18n import word
from portal.web.components import words
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.clusters.queries.attention import ClusterProblem, problems
from scheduling.clusters.queries.cluster import ClusterView
from tenants.roles import Permission
from tenants.selectors import snoozed_keys
from tenants.services import snooze

Facts = Mapping[str, Any]
MOST_SHOWN: Final = 20
MOST_NUMBERS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRow:
    """A problem as a row.

    Attributes:
        label: kind of the problem as text.
        details: names and numbers.
        url, action: address of the page with the remedy, and the text of its button.
    """

    key: str
    label: str
    icon: str
    tone: str
    details: str
    since: datetime | None
    url: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Open and snoozed problems; ``shown`` are at most ``MOST_SHOWN`` of the chosen ones."""

    open: int
    snoozed: int
    shown: tuple[AttentionRow, ...]
    shows_snoozed: bool

    @property
    def hidden(self) -> int:
        """Return the number of chosen problems that are not shown."""
        return (self.snoozed if self.shows_snoozed else self.open) - len(self.shown)


def attention(asked: PageRequest, cluster: ClusterView, *, snoozed: bool) -> Attention | None:
    """Return the problems for a cluster admin; None for everybody else."""
    viewer = asked.viewer
    if not viewer.is_cluster_admin or viewer.bound_tenant_id is not None:
        return None
    found = problems(viewer, cluster, now=asked.now)
    hidden = snoozed_keys(viewer, now=asked.now)
    chosen = [one for one in found if (one.key in hidden) == snoozed]
    number = sum(one.key in hidden for one in found)
    return Attention(
        open=len(found) - number,
        snoozed=number,
        shown=tuple(map(_item, chosen[:MOST_SHOWN])),
        shows_snoozed=snoozed,
    )


@posts_from("overview")
@page
def snooze_problem(asked: PageRequest) -> HttpResponseBase:
    """Hide a problem from this admin for a time, or show it again."""
    asked.viewer.require(Permission.MANAGE_NODES)
    sent = asked.http.POST
    snooze(
        viewer=asked.viewer,
        key=sent.get("key", ""),
        span=sent.get("for", ""),
        now=asked.now,
    )
    return redirect("overview")


def _item(one: ClusterProblem) -> AttentionRow:
    label, icon, action = _KINDS[one.kind]()
    text, url = _TEXTS.get(one.kind, _of_node)(one.subject, one.facts)
    return AttentionRow(
        key=one.key,
        label=label,
        icon=icon,
        tone=one.tone,
        details=text,
        since=one.since,
        url=url,
        action=action,
    )


_KINDS: Final[Mapping[str, Callable[[], tuple[str, str, str]]]] = {
    "node-down": lambda: (_("Node down"), "failed", _("Open node")),
    "node-suspect": lambda: (_("Node suspect"), "suspect", _("Open node")),
    "node-cordoned": lambda: (_("Cordoned"), "paused", _("Open node")),
    "node-draining": lambda: (_("Draining"), "paused", _("Open node")),
    "devices-unhealthy": lambda: (_("Devices unhealthy"), "failed", _("Open node")),
    "device-suspect": lambda: (_("Device may be faulty"), "suspect", _("Open node")),
    "start-stuck": lambda: (_("Job stuck"), "clock", _("Open job")),
    "held-idle": lambda: (_("Held but idle"), "paused", _("Show jobs")),
    "guarantee-short": lambda: (
        _("Guarantee short"),
        "warning",
        _("Open virtual cluster"),
    ),
    "hook-failing": lambda: (_("Webhook failing"), "warning", _("Open webhook")),
}


def _of_node(subject: int, facts: Facts) -> tuple[str, str]:
    held = words.plural(facts["held"], "device", "devices")
    text = _("%(node)s: %(held)s in use.") % {"node": facts["node"], "held": held}
    reason = str(facts["reason"])
    return f"{text} {reason}".strip(), node_url(subject)


def _unhealthy(subject: int, facts: Facts) -> tuple[str, str]:
    numbers = [str(index) for index in facts["devices"]]
    shown = _(", ").join(numbers[:MOST_NUMBERS]) + ("…" if len(numbers) > MOST_NUMBERS else "")
    text = _("%(node)s, devices %(numbers)s: %(reason)s") % {
        "node": facts["node"],
        "numbers": shown,
        "reason": facts["reason"] or _("unhealthy"),
    }
    return text, node_url(subject)


def _suspect_device(subject: int, facts: Facts) -> tuple[str, str]:
    text = _(
        "%(node)s, device %(device)s: more jobs of several tenants fail here than elsewhere."
        " Quarantine the device."
    )
    return text % {"node": facts["node"], "device": facts["device"]}, node_url(subject)


def _stuck(subject: int, facts: Facts) -> tuple[str, str]:
    text = _("%(name)s (%(job)s) has been %(state)s for more than 10 min.") % {
        "name": facts["name"],
        "job": facts["job"],
        "state": word(facts["state"]),
    }
    return text, job_url(subject)


def _idle(_subject: int, facts: Facts) -> tuple[str, str]:
    text = _("Idle for more than 30 min: %(devices)s in %(jobs)s.") % {
        "devices": words.plural(facts["devices"], "device", "devices"),
        "jobs": words.plural(facts["jobs"], "job", "jobs"),
    }
    return text, f"{address('jobs')}?state=running"


def _short(subject: int, facts: Facts) -> tuple[str, str]:
    text = _(
        "%(name)s: %(jobs)s for devices inside its guarantee; %(used)s of %(guarantee)s in use,"
        " %(healthy)s healthy."
    ) % {
        "name": facts["virtual_cluster"],
        "jobs": words.plural(facts["jobs"], "job waits", "jobs wait"),
        "used": words.count(facts["used"]),
        "guarantee": words.count(facts["guarantee"]),
        "healthy": words.count(facts["healthy"]),
    }
    return text, address("virtual-cluster", subject)


def _hook(subject: int, facts: Facts) -> tuple[str, str]:
    text = _("%(hook)s: %(failed)s failed in the last 24 h.") % {
        "hook": facts["hook"],
        "failed": words.plural(facts["failed"], "delivery", "deliveries"),
    }
    return text, address("hook", subject)


_TEXTS: Final[Mapping[str, Callable[[int, Facts], tuple[str, str]]]] = {
    "devices-unhealthy": _unhealthy,
    "device-suspect": _suspect_device,
    "start-stuck": _stuck,
    "held-idle": _idle,
    "guarantee-short": _short,
    "hook-failing": _hook,
}
