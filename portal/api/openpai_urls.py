"""Addresses of OpenPAI's protocol; as there, none ends in a slash."""

from django.urls import path, re_path

from portal.api.openpai_cluster import OpenPaiClusterViewSet
from portal.api.openpai_jobs import OpenPaiJobViewSet
from portal.api.openpai_views import NoSuchOpenPaiAddress

_JOB = "jobs/<str:user>~<str:job>"

urlpatterns = [
    path("jobs", OpenPaiJobViewSet.as_view({"get": "list", "post": "create"})),
    path(_JOB, OpenPaiJobViewSet.as_view({"get": "retrieve"})),
    path(f"{_JOB}/config", OpenPaiJobViewSet.as_view({"get": "config"})),
    path(f"{_JOB}/executionType", OpenPaiJobViewSet.as_view({"put": "execute"})),
    path("virtual-clusters", OpenPaiClusterViewSet.as_view({"get": "list"})),
    path("virtual-clusters/<str:name>", OpenPaiClusterViewSet.as_view({"get": "retrieve"})),
    path("cluster/sku-types", OpenPaiClusterViewSet.as_view({"get": "sku_types"})),
    re_path(r"", NoSuchOpenPaiAddress.as_view()),
]
