"""Creation of a tenant and a virtual cluster for the admins with the first node."""

from datetime import datetime
from typing import Final

from django.db import transaction

from scheduling.clusters.models import Device, VirtualCluster
from scheduling.clusters.services.cluster_edits import CreateVc
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from tenants import services as people
from tenants.models import Tenant, User
from tenants.roles import Role
from tenants.viewers import Viewer

DEFAULT: Final = "default"
_NOTE: Final = "Created with the first node"


@transaction.atomic
def create_defaults(*, node_id: int, now: datetime) -> bool:
    """Create tenant and virtual cluster ``default`` when the first node has devices.

    The cluster admins lead the tenant, and the whole node is the guarantee of the virtual cluster.
    An installation with any tenant or virtual cluster, including archived ones, is not changed.

    Args:
        node_id: a node whose inventory was applied.
        now: time to store.

    Returns:
        Whether they were created.
    """
    if Tenant.objects.unscoped().exists() or VirtualCluster.objects.unscoped().exists():
        return False
    admins = list(User.objects.filter(is_superuser=True, is_active=True).order_by("pk"))
    chains = Device.objects.filter(node_id=node_id, retired_at=None).values_list(
        "chain", flat=True
    )
    found = sorted(set(chains))
    if not admins or not found:
        return False
    viewer = Viewer.system("first node")
    tenant = people.create_tenant(viewer=viewer, name=DEFAULT, note=_NOTE)
    for admin in admins:
        people.add_member(
            viewer=viewer, tenant_id=tenant.pk, username=admin.username, role=Role.LEAD
        )
    cells = [{"chain": chain, "level": "node", "count": 1} for chain in found]
    edit = CreateVc(name=DEFAULT, tenant=DEFAULT, cells=cells)
    edit_virtual_cluster(viewer=viewer, edit=edit, now=now)
    return True
