"""Addresses of the pages about the past and what-ifs."""

from django.urls import URLPattern, path

from portal.web import policies, timeline, usage, what_if

urlpatterns: list[URLPattern] = [
    path("timeline/", timeline.timeline_page, name="timeline"),
    path("usage/", usage.usage_page, name="usage"),
    path("usage/export.csv", usage.usage_csv, name="usage-csv"),
    path("policies/", policies.policies, name="policies"),
    path("policies/<int:vc_id>/shadows/", policies.shadows, name="policies-shadows"),
    path(
        "policies/<int:vc_id>/shadows/fields/",
        policies.shadow_fields,
        name="policies-shadow-fields",
    ),
    path("policies/what-if/", what_if.what_if, name="policies-what-if"),
    path("policies/what-if/fields/", what_if.policy_fields, name="policies-what-if-fields"),
    path("policies/what-if/<int:pk>/", what_if.answer, name="policies-what-if-answer"),
]
