"""Explained shares of the viewer's virtual clusters, and totals of all tenants."""

from datetime import datetime
from typing import Annotated, ClassVar, Final, TypedDict

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, rounded
from portal.api.documents import round_config
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.core.explanations.shares import TenantShare, Totals, VcShare
from scheduling.estimates.services.shares import NOW, SPANS, SharesView, SumCheck, shares_view
from scheduling.storage.opening import open_storage
from tenants.clock import database_now
from tenants.errors import InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

CHOICES: Final = (NOW, *SPANS)

_devices = rounded(3)


class VcShareOut(TypedDict):
    """A virtual cluster: numbers of devices, and waiting opportunistic devices by limit.

    Limits are `idle` (too few idle devices), `weight` (beyond the fair share), `shape` (enough
    idle devices, but not in usable cells), `quota`, `order`, `nodes` and `gate`. `limit` has the
    most waiting devices; it is null if no job requests more.
    """

    id: int
    name: str
    tenant: str
    guaranteed: float
    used: float
    borrowed: float
    lent: float
    unusable: float
    guaranteed_waiting: float
    waiting: dict[str, float]
    limit: str | None


class TenantShareOut(TypedDict):
    """A tenant: its weight, its borrowed and requested devices, and its fair share."""

    name: str
    weight: float
    borrowed: float
    requested: float
    fair: float


class ShareTotalsOut(TypedDict):
    """Sums over all tenants, in devices."""

    devices: Annotated[float, From("devices", _devices)]
    guaranteed: Annotated[float, From("guaranteed", _devices)]
    used: Annotated[float, From("used", _devices)]
    borrowed: Annotated[float, From("borrowed", _devices)]
    lent: Annotated[float, From("lent", _devices)]
    idle: Annotated[float, From("idle", _devices)]
    unusable: Annotated[float, From("unusable", _devices)]
    weight: Annotated[float, From("weight", _devices)]
    requested: Annotated[float, From("requested", _devices)]
    fair: Annotated[float, From("fair", _devices)]


class ShareCheckOut(TypedDict):
    """Two numbers that agree: they are equal, or for `lent` the left one is not larger."""

    name: str
    left: Annotated[float, From("left", _devices)]
    right: Annotated[float, From("right", _devices)]
    holds: bool


class SharesOut(TypedDict):
    """Shares now or as means over a span; `samples` of `expected` times were read."""

    span: str
    since: datetime
    until: datetime
    samples: int
    expected: int
    virtual_clusters: list[VcShareOut]
    tenants: list[TenantShareOut]
    totals: ShareTotalsOut | None
    checks: list[ShareCheckOut]


class ShareViewSet(ApiViewSet):
    """Explained shares."""

    collection = "shares"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {
        "list": Op(
            takes=(
                OpenApiParameter(
                    "span", str, enum=CHOICES, description="`now` (default), or a past span."
                ),
            ),
            answer=SharesOut,
        )
    }

    def list(self, request: Request) -> Response:
        """Get shares: guaranteed, used, borrowed and lent devices, and what limits them.

        The response contains the virtual clusters whose jobs you may see, and totals of all
        tenants.
        """
        return Response(shares_out(explained(self.viewer, self.query.text("span", NOW))))


def explained(viewer: Viewer, span: str) -> SharesView:
    """Return the explained shares, by the settings of this portal.

    Raises:
        InvalidError: the span is unknown.
    """
    if span not in CHOICES:
        raise InvalidError(
            "This span is unknown.",
            field="span",
            value=span,
            remedy=f"Use any of: {', '.join(CHOICES)}.",
        )
    return shares_view(
        viewer,
        span,
        config=round_config(),
        storage=open_storage(settings.TESSERA.storage),
        now=database_now(),
    )


_totals_out = Body(ShareTotalsOut, Totals)
_check_out = Body(ShareCheckOut, SumCheck)


def shares_out(found: SharesView) -> SharesOut:
    """Return the response body."""
    tenants = {share.tenant: name for name, share in found.tenants}
    return SharesOut(
        span=found.span,
        since=found.since,
        until=found.until,
        samples=found.samples,
        expected=found.expected,
        virtual_clusters=[
            _vc_out(name, tenants[share.tenant], share) for name, share in found.vcs
        ],
        tenants=[_tenant_out(name, share) for name, share in found.tenants],
        totals=None if found.totals is None else _totals_out(found.totals),
        checks=[_check_out(check) for check in found.checks],
    )


def _vc_out(name: str, tenant: str, share: VcShare) -> VcShareOut:
    return VcShareOut(
        id=share.vc,
        name=name,
        tenant=tenant,
        guaranteed=_devices(share.guaranteed),
        used=_devices(share.used),
        borrowed=_devices(share.borrowed),
        lent=_devices(share.lent),
        unusable=_devices(share.unusable),
        guaranteed_waiting=_devices(share.guaranteed_waiting),
        waiting={str(limit): _devices(devices) for limit, devices in share.waiting.items()},
        limit=share.limit,
    )


def _tenant_out(name: str, share: TenantShare) -> TenantShareOut:
    return TenantShareOut(
        name=name,
        weight=_devices(share.weight),
        borrowed=_devices(share.borrowed),
        requested=_devices(share.requested),
        fair=_devices(share.fair),
    )
