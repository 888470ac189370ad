"""Addresses of the pages about the cluster and those who share it."""

from django.urls import URLPattern, path

from portal.web import node_forms, nodes, overview

urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
    path("nodes/", nodes.nodes, name="nodes"),
    path("nodes/new/", node_forms.add, name="node-add"),
    path("nodes/<int:node_id>/", nodes.node, name="node"),
    path("nodes/<int:node_id>/edit/", node_forms.edit, name="node-edit"),
    path("nodes/<int:node_id>/remove/", nodes.remove_node, name="node-remove"),
    path("nodes/<int:node_id>/<slug:verb>/", nodes.act_on_node, name="node-act"),
]
