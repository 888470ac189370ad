"""Rules that admins set for all jobs: priority classes, isolation, import rules and log rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypedDict

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body, read_changes
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.clusters.models import ClusterRules
from scheduling.clusters.queries.conditions import condition_actions
from scheduling.clusters.queries.import_rules import (
    ImportRuleRow,
    PriorityClassRow,
    list_import_rules,
    list_priority_classes,
)
from scheduling.clusters.services import priority_classes
from scheduling.clusters.services.cluster_rules import (
    cluster_rules,
    set_canary,
    set_condition_actions,
    set_least_isolation,
)
from scheduling.clusters.services.import_rules import create_import_rule, delete_import_rule
from scheduling.core.canaries import settings_of
from scheduling.runs.services.guests import set_sharing
from scheduling.watching.models import LogRule
from scheduling.watching.queries import log_rule_for, log_rules_for
from scheduling.watching.services.log_rules import (
    create_log_rule,
    delete_log_rule,
    update_log_rule,
)
from tenants.clock import database_now
from tenants.errors import NotFoundError
from tenants.roles import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClassIn:
    """A new priority class; -1 is opportunistic, 0 to 1000 are guaranteed."""

    name: str
    value: int
    note: str = ""
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClassPatch:
    """Changes to a priority class; submitted jobs are unaffected."""

    name: str = ""
    value: int = 0
    note: str = ""
    is_default: bool = False


class PriorityClassOut(TypedDict):
    """A name for a priority."""

    id: int
    name: str
    value: int
    note: str
    is_default: bool
    version: int


class PriorityClassViewSet(ApiViewSet):
    collection = "priority-classes"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=PriorityClassOut, pages=True),
        "create": Op(body=PriorityClassIn, answer=PriorityClassOut, status=201),
        "retrieve": Op(answer=PriorityClassOut),
        "partial_update": Op(takes=(IF_MATCH,), body=PriorityClassPatch, answer=PriorityClassOut),
        "destroy": Op(takes=(IF_MATCH,), status=204),
    }

    def list(self, request: Request) -> Response:
        """List priority classes."""
        found = self.cut(list_priority_classes(self.viewer), lambda row: row.id)
        return self.page(found, priority_class_out)

    def create(self, request: Request) -> Response:
        """Create a priority class."""
        wanted = read_body(PriorityClassIn, request.data)
        row = priority_classes.create_priority_class(
            viewer=self.viewer,
            name=wanted.name,
            value=wanted.value,
            note=wanted.note,
            is_default=wanted.is_default,
        )
        return self._answer(row.pk, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a priority class."""
        return self._answer(pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update a priority class."""
        priority_classes.update_priority_class(
            viewer=self.viewer,
            priority_class_id=pk,
            expected_version=expected_version(request),
            **read_changes(PriorityClassPatch, request.data),
        )
        return self._answer(pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a priority class."""
        priority_classes.delete_priority_class(
            viewer=self.viewer, priority_class_id=pk, expected_version=expected_version(request)
        )
        return Response(status=204)

    def _answer(self, pk: int, *, status: int = 200) -> Response:
        for row in list_priority_classes(self.viewer):
            if row.id == pk:
                return versioned(priority_class_out(row), row.version, status=status)
        raise NotFoundError("Priority class not found.", field="id", value=pk)


priority_class_out = Body(PriorityClassOut, PriorityClassRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRulesPatch:
    """Changes to the rules of the cluster.

    `least_isolation` is `none`, `namespace`, `user` or `container`. `condition_actions` has the
    action (`note`, `quarantine` or `cordon`) for each condition of GPUs that differs from the
    default. `canary` sets `enabled`, `image`, `command` and `seconds` of the jobs that test GPUs
    after a condition's quarantine; settings that are not given get their default. `sharing` allows
    device sharing; `false` orders all guests to leave.
    """

    least_isolation: str = ""
    condition_actions: Mapping[str, str] = field(default_factory=dict)
    canary: Mapping[str, Any] = field(default_factory=dict)
    sharing: bool = False


class CanarySettingsOut(TypedDict):
    """Settings of the jobs that test GPUs after a condition's quarantine.

    With `image`, the job runs in a container. `command` runs after the test of memory and
    counters, which takes up to `seconds`.
    """

    enabled: bool
    image: str
    command: str
    seconds: int


class ClusterRulesOut(TypedDict):
    """The minimum isolation level of the cluster, and the action of each condition of GPUs.

    A virtual cluster may require a higher level. `sharing` is whether devices may be shared.
    """

    least_isolation: str
    sharing: bool
    condition_actions: dict[str, str]
    canary: CanarySettingsOut
    version: int


class ClusterRulesViewSet(ApiViewSet):
    collection = "cluster"
    operations: ClassVar = {
        "retrieve": Op(answer=ClusterRulesOut),
        "partial_update": Op(takes=(IF_MATCH,), body=ClusterRulesPatch, answer=ClusterRulesOut),
    }

    def retrieve(self, request: Request) -> Response:
        """Get the rules of the cluster: the minimum isolation level and actions for conditions."""
        self.viewer.require(Permission.VIEW_CLUSTER, what="the cluster")
        return _answer(cluster_rules())

    def partial_update(self, request: Request) -> Response:
        """Set the minimum isolation level or actions for conditions; running jobs continue."""
        self.viewer.require(Permission.MANAGE_NODES, what="the rules")
        changes = read_changes(ClusterRulesPatch, request.data)
        expected, now = expected_version(request), database_now()
        rules = cluster_rules()
        with transaction.atomic():
            if "condition_actions" in changes:
                rules = set_condition_actions(
                    viewer=self.viewer,
                    actions=changes["condition_actions"],
                    now=now,
                    expected_version=expected,
                )
                expected = None
            if "canary" in changes:
                rules = set_canary(
                    viewer=self.viewer,
                    settings=changes["canary"],
                    expected_version=expected,
                )
                expected = None
            if "least_isolation" in changes:
                rules = set_least_isolation(
                    viewer=self.viewer,
                    level=changes["least_isolation"],
                    now=now,
                    expected_version=expected,
                )
                expected = None
            if "sharing" in changes:
                rules = set_sharing(
                    viewer=self.viewer,
                    enabled=changes["sharing"],
                    now=now,
                    expected_version=expected,
                )
        return _answer(rules)


def _answer(rules: ClusterRules) -> Response:
    canary = settings_of(rules.canary)
    body = ClusterRulesOut(
        least_isolation=rules.least_isolation,
        sharing=rules.sharing,
        condition_actions=condition_actions(),
        canary=CanarySettingsOut(
            enabled=canary.enabled,
            image=canary.image,
            command=canary.command,
            seconds=canary.seconds,
        ),
        version=rules.version,
    )
    return versioned(body, rules.version)


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
