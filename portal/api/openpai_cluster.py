"""Virtual clusters and device types by OpenPAI's protocol."""

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.openpai_views import NoVirtualClusterError, OpenPaiViewSet
from scheduling.selectors.capacities import Capacity, VcCapacity, device_types, vc_capacities
from tenants.roles import Permission


class OpenPaiClusterViewSet(OpenPaiViewSet):
    """What there is, in OpenPAI's units: GPUs, processors and MiB."""

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
        """Device types with what comes along with one device; with ``vc`` those of its cells."""
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


def _resources(amount: Capacity) -> dict[str, int]:
    found = _amounts(amount)
    return {**found, "vCores": found["cpu"], "GPUs": found["gpu"]}


def _amounts(amount: Capacity) -> dict[str, int]:
    return {
        "gpu": amount.devices,
        "cpu": int(amount.cpus),
        "memory": amount.memory_bytes >> 20,
    }
