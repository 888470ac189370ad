"""Base of all OpenPAI addresses: authentication, refusals and errors.

OpenPAI documents them; they are not in our own schema. Errors are ``{code, message}`` as there,
plus our list of faults.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.errors import problem_response
from portal.api.imports import AnyTextParser
from portal.api.views import NoSuchAddress, ViewerViewSet
from scheduling.clusters.queries.capacities import (
    DeviceCapacity,
    VcCapacity,
    device_types,
    vc_capacities,
)
from tenants.errors import ConflictError, NotFoundError
from tenants.roles import Permission

_CODES: Final[Mapping[int, str]] = {
    400: "InvalidParametersError",
    401: "UnauthorizedUserError",
    403: "ForbiddenUserError",
    404: "NoApiError",
    409: "ConflictJobError",
}
_NAMED: Final[Mapping[str, str]] = {
    "unknown-vc": "NoVirtualClusterError",
    "no-job": "NoJobError",
    "no-job-config": "NoJobConfigError",
    "no-virtual-cluster": "NoVirtualClusterError",
    "invalid-spec": "InvalidProtocolError",
    "invalid-document": "InvalidProtocolError",
    "unsupported-field": "InvalidProtocolError",
}


class NoJobError(NotFoundError):
    """No job of this name is visible to the caller."""

    code = "no-job"


class NoJobConfigError(NotFoundError):
    """The job has no OpenPAI document that can be shown."""

    code = "no-job-config"


class NoVirtualClusterError(NotFoundError):
    """No virtual cluster of this name is visible to the caller."""

    code = "no-virtual-cluster"


class TakenNameError(ConflictError):
    """The caller has a job of this name already."""


class OpenPaiViewSet(ViewerViewSet):
    """An address of OpenPAI's protocol. ``takes`` has its query parameters by method."""

    schema = None
    parser_classes = (AnyTextParser,)
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def parameters(self) -> Iterable[str]:
        """Names of the supported query parameters."""
        return self.takes.get(self.action, ())

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """Errors as OpenPAI's clients read them."""
        return refusal


class NoSuchOpenPaiAddress(NoSuchAddress):
    """OpenPAI addresses that are not supported."""

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """Errors as OpenPAI's clients read them."""
        return refusal


def refusal(error: Exception, context: dict[str, Any]) -> Response | None:
    """Our problem document as OpenPAI's ``{code, message}``, with its faults."""
    found = problem_response(error, context)
    if found is None:
        return None
    problem: dict[str, Any] = found.data
    faults = problem["errors"]
    words = [f"{fault['field']}: {fault['message']}".removeprefix(": ") for fault in faults]
    kinds = (problem["code"], *(fault.get("code", "") for fault in faults))
    code = next((_NAMED[kind] for kind in kinds if kind in _NAMED), None)
    return Response(
        {
            "code": code or _CODES.get(found.status_code, "UnknownError"),
            "message": " ".join(words) or problem["title"],
            "errors": faults,
        },
        status=found.status_code,
        headers={name: value for name, value in found.headers.items() if name != "Content-Type"},
        content_type="application/json",
    )


class OpenPaiClusterViewSet(OpenPaiViewSet):
    """The cluster in OpenPAI's units: GPUs, processors and MiB."""

    needs = Permission.VIEW_CLUSTER
    takes: ClassVar = {"sku_types": ("vc",)}

    def list(self, request: Request) -> Response:
        """Virtual clusters by name."""
        found = vc_capacities(self.viewer)
        return Response({row.name: _cluster(row) for row in found})

    def retrieve(self, request: Request, name: str) -> Response:
        """One virtual cluster."""
        return Response(_cluster(self._named(name)))

    def sku_types(self, request: Request) -> Response:
        """Device types with the resources per device; with ``vc`` those of its cells."""
        name = self.query.text("vc")
        wanted = self._named(name).device_types if name else None
        return Response(
            {
                kind: _amounts(share)
                for kind, share in device_types(self.viewer).items()
                if wanted is None or kind in wanted
            }
        )

    def _named(self, name: str) -> VcCapacity:
        found = next((row for row in vc_capacities(self.viewer) if row.name == name), None)
        if found is None:
            words = f"Virtual cluster {name} is not found."
            raise NoVirtualClusterError(words, field="vc", value=name)
        return found


def _cluster(row: VcCapacity) -> dict[str, Any]:
    return {
        "capacity": row.percent,
        "maxCapacity": row.percent,
        "usedCapacity": row.used_percent,
        "numJobs": row.running_jobs + row.queued_jobs,
        "numActiveJobs": row.running_jobs,
        "numPendingJobs": row.queued_jobs,
        "resourcesUsed": _resources(row.used),
        "resourcesGuaranteed": _resources(row.healthy),
        "resourcesTotal": _resources(row.promised),
        "dedicated": False,
        "status": "RUNNING",
    }


def _resources(amount: DeviceCapacity) -> dict[str, int]:
    found = _amounts(amount)
    return {**found, "vCores": found["cpu"], "GPUs": found["gpu"]}


def _amounts(amount: DeviceCapacity) -> dict[str, int]:
    return {
        "gpu": amount.devices,
        "cpu": int(amount.cpus),
        "memory": amount.memory_bytes >> 20,
    }
