"""Page *Explain share*: borrowed devices of virtual clusters, and what limits them."""

from typing import Any, Final

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.api.shares import CHOICES, explained
from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.components.stats import Stat
from portal.web.viewing import PageRequest, page
from scheduling.core.explanations.shares import Limit, TenantShare, Totals, VcShare
from scheduling.estimates.services.shares import NOW, SharesView, SumCheck

LIMITS: Final = {
    Limit.IDLE: gettext_lazy("Too few idle devices"),
    Limit.WEIGHT: gettext_lazy("Weight: beyond the fair share of the tenant"),
    Limit.SHAPE: gettext_lazy(
        "Shape: enough idle devices, but not in cells that the jobs can use"
    ),
    Limit.QUOTA: gettext_lazy("Quota: a limit of the owner or of the virtual cluster"),
    Limit.ORDER: gettext_lazy("Order: the policy serves other jobs first"),
    Limit.NODES: gettext_lazy("Nodes: the jobs cannot run on the nodes with enough free devices"),
    Limit.GATE: gettext_lazy("Not ready: on hold, with a dependency or an earliest start"),
}
CHECKS: Final = {
    "weights": (
        gettext_lazy("Weights of all tenants"),
        gettext_lazy("total weight"),
    ),
    "fair": (
        gettext_lazy("Fair shares of all tenants"),
        gettext_lazy("sum of the round"),
    ),
    "devices": (
        gettext_lazy("Used + borrowed + idle + unusable"),
        gettext_lazy("devices of the cluster"),
    ),
    "borrowed": (
        gettext_lazy("Borrowed devices of all tenants"),
        gettext_lazy("borrowed devices of the cluster"),
    ),
    "requested": (
        gettext_lazy("Borrowed + waiting devices of the shown tenants"),
        gettext_lazy("their requested devices"),
    ),
    "lent": (
        gettext_lazy("Lent guaranteed devices"),
        gettext_lazy("borrowed devices, at most"),
    ),
}


@require_safe
@page
def shares(asked: PageRequest) -> HttpResponse:
    """Show the explained shares now or over a span."""
    span = asked.http.GET.get("span", NOW)
    found = explained(asked.viewer, span if span in CHOICES else NOW)
    tenants = {share.tenant: (name, share) for name, share in found.tenants}
    context = {
        "found": found,
        "spans": [(name, name == found.span) for name in CHOICES],
        "is_now": found.span == NOW,
        "stats": () if found.totals is None else _stats(found.totals),
        "rows": [_row(name, share, tenants[share.tenant], found) for name, share in found.vcs],
        "tenants": [
            {"name": name, "share": share, "percent": _part(share.weight, found.totals)}
            for name, share in found.tenants
        ],
        "checks": [_check(check) for check in found.checks],
        "twin": f"/api/v1/shares/?span={found.span}",
    }
    return asked.render("shares/shares.html", context)


def devices(number: float) -> str:
    """Return a number of devices, with one decimal if it is a mean."""
    return words.count(round(number)) if abs(number - round(number)) < 0.05 else f"{number:.1f}"


def _stats(totals: Totals) -> tuple[Stat, ...]:
    return (
        Stat(
            label=_("Borrowed by all tenants"),
            value=devices(totals.borrowed),
            context=_("of %(borrowable)s borrowable devices")
            % {"borrowable": devices(totals.borrowable)},
        ),
        Stat(
            label=_("Requested by all tenants"),
            value=devices(totals.requested),
            context=_("borrowed, and offered to waiting jobs"),
        ),
        Stat(
            label=_("Idle"),
            value=devices(totals.idle),
            context=_("of %(devices)s devices; %(unusable)s unusable")
            % {"devices": devices(totals.devices), "unusable": devices(totals.unusable)},
        ),
        Stat(
            label=_("Guarantees in use"),
            value=devices(totals.used),
            context=_("of %(guaranteed)s guaranteed devices; %(lent)s lent")
            % {"guaranteed": devices(totals.guaranteed), "lent": devices(totals.lent)},
        ),
    )


def _row(
    name: str, share: VcShare, tenant: tuple[str, TenantShare], found: SharesView
) -> dict[str, Any]:
    return {
        "name": name,
        "id": share.vc,
        "tenant": tenant[0],
        "numbers": [
            (_("Guaranteed"), devices(share.guaranteed)),
            (_("Used"), devices(share.used)),
            (_("Lent"), devices(share.lent)),
            (_("Borrowed"), devices(share.borrowed)),
        ],
        "limits": [
            (LIMITS[limit], devices(share.waiting[limit]))
            for limit in Limit
            if share.waiting.get(limit, 0.0) > 0.0
        ],
        "sentences": [
            sentence for sentence in _sentences(name, share, *tenant, found) if sentence
        ],
    }


def _sentences(
    name: str, share: VcShare, tenant: str, of_tenant: TenantShare, found: SharesView
) -> tuple[str, ...]:
    """Explain one share: within the guarantee, the fair share of its tenant, and the limit."""
    totals = found.totals
    if totals is None:
        return ()
    fair = _(
        "%(tenant)s borrows %(borrowed)s of the %(borrowable)s borrowable devices. Its fair share "
        "is %(fair)s, by weight %(weight)s of %(total)s."
    ) % {
        "tenant": tenant,
        "borrowed": devices(of_tenant.borrowed),
        "borrowable": devices(totals.borrowable),
        "fair": devices(of_tenant.fair),
        "weight": devices(of_tenant.weight),
        "total": devices(totals.weight),
    }
    return (fair, _limit(name, share), _unready(name, share))


def _limit(name: str, share: VcShare) -> str:
    limit = share.limit
    if limit is None:
        return _("No waiting job of %(name)s requests borrowed devices.") % {"name": name}
    waiting = sum(share.waiting.values())
    return _(
        "Waiting jobs of %(name)s request %(waiting)s more. Main limit: %(limit)s (%(devices)s)."
    ) % {
        "name": name,
        "waiting": devices(waiting),
        "limit": LIMITS[limit],
        "devices": devices(share.waiting[limit]),
    }


def _unready(name: str, share: VcShare) -> str:
    if not share.guaranteed_waiting:
        return ""
    return _(
        "Guaranteed jobs that wait for %(devices)s devices do not borrow; submit them as "
        "opportunistic jobs to borrow."
    ) % {"devices": devices(share.guaranteed_waiting)}


def _part(weight: float, totals: Totals | None) -> float:
    return weight / totals.weight if totals is not None and totals.weight else 0.0


def _check(check: SumCheck) -> dict[str, Any]:
    left, right = CHECKS[check.name]
    return {
        "left": left,
        "right": right,
        "numbers": (devices(check.left), devices(check.right)),
        "holds": check.holds,
    }
