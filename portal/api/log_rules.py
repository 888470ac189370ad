"""Rules about lines of logs, for all jobs."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.request_models import read_body, read_changes
from portal.api.response_models import Body, From
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.watching.models import LogRule
from scheduling.watching.queries import log_rule_for, log_rules_for
from scheduling.watching.services.log_rules import (
    create_log_rule,
    delete_log_rule,
    update_log_rule,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRuleIn:
    """A new log rule; the action is exclude-node, stop-retries or label."""

    name: str
    pattern: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRulePatch:
    """Changes to a log rule; they apply to attempts that start later."""

    name: str = ""
    pattern: str = ""
    action: str = ""
    enabled: bool = True


class LogRuleOut(TypedDict):
    """A log rule."""

    id: Annotated[int, From("pk")]
    name: str
    pattern: str
    action: str
    enabled: bool
    version: int


class LogRuleViewSet(ApiViewSet):
    """Log rules: actions when a line of a job's log matches."""

    collection = "log-rules"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=LogRuleOut, pages=True),
        "create": Op(body=LogRuleIn, answer=LogRuleOut, status=201),
        "retrieve": Op(answer=LogRuleOut),
        "partial_update": Op(takes=(IF_MATCH,), body=LogRulePatch, answer=LogRuleOut),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List log rules for all jobs."""
        return self.page(self.rows(log_rules_for(self.viewer)), log_rule_out)

    def create(self, request: Request) -> Response:
        """Create a log rule."""
        wanted = read_body(LogRuleIn, request.data)
        row = create_log_rule(
            viewer=self.viewer, name=wanted.name, pattern=wanted.pattern, action=wanted.action
        )
        return versioned(log_rule_out(row), row.version, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a log rule."""
        row = log_rule_for(self.viewer, pk)
        return versioned(log_rule_out(row), row.version)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update, disable or enable a log rule."""
        row = update_log_rule(
            viewer=self.viewer,
            rule_id=pk,
            expected_version=expected_version(request),
            **read_changes(LogRulePatch, request.data),
        )
        return versioned(log_rule_out(row), row.version)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a log rule."""
        delete_log_rule(viewer=self.viewer, rule_id=pk)
        return Response(status=204)


log_rule_out = Body(LogRuleOut, LogRule)
