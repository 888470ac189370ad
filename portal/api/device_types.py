"""REST resources of device types and their aliases."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, read_body
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.clusters.queries.device_types import (
    AliasRow,
    DeviceTypeRow,
    list_aliases,
    list_device_types,
)
from scheduling.clusters.services.device_types import create_device_alias, delete_device_alias


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAliasIn:
    """A new alias; case does not matter."""

    alias: str
    device_type: str


class DeviceAliasOut(TypedDict):
    """A name for a device type in documents of jobs."""

    id: int
    alias: str
    device_type: str


class DeviceTypeOut(TypedDict):
    """A device type with its devices and names.

    `aliases` has the names that admins set, and `automatic` the short names that follow from the
    name of the type. Jobs may use any of them in `device_types`.
    """

    device_type: str
    devices: int
    nodes: int
    aliases: list[DeviceAliasOut]
    automatic: list[str]


class DeviceTypeViewSet(ApiViewSet):
    """The device types of the cluster."""

    collection = "device-types"
    operations: ClassVar = {"list": Op(takes=PAGE, answer=DeviceTypeOut, pages=True)}

    def list(self, request: Request) -> Response:
        """List device types with their names."""
        rows = list_device_types(self.viewer)
        places = {row.device_type: place for place, row in enumerate(rows, start=1)}
        found = self.cut(rows, lambda row: places[row.device_type])
        return self.page(found, device_type_out)


class DeviceAliasViewSet(ApiViewSet):
    """Aliases of device types, set by cluster admins."""

    collection = "device-aliases"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=DeviceAliasOut, pages=True),
        "create": Op(body=DeviceAliasIn, answer=DeviceAliasOut, status=201),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List the aliases that admins set."""
        found = self.cut(list_aliases(self.viewer), lambda row: row.id)
        return self.page(found, alias_out)

    def create(self, request: Request) -> Response:
        """Create an alias of a device type."""
        wanted = read_body(DeviceAliasIn, request.data)
        made = create_device_alias(
            viewer=self.viewer, alias=wanted.alias, device_type=wanted.device_type
        )
        row = AliasRow(id=made.pk, alias=made.alias, device_type=made.device_type)
        return Response(alias_out(row), status=201)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete an alias; submitted jobs are unchanged."""
        delete_device_alias(viewer=self.viewer, alias_id=pk)
        return Response(status=204)


alias_out = Body(DeviceAliasOut, AliasRow)
device_type_out = Body(DeviceTypeOut, DeviceTypeRow)
