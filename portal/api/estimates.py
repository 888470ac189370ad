"""How often start estimates were right."""

from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.selectors.estimates import Calibration, calibration
from tenants.clock import database_now
from tenants.roles import Permission


class CalibrationOut(TypedDict):
    """Estimates of one virtual cluster of the last 30 days beside the truth; seconds.

    `withheld`: forecasts that were too wide to be shown.
    """

    virtual_cluster: str
    estimates: int
    inside: float
    below: float
    above: float
    loss_seconds: float
    plain_loss_seconds: float
    waiting: int
    withheld: int


class CalibrationsOut(TypedDict):
    """One line for each virtual cluster with estimates."""

    results: list[CalibrationOut]
    next_cursor: None


class EstimateViewSet(ApiViewSet):
    """Start estimates beside what came of them."""

    collection = "estimates"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {"list": Op(answer=CalibrationsOut)}

    def list(self, request: Request) -> Response:
        """How often the truth fell between p10 and p90, by virtual cluster."""
        found = calibration(self.viewer, now=database_now())
        return Response({"results": [calibration_out(row) for row in found], "next_cursor": None})


def calibration_out(row: Calibration) -> CalibrationOut:
    """One virtual cluster."""
    return {
        "virtual_cluster": row.virtual_cluster,
        "estimates": row.estimates,
        "inside": round(row.inside, 4),
        "below": round(row.below, 4),
        "above": round(row.above, 4),
        "loss_seconds": round(row.loss, 1),
        "plain_loss_seconds": round(row.plain_loss, 1),
        "waiting": row.waiting,
        "withheld": row.withheld,
    }
