"""REST resource of the audit: changes with actor, before and after."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, TypedDict

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.response_models import Body, From
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.common.paging import Page
from tenants.audit import record_once
from tenants.errors import ForbiddenError
from tenants.models import AuditEntry
from tenants.roles import Permission
from tenants.selectors import audit_page, tenant_for

_FILTERS: Final = (
    OpenApiParameter("tenant", str, description="Name."),
    OpenApiParameter("actor", str, description="Name."),
    OpenApiParameter(
        "action", str, description="An action such as `member.add`, or a prefix such as `member.`."
    ),
    OpenApiParameter("object_type", str),
    OpenApiParameter("object_id", str),
)


class AuditOut(TypedDict):
    """An audited change; secrets are masked."""

    id: Annotated[int, From("pk")]
    at: datetime
    actor: Annotated[str, From("actor_name")]
    token_prefix: str
    action: str
    object_type: str
    object_id: str
    object_name: str
    tenant: Annotated[str | None, From(by=lambda entry: entry.tenant and entry.tenant.name)]
    before: Any
    after: Any
    request_id: str
    message: str


class AuditViewSet(ApiViewSet):
    """The record of changes."""

    collection = "audit"
    needs = Permission.READ_AUDIT
    operations: ClassVar = {"list": Op(takes=(*_FILTERS, *PAGE), answer=AuditOut, pages=True)}

    def list(self, request: Request) -> Response:
        """List audited changes in tenants that you lead (cluster admins: all), newest first."""
        if not self.viewer.can_somewhere(Permission.READ_AUDIT):
            raise ForbiddenError(
                "You lead no tenant.",
                field="permission",
                value=str(Permission.READ_AUDIT),
                remedy="Ask a lead of the tenant.",
            )
        name = self.query.text("tenant")
        found = audit_page(
            self.viewer,
            cursor=self.query.cursor(),
            limit=self.query.limit(),
            tenant_id=tenant_for(self.viewer, name).pk if name else None,
            actor=self.query.text("actor"),
            action=self.query.text("action"),
            object_type=self.query.text("object_type"),
            object_id=self.query.text("object_id"),
        )
        if self.query.cursor() is None:
            record_once(
                actor=self.viewer,
                action="audit.export",
                object_type="audit",
                object_id=name,
                object_name=name or "audit",
            )
        return self.page(Page(found.rows, found.next_cursor), audit_out)


audit_out = Body(AuditOut, AuditEntry)
