"""URL patterns of the REST API."""

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.permissions import AllowAny
from rest_framework.routers import SimpleRouter

from portal.api.advice import AdviceViewSet
from portal.api.announcements import AnnouncementViewSet
from portal.api.cluster import ClusterViewSet
from portal.api.device_types import DeviceAliasViewSet, DeviceTypeViewSet
from portal.api.fleet import FleetViewSet
from portal.api.fragmentation import FragmentationViewSet
from portal.api.history import AuditViewSet, TimelineViewSet, UsageViewSet
from portal.api.imports import ImportViewSet
from portal.api.jobs import JobViewSet
from portal.api.link_tables import LinkTableViewSet
from portal.api.nodes import NodeViewSet
from portal.api.notices import DeliveryViewSet, NotificationViewSet, WebhookViewSet
from portal.api.openpai import NoSuchOpenPaiAddress, OpenPaiClusterViewSet, OpenPaiJobViewSet
from portal.api.promises import PromiseViewSet
from portal.api.registry_logins import RegistryLoginViewSet
from portal.api.rounds import EstimateViewSet, RoundViewSet, WhatIfViewSet
from portal.api.rules import (
    ClusterRulesViewSet,
    ImportRuleViewSet,
    LogRuleViewSet,
    PriorityClassViewSet,
)
from portal.api.saved import ArchiveViewSet, SavedViewSet, TemplateViewSet
from portal.api.search import SearchViewSet
from portal.api.shares import ShareViewSet
from portal.api.storages import StorageViewSet
from portal.api.sweeps import SweepViewSet
from portal.api.tenants import JobLimitViewSet, TenantViewSet
from portal.api.tokens import PasswordLinkViewSet, TokenViewSet
from portal.api.users import MemberViewSet, UserViewSet
from portal.api.views import ApiViewSet, NoSuchAddress
from portal.api.virtual_clusters import ReconfigurationViewSet, VirtualClusterViewSet


class SchemaView(SpectacularAPIView):
    """View of the OpenAPI document, which is public because it contains no cluster data."""

    permission_classes = (AllowAny,)


RESOURCES: tuple[type[ApiViewSet], ...] = (
    JobViewSet,
    NodeViewSet,
    StorageViewSet,
    RegistryLoginViewSet,
    VirtualClusterViewSet,
    TenantViewSet,
    MemberViewSet,
    PriorityClassViewSet,
    ImportRuleViewSet,
    DeviceTypeViewSet,
    DeviceAliasViewSet,
    UserViewSet,
    PasswordLinkViewSet,
    JobLimitViewSet,
    ClusterViewSet,
    RoundViewSet,
    TimelineViewSet,
    UsageViewSet,
    SearchViewSet,
    SweepViewSet,
    TemplateViewSet,
    SavedViewSet,
    EstimateViewSet,
    ShareViewSet,
    FragmentationViewSet,
    FleetViewSet,
    WhatIfViewSet,
    AdviceViewSet,
    AuditViewSet,
    ArchiveViewSet,
    AnnouncementViewSet,
    LogRuleViewSet,
    WebhookViewSet,
    DeliveryViewSet,
    TokenViewSet,
    LinkTableViewSet,
)

router = SimpleRouter(use_regex_path=False)
for resource in RESOURCES:
    router.register(resource.collection, resource, basename=f"api-{resource.collection}")

_OPENPAI_JOB = "jobs/<str:user>~<str:job>"
# OpenPAI's addresses have no trailing slash.
openpai_patterns = [
    path("jobs", OpenPaiJobViewSet.as_view({"get": "list", "post": "create"})),
    path(_OPENPAI_JOB, OpenPaiJobViewSet.as_view({"get": "retrieve"})),
    path(f"{_OPENPAI_JOB}/config", OpenPaiJobViewSet.as_view({"get": "config"})),
    path(f"{_OPENPAI_JOB}/executionType", OpenPaiJobViewSet.as_view({"put": "execute"})),
    path("virtual-clusters", OpenPaiClusterViewSet.as_view({"get": "list"})),
    path("virtual-clusters/<str:name>", OpenPaiClusterViewSet.as_view({"get": "retrieve"})),
    path("cluster/sku-types", OpenPaiClusterViewSet.as_view({"get": "sku_types"})),
    re_path(r"", NoSuchOpenPaiAddress.as_view()),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/cluster/reconfigure/", ReconfigurationViewSet.as_view({"post": "reconfigure"})),
    path(
        "v1/cluster/rules/",
        ClusterRulesViewSet.as_view({"get": "retrieve", "patch": "partial_update"}),
    ),
    path(
        "v1/notifications/",
        NotificationViewSet.as_view({"get": "retrieve", "patch": "partial_update"}),
    ),
    path("v1/virtual-clusters/<int:pk>/promises/", PromiseViewSet.as_view({"get": "promises"})),
    path("v1/", include(router.urls)),
    path("v1/import/<slug:pk>/", ImportViewSet.as_view({"post": "translate"})),
    path("v2/", include(openpai_patterns)),
    path("schema/", SchemaView.as_view(), name="api-schema"),
    re_path(r"", NoSuchAddress.as_view()),
]
