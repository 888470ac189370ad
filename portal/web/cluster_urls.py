"""Addresses of the pages about the cluster and those who share it."""

from django.urls import URLPattern, path

from portal.web import (
    announcements,
    audit,
    hooks,
    members,
    node_acts,
    node_forms,
    nodes,
    notifications,
    overview,
    people,
    priority_classes,
    reconfiguring,
    tenants,
    tokens,
    vc_editing,
    virtual_clusters,
)

urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
    path("overview/day/", overview.day, name="overview-day"),
    path("nodes/", nodes.nodes, name="nodes"),
    path("nodes/new/", node_forms.add, name="node-add"),
    path("nodes/<int:node_id>/", nodes.node, name="node"),
    path("nodes/<int:node_id>/edit/", node_forms.edit, name="node-edit"),
    path("nodes/<int:node_id>/remove/", node_acts.remove_node, name="node-remove"),
    path("nodes/<int:node_id>/<slug:verb>/", node_acts.act_on_node, name="node-act"),
    path("virtual-clusters/", virtual_clusters.virtual_clusters, name="virtual-clusters"),
    path("virtual-clusters/new/", vc_editing.create, name="virtual-cluster-new"),
    path("virtual-clusters/check/", vc_editing.check, name="virtual-cluster-check-new"),
    path("virtual-clusters/policy/", vc_editing.policy_fields, name="virtual-cluster-policy-args"),
    path(
        "virtual-clusters/reconfigure/",
        reconfiguring.reconfigure_page,
        name="virtual-cluster-reconfigure",
    ),
    path(
        "virtual-clusters/<int:vc_id>/", virtual_clusters.virtual_cluster, name="virtual-cluster"
    ),
    path("virtual-clusters/<int:vc_id>/check/", vc_editing.check, name="virtual-cluster-check"),
    path(
        "virtual-clusters/<int:vc_id>/recommended/",
        vc_editing.recommended,
        name="virtual-cluster-recommended",
    ),
    path("virtual-clusters/<int:vc_id>/shape/", vc_editing.shape, name="virtual-cluster-shape"),
    path("virtual-clusters/<int:vc_id>/policy/", vc_editing.policy, name="virtual-cluster-policy"),
    path("virtual-clusters/<int:vc_id>/caps/", vc_editing.caps, name="virtual-cluster-caps"),
    path(
        "virtual-clusters/<int:vc_id>/archive/", vc_editing.archive, name="virtual-cluster-archive"
    ),
    path("priority-classes/", priority_classes.priority_classes, name="priority-classes"),
    path(
        "priority-classes/<int:class_id>/", priority_classes.priority_class, name="priority-class"
    ),
    path(
        "priority-classes/<int:class_id>/delete/",
        priority_classes.delete,
        name="priority-class-delete",
    ),
    path("tenants/", tenants.tenants, name="tenants"),
    path("tenants/new/", tenants.new, name="tenant-new"),
    path("tenants/<int:tenant_id>/", tenants.tenant, name="tenant"),
    path("tenants/<int:tenant_id>/edit/", tenants.edit, name="tenant-edit"),
    path("tenants/<int:tenant_id>/archive/", tenants.archive, name="tenant-archive"),
    path("tenants/<int:tenant_id>/members/new/", members.add, name="member-add"),
    path("tenants/<int:tenant_id>/members/<int:member_id>/", members.edit, name="member"),
    path(
        "tenants/<int:tenant_id>/members/<int:member_id>/remove/",
        members.remove,
        name="member-remove",
    ),
    path("announcements/", announcements.announcements, name="announcements"),
    path("announcements/<int:announcement_id>/", announcements.announcement, name="announcement"),
    path(
        "announcements/<int:announcement_id>/delete/",
        announcements.delete,
        name="announcement-delete",
    ),
    path(
        "announcements/<int:announcement_id>/dismiss/",
        announcements.dismiss,
        name="announcement-dismiss",
    ),
    path("notifications/", notifications.notifications, name="notifications"),
    path("hooks/", hooks.hooks, name="hooks"),
    path("hooks/<int:hook_id>/", hooks.hook, name="hook"),
    path("hooks/<int:hook_id>/switch/", hooks.switch, name="hook-switch"),
    path("hooks/<int:hook_id>/test/", hooks.test, name="hook-test"),
    path("hooks/<int:hook_id>/rotate/", hooks.rotate, name="hook-rotate"),
    path("hooks/<int:hook_id>/delete/", hooks.delete, name="hook-delete"),
    path("deliveries/<int:delivery_id>/replay/", hooks.replay, name="delivery-replay"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("tokens/<int:token_id>/rotate/", tokens.rotate, name="token-rotate"),
    path("tokens/<int:token_id>/revoke/", tokens.revoke, name="token-revoke"),
    path("people/", people.people, name="people"),
    path("people/<int:user_id>/", people.person, name="person"),
    path("people/<int:user_id>/<slug:verb>/", people.change, name="person-change"),
    path("audit/", audit.audit, name="audit"),
]
