"""Quality of start estimates."""

from typing import Annotated, ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body, From, rounded
from portal.api.schema import Op
from portal.api.views import ApiViewSet
from scheduling.estimates.queries import EstimateAccuracy, calibration
from tenants.clock import database_now
from tenants.roles import Permission


class CalibrationOut(TypedDict):
    """Calibration of the start estimates of a virtual cluster over the last 30 days; seconds.

    `withheld`: forecasts that were too wide to be shown.
    """

    virtual_cluster: str
    estimates: int
    inside: Annotated[float, From("inside", rounded(4))]
    below: Annotated[float, From("below", rounded(4))]
    above: Annotated[float, From("above", rounded(4))]
    loss_seconds: Annotated[float, From("loss", rounded(1))]
    plain_loss_seconds: Annotated[float, From("plain_loss", rounded(1))]
    waiting: int
    withheld: int


class CalibrationsOut(TypedDict):
    """Calibration of each virtual cluster with estimates."""

    results: list[CalibrationOut]
    next_cursor: None


class EstimateViewSet(ApiViewSet):
    """Start estimates and the actual starts."""

    collection = "estimates"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {"list": Op(answer=CalibrationsOut)}

    def list(self, request: Request) -> Response:
        """Get the share of starts between p10 and p90 of their estimate, by virtual cluster."""
        found = calibration(self.viewer, now=database_now())
        return Response({"results": [calibration_out(row) for row in found], "next_cursor": None})


calibration_out = Body(CalibrationOut, EstimateAccuracy)
