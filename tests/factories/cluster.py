"""A small cluster in the database: nodes of eight devices, virtual clusters and priorities."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from scheduling.clusters.models import (
    Device,
    Node,
    PinnedCell,
    PriorityClass,
    Topology,
    VcQuota,
    VirtualCluster,
)
from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.submission import Submission, submit_job
from tenants.models import Tenant, User
from tenants.roles import Role
from tenants.selectors import viewer_of
from tests.factories.tenants import make_tenant

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
OPPORTUNISTIC: Final[dict[str, Any]] = {"class": "opportunistic"}
CELL_TYPES = {
    "a-pcie": CellType(child="a", count=2),
    "a-socket": CellType(child="a-pcie", count=2),
    "a-node": CellType(child="a-socket", count=2, node_level=True),
}


def make_cluster(nodes: int = 3) -> list[Node]:
    """``nodes`` ready machines of eight devices of type ``a`` each, and the topology in force."""
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    make_topology(names)
    rows = [
        Node.objects.create(
            name=name,
            host=f"127.0.0.{number}",
            port=2200 + number,
            user="tessera",
            state="ready",
            contact="ready",
            state_since=NOW,
            created_at=NOW,
            cpus=32,
            memory_bytes=64 << 30,
        )
        for number, name in enumerate(names, 1)
    ]
    for node in rows:
        make_devices(node)
    return rows


def make_topology(nodes: Iterable[str], at: datetime = NOW) -> None:
    """The first topology: nodes of these names, and no virtual cluster."""
    spec = ClusterSpec(
        cell_types=CELL_TYPES,
        physical=tuple(PhysicalCell(type="a-node", address=name) for name in nodes),
        virtual_clusters={},
    )
    Topology.objects.create(version=1, spec=spec.to_json(), created_at=at)


def make_devices(node: Node) -> None:
    """The eight devices of type ``a`` of a node, in sockets and PCIe switches of their own."""
    Device.objects.bulk_create(
        Device(
            node=node,
            index=index,
            address=f"{node.name}/{index // 4}/{index // 2}/{index}",
            chain="a-node",
            device_type="a",
            cpus=4,
            memory_bytes=8 << 30,
        )
        for index in range(8)
    )


def make_virtual_cluster(
    name: str = "vision-a", tenant: Tenant | None = None, *, cells: int = 1, **columns: Any
) -> VirtualCluster:
    """A virtual cluster with ``cells`` guaranteed whole nodes."""
    cluster = VirtualCluster.objects.create(
        name=name,
        tenant=tenant or make_tenant("vision", alice=Role.MEMBER),
        created_at=NOW,
        **columns,
    )
    if cells:
        VcQuota.objects.create(
            virtual_cluster=cluster, chain="a-node", level="a-node", count=cells
        )
    return cluster


def pin_cell(virtual_cluster: str, name: str, address: str) -> PinnedCell:
    """Give a virtual cluster a certain cell under a name."""
    cluster = VirtualCluster.objects.unscoped().get(name=virtual_cluster)
    return PinnedCell.objects.create(virtual_cluster=cluster, name=name, address=address)


def make_priority_classes() -> None:
    """The four classes of the demo."""
    for name, value in (("crit", 120), ("prod", 100), ("test", 10), ("oppo", -1)):
        PriorityClass.objects.create(name=name, value=value, is_default=name == "test")


def make_shared_cluster(**vision: Role) -> list[Node]:
    """Two nodes that vision (alice, or whom ``vision`` names) and language (bob) share."""
    made = make_cluster(2)
    make_virtual_cluster("vision-a", make_tenant("vision", **vision or {"alice": Role.MEMBER}))
    make_virtual_cluster("language", make_tenant("language", bob=Role.MEMBER))
    make_priority_classes()
    return made


def job_document(**changes: Any) -> dict[str, Any]:
    """A small native job; ``worker`` holds changes of its only role."""
    role: dict[str, Any] = {"instances": 1, "devices": 1, "command": "echo hello"}
    role.update(changes.pop("worker", {}))
    return {
        "name": "hello",
        "virtual_cluster": "vision-a",
        "roles": {"worker": role},
        **changes,
    }


def make_job(
    username: str = "alice", document: Mapping[str, Any] | None = None, **changes: Any
) -> Job:
    """A submitted job of an existing person, through the service."""
    viewer = viewer_of(User.objects.get(username=username))
    job, _ = submit_job(
        submission=Submission(document=document or job_document(**changes)),
        viewer=viewer,
        submit_context=read_submit_context(viewer=viewer, images_ignored=False),
        now=NOW,
    )
    return job
