"""Import rules: mappings of partitions, accounts and fleets of other systems to local names."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.request_models import read_body
from portal.api.response_models import Body
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.clusters.queries.import_rules import ImportRuleRow, list_import_rules
from scheduling.clusters.services.import_rules import create_import_rule, delete_import_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRuleIn:
    """A new import rule; at least one of the last four fields is required."""

    kind: str
    name: str
    virtual_cluster: str = ""
    tenant: str = ""
    priority: str = ""
    opportunistic: bool = False


class ImportRuleOut(TypedDict):
    """An import rule: maps a name of another system to names of Tessera."""

    id: int
    kind: str
    name: str
    virtual_cluster: str
    tenant: str
    priority: str
    opportunistic: bool


class ImportRuleViewSet(ApiViewSet):
    """Mappings of partitions, accounts and fleets of other systems to local names."""

    collection = "import-rules"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=ImportRuleOut, pages=True),
        "create": Op(body=ImportRuleIn, answer=ImportRuleOut, status=201),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List import rules."""
        found = self.cut(list_import_rules(self.viewer), lambda row: row.id)
        return self.page(found, import_rule_out)

    def create(self, request: Request) -> Response:
        """Create an import rule."""
        wanted = read_body(ImportRuleIn, request.data)
        made = create_import_rule(
            viewer=self.viewer,
            kind=wanted.kind,
            name=wanted.name,
            virtual_cluster=wanted.virtual_cluster,
            tenant=wanted.tenant,
            priority=wanted.priority,
            opportunistic=wanted.opportunistic,
        )
        row = next(row for row in list_import_rules(self.viewer) if row.id == made.pk)
        return Response(import_rule_out(row), status=201)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete an import rule; imported jobs are unchanged."""
        delete_import_rule(viewer=self.viewer, rule_id=pk)
        return Response(status=204)


import_rule_out = Body(ImportRuleOut, ImportRuleRow)
