"""Logins of tenants at image registries."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.clusters.models import RegistryLogin
from scheduling.clusters.services.registry_logins import (
    delete_registry_login,
    list_registry_logins,
    set_registry_login,
)
from tenants.clock import database_now
from tenants.roles import Permission
from tenants.selectors import tenant_for


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLoginIn:
    """The login of a tenant at a registry, such as `docker.io`; it replaces an earlier one.

    The password is encrypted, and no response contains it.
    """

    tenant: int | str
    registry: str
    username: str
    password: str


class RegistryLoginOut(TypedDict):
    """A login without its password."""

    id: Annotated[int, From("pk")]
    tenant: Annotated[str, From("tenant.name")]
    registry: str
    username: str
    changed_at: datetime


class RegistryLoginViewSet(ApiViewSet):
    """Logins of tenants at image registries, used for the images of their jobs."""

    collection = "registry-logins"
    needs = Permission.MANAGE_HOOKS
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=RegistryLoginOut, pages=True),
        "create": Op(body=RegistryLoginIn, answer=RegistryLoginOut, status=201),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List the logins of the tenants that you lead, or all for cluster admins."""
        found = self.cut(list_registry_logins(self.viewer), lambda row: row.pk)
        return self.page(found, registry_login_out)

    def create(self, request: Request) -> Response:
        """Create or replace the login of a tenant at a registry."""
        wanted = read_body(RegistryLoginIn, request.data)
        login = set_registry_login(
            viewer=self.viewer,
            tenant_id=tenant_for(self.viewer, wanted.tenant).pk,
            registry=wanted.registry,
            username=wanted.username,
            password=wanted.password,
            now=database_now(),
        )
        return Response(registry_login_out(login), status=201)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a login; later pulls from the registry are anonymous."""
        delete_registry_login(viewer=self.viewer, login_id=pk)
        return Response(status=204)


registry_login_out = Body(RegistryLoginOut, RegistryLogin)
