"""Addresses of the pages about what was, and what could have been."""

from django.urls import URLPattern, path

from portal.web import timeline

urlpatterns: list[URLPattern] = [
    path("timeline/", timeline.timeline_page, name="timeline"),
]
