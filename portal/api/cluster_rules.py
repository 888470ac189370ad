"""Rules of the whole cluster: the minimum isolation level of nodes."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import read_body
from portal.api.schema import IF_MATCH, Op
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.models import ClusterRules
from scheduling.services.cluster_rules import cluster_rules, set_least_isolation
from tenants.clock import database_now
from tenants.roles import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRulesIn:
    """The minimum isolation level: `none`, `namespace`, `user` or `container`."""

    least_isolation: str


class ClusterRulesOut(TypedDict):
    """The minimum isolation level of the cluster; a virtual cluster may ask for more."""

    least_isolation: str
    version: int


class ClusterRulesViewSet(ApiViewSet):
    """Rules of the whole cluster."""

    collection = "cluster"
    operations: ClassVar = {
        "retrieve": Op(answer=ClusterRulesOut),
        "partial_update": Op(takes=(IF_MATCH,), body=ClusterRulesIn, answer=ClusterRulesOut),
    }

    def retrieve(self, request: Request) -> Response:
        """The minimum isolation level of the cluster."""
        self.viewer.require(Permission.VIEW_CLUSTER, what="the cluster")
        return _answer(cluster_rules())

    def partial_update(self, request: Request) -> Response:
        """Set the minimum isolation level; running jobs continue."""
        rules = set_least_isolation(
            viewer=self.viewer,
            level=read_body(ClusterRulesIn, request.data).least_isolation,
            now=database_now(),
            expected_version=expected_version(request),
        )
        return _answer(rules)


def _answer(rules: ClusterRules) -> Response:
    body = ClusterRulesOut(least_isolation=rules.least_isolation, version=rules.version)
    return versioned(body, rules.version)
