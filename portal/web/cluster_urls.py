"""Addresses of the pages about the cluster and those who share it."""

from django.urls import URLPattern, path

from portal.web import overview

urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
]
