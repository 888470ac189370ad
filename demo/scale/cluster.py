"""Nodes, devices, cells and quotas of a large installation, without real machines."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from django.db import transaction

from scheduling.clusters.models import Device, Node, Topology, VcQuota, VirtualCluster
from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell
from scheduling.topology.current import current_topology
from tenants.models import Membership, Tenant, User
from tenants.roles import Role
from tenants.services import add_member, create_tenant, create_user
from tenants.viewers import Viewer

DEVICES_PER_NODE: Final = 8
TYPES: Final = ("a100", "rtx")
TENANTS: Final = {"vision": "alice", "language": "bob"}
ADMIN: Final = "root"
SHARES_PER_TENANT: Final = 5
NODES_PER_RACK: Final = 25
_GIBIBYTE: Final = 1 << 30


def make_cluster(*, nodes: int, now: datetime) -> None:
    """Create racks of nodes (half of each type), and five virtual clusters per tenant.

    Args:
        nodes: number of nodes with eight devices each, added to existing ones.
        now: time of creation.
    """
    with transaction.atomic():
        rows = _make_nodes(nodes, now)
        _make_devices(rows)
        _make_topology(rows, now)
        _make_shares(nodes, now)


def make_people() -> Mapping[str, str]:
    """Create tenants with one lead each and a cluster admin; return new passwords by user name."""
    viewer = Viewer.system("seed_scale")
    made: dict[str, str] = {}
    for username in (ADMIN, *TENANTS.values()):
        if not User.objects.filter(username=username).exists():
            made[username] = secrets.token_urlsafe(12)
            create_user(
                viewer=viewer,
                username=username,
                password=made[username],
                is_cluster_admin=username == ADMIN,
            )
    for name, username in TENANTS.items():
        tenant = Tenant.objects.unscoped().filter(name=name).first() or create_tenant(
            viewer=viewer, name=name
        )
        mine = Membership.objects.unscoped().filter(tenant=tenant, user__username=username)
        if not mine.exists():
            add_member(viewer=viewer, tenant_id=tenant.pk, username=username, role=Role.LEAD)
    return made


def chain_of(device_type: str) -> str:
    """Return the name of the chain, which equals the name of its node level."""
    return f"scale-{device_type}-node"


def _cell_types() -> dict[str, CellType]:
    found: dict[str, CellType] = {}
    for device_type in TYPES:
        leaf = f"scale-{device_type}"
        found |= {
            f"{leaf}-pcie": CellType(child=leaf, count=2),
            f"{leaf}-socket": CellType(child=f"{leaf}-pcie", count=2),
            f"{leaf}-node": CellType(child=f"{leaf}-socket", count=2, node_level=True),
        }
    return found


def _make_nodes(nodes: int, now: datetime) -> list[Node]:
    return Node.objects.bulk_create(
        Node(
            name=f"scale-{number:03d}",
            host="",  # without an address no service manages the node, and none reports it lost
            state="ready",
            contact="ready",
            state_since=now,
            created_at=now,
            cpus=64,
            memory_bytes=512 * _GIBIBYTE,
            labels={"rack": f"rack-{1 + (number - 1) // NODES_PER_RACK}"},
        )
        for number in range(1, nodes + 1)
    )


def _type_of(number: int) -> str:
    return TYPES[number % len(TYPES)]


def _make_devices(rows: list[Node]) -> None:
    Device.objects.bulk_create(
        (
            Device(
                node=node,
                index=index,
                address=f"{node.name}/{index // 4}/{index // 2}/{index}",
                chain=chain_of(_type_of(number)),
                device_type=f"scale-{_type_of(number)}",
                cpus=8,
                memory_bytes=64 * _GIBIBYTE,
            )
            for number, node in enumerate(rows)
            for index in range(DEVICES_PER_NODE)
        ),
        batch_size=500,
    )


def _make_topology(rows: list[Node], now: datetime) -> None:
    known = current_topology()
    cells = tuple(
        PhysicalCell(type=chain_of(_type_of(number)), address=node.name)
        for number, node in enumerate(rows)
    )
    spec = ClusterSpec(
        cell_types={**known.spec.cell_types, **_cell_types()},
        physical=(*known.spec.physical, *cells),
        virtual_clusters=known.spec.virtual_clusters,
    )
    Topology.objects.create(version=known.version + 1, spec=spec.to_json(), created_at=now)


def _make_shares(nodes: int, now: datetime) -> None:
    each = nodes // len(TYPES) // (SHARES_PER_TENANT * len(TENANTS))
    for tenant in Tenant.objects.unscoped().filter(name__in=TENANTS):
        for letter in "abcde"[:SHARES_PER_TENANT]:
            cluster = VirtualCluster.objects.create(
                name=f"scale-{tenant.name}-{letter}", tenant=tenant, created_at=now
            )
            if each:
                VcQuota.objects.bulk_create(
                    VcQuota(
                        virtual_cluster=cluster,
                        chain=chain_of(device_type),
                        level=chain_of(device_type),
                        count=each,
                    )
                    for device_type in TYPES
                )
