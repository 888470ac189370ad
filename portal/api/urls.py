"""Addresses of the REST API."""

from django.urls import URLPattern, URLResolver, include, path, re_path
from rest_framework.routers import SimpleRouter

from portal.api.jobs import JobViewSet
from portal.api.nodes import NodeViewSet
from portal.api.tokens import TokenViewSet
from portal.api.views import ApiViewSet, NoSuchAddress

RESOURCES: tuple[type[ApiViewSet], ...] = (JobViewSet, NodeViewSet, TokenViewSet)

router = SimpleRouter(use_regex_path=False)
for resource in RESOURCES:
    router.register(resource.collection, resource, basename=f"api-{resource.collection}")

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(router.urls)),
    re_path(r"", NoSuchAddress.as_view()),
]
