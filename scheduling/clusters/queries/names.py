"""Names for forms and filters, limited to the viewer's rights."""

from collections import Counter
from collections.abc import Collection, Mapping

from django.db.models import Sum

from scheduling.clusters.models import Device, Node, VcQuota, VirtualCluster
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from scheduling.topology.current import current_topology
from tenants.roles import Permission
from tenants.viewers import Viewer


def virtual_cluster_names(viewer: Viewer) -> tuple[str, ...]:
    """Return the virtual clusters whose jobs the viewer may see, in one query."""
    permission = Permission.VIEW_JOBS
    clusters = VirtualCluster.objects.visible_to(viewer, permission).filter(archived_at=None)
    return tuple(clusters.order_by("name").values_list("name", flat=True))


def last_virtual_cluster(viewer: Viewer, among: Collection[str]) -> str:
    """Return the name among ``among`` of the viewer's last submit, or empty; one query."""
    jobs = Job.objects.visible_to(viewer).filter(
        owner_id=viewer.user_id, virtual_cluster__name__in=list(among)
    )
    return jobs.order_by("-id").values_list("virtual_cluster__name", flat=True).first() or ""


def idlest_virtual_cluster(among: Mapping[str, int]) -> str:
    """Return the virtual cluster with the most idle guaranteed devices, or empty; two queries.

    A device is idle if no live job requests it. If several are equal, virtual clusters with a
    guarantee come first, then the order of names decides. Pinned cells do not count, since only
    jobs that name them can use them.

    Args:
        among: IDs of virtual clusters by name.
    """
    chains = current_topology().chains
    guaranteed: Counter[int] = Counter()
    quotas = VcQuota.objects.filter(virtual_cluster__in=among.values()).order_by()
    for cluster, chain, level, count in quotas.values_list(
        "virtual_cluster", "chain", "level", "count"
    ):
        levels = chains[chain].levels if chain in chains else ()
        guaranteed[cluster] += count * sum(one.devices for one in levels if one.level == level)
    # In the order of the index job_counts: the query reads no rows of jobs, and sorts nothing.
    jobs = Job.objects.unscoped().live().order_by().values("state", "tenant", "virtual_cluster")
    demanded: Counter[int] = Counter()
    sums = jobs.annotate(demanded=Sum("devices"))
    for cluster, devices in sums.values_list("virtual_cluster", "demanded"):
        demanded[cluster] += devices
    return max(
        sorted(among),
        key=lambda name: (
            guaranteed[among[name]] - demanded[among[name]],
            among[name] in guaranteed,
        ),
        default="",
    )


def device_type_names(viewer: Viewer) -> tuple[str, ...]:
    """Return the types of all devices in the cluster, in one query."""
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    types = Device.objects.filter(retired_at=None).order_by("device_type")
    return tuple(types.values_list("device_type", flat=True).distinct())


def nodes_named(viewer: Viewer, text: str, *, most: int) -> tuple[tuple[int, str, str], ...]:
    """Return ID, name and state of nodes whose names contain ``text``, by name; one query."""
    if not viewer.can(Permission.VIEW_CLUSTER):
        return ()
    rows = Node.objects.filter(removed_at=None, name__icontains=text).order_by("name")
    return tuple(rows.values_list("id", "name", "state")[:most])


def virtual_clusters_named(
    viewer: Viewer, text: str, *, most: int
) -> tuple[tuple[int, str, int], ...]:
    """Return ID, name and tenant ID of visible virtual clusters whose names contain ``text``."""
    rows = VirtualCluster.objects.visible_to(viewer, Permission.VIEW_TENANT)
    found = rows.filter(archived_at=None, name__icontains=text).order_by("name")
    return tuple(found.values_list("id", "name", "tenant_id")[:most])
