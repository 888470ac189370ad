"""URL configuration of pages, REST and health checks."""

from django.contrib import admin
from django.urls import include, path

from portal import health
from portal.api.metrics import MetricsView
from portal.joining import join
from portal.web.api_calls import docs

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("join/", join, name="join"),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("api/docs/", docs, name="api-docs"),
    path("api/", include("portal.api.urls")),
    path("admin/", admin.site.urls),
    path("", include("portal.web.urls")),
]

handler400 = "portal.web.errors.unreadable"
handler403 = "portal.web.errors.forbidden"
handler404 = "portal.web.errors.not_found"
handler500 = "portal.web.errors.server_error"
