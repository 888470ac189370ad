"""Choices of names for forms and filters, filtered by the viewer's rights."""

from collections.abc import Collection

from scheduling.clusters.models import Device, VirtualCluster
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from tenants.roles import Permission
from tenants.viewers import Viewer


def virtual_cluster_names(
    viewer: Viewer, permission: Permission = Permission.VIEW_JOBS
) -> tuple[str, ...]:
    """The virtual clusters in which the viewer holds ``permission``, in one query."""
    clusters = VirtualCluster.objects.visible_to(viewer, permission).filter(archived_at=None)
    return tuple(clusters.order_by("name").values_list("name", flat=True))


def last_virtual_cluster(viewer: Viewer, among: Collection[str]) -> str:
    """The one of ``among`` to which the viewer submitted last; empty for none; one query."""
    jobs = Job.objects.visible_to(viewer).filter(
        owner_id=viewer.user_id, virtual_cluster__name__in=list(among)
    )
    return jobs.order_by("-id").values_list("virtual_cluster__name", flat=True).first() or ""


def device_type_names(viewer: Viewer) -> tuple[str, ...]:
    """The types of all devices in the cluster, in one query."""
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    types = Device.objects.filter(retired_at=None).order_by("device_type")
    return tuple(types.values_list("device_type", flat=True).distinct())
