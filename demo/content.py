"""Content of the demo: nodes, tenants, users, virtual clusters, priorities, a history, two jobs.

The first start creates it; later changes by users remain. Every start updates only the addresses
of the nodes, since another program may have taken a port.
"""

import asyncio
import gzip
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from demo.history import add_history
from demo.past_jobs import HOURS
from portal.supervisor.files import write_private
from portal.supervisor.options import ROOT, make_password
from scheduling.clusters.models import Device, Node, VirtualCluster
from scheduling.clusters.queries.virtual_clusters import virtual_cluster_for
from scheduling.clusters.services import nodes, priority_classes
from scheduling.clusters.services.cluster_edits import CreateVc
from scheduling.clusters.services.inventory import apply_inventory
from scheduling.clusters.services.node_contact import record_probe
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.archives import store_archive
from scheduling.jobs.services.idempotency import IdempotencyConflictError
from scheduling.jobs.services.submission import Submission, submit_job
from scheduling.what_if.services.what_if import ask_what_if
from tenants import services as people
from tenants.clock import database_now
from tenants.models import Membership, Tenant, User
from tenants.roles import Role
from tenants.selectors import viewer_of
from tenants.services.announcements import create_announcement
from tenants.viewers import Viewer
from tessera.inventory import Inventory
from workers.celery_steps import over_ssh
from workers.conf import WorkerSettings, worker_settings
from workers.node_service.ports import NodeAddress

EXAMPLES: Final = ROOT / "examples"
DIGITS: Final = "digits_numpy.py"
GANG: Final = "gang_allreduce_numpy.py"
SEEDED: Final = "seeded"
TENANTS: Final = {"vision": "Vision", "language": "Language"}
MEMBERS: Final = (("alice", "vision", Role.MEMBER), ("bob", "language", Role.LEAD))
SHARES: Final[Mapping[str, tuple[str, Sequence[tuple[str, str, int]]]]] = {
    "vision-a": ("vision", (("cpu-a", "node", 1), ("cpu-b", "socket", 1))),
    "vision-b": ("vision", (("cpu-a", "pcie", 1),)),
    "language-a": ("language", (("cpu-a", "socket", 1), ("cpu-b", "pcie", 1))),
}
"""Virtual clusters: tenant, and (device type, level, count) each. One pcie of cpu-b stays free."""


def seed(listing: Path, *, history: bool = True) -> dict[str, str]:
    """Create the content of the demo unless it exists.

    Args:
        listing: path of the file with the addresses of the demo's nodes.
        history: whether to create the history as well.

    Returns:
        The password of each new user by name.
    """
    viewer, settings, now = Viewer.system("tessera up"), worker_settings(), database_now()
    described = json.loads(listing.read_text())
    mark = listing.with_name(SEEDED)
    if mark.exists():
        _refresh_addresses(viewer, described, now)
        return {}
    _ensure_nodes(viewer, described, now)
    ids = dict(Node.objects.filter(removed_at=None).values_list("name", "id"))
    addresses = [_address(ids[entry["name"]], entry) for entry in described]
    found = asyncio.run(_probe_all(settings, addresses))
    logins = furnish(found, now)
    if history:
        add_history(storage=settings.storage, now=now)
        announce_history(now)
        ask_example(now)
    submit_examples(settings, now)
    write_private(mark, f"{now.isoformat()}\n")
    return logins


def seed_without_history(listing: Path) -> dict[str, str]:
    """Create the content of the demo without its history, as ``seed`` does."""
    return seed(listing, history=False)


def furnish(found: Mapping[int, Inventory], now: datetime) -> dict[str, str]:
    """Create devices, people and shares on the nodes with these inventories.

    Returns:
        The password of each new user by name.
    """
    viewer = Viewer.system("tessera up")
    # Quotas need the devices.
    for node_id, inventory in found.items():
        apply_inventory(node_id=node_id, inventory=inventory, now=now)
    priority_classes.make_usual_classes(viewer=viewer)
    logins = _ensure_people(viewer)
    _ensure_shares(viewer, now)
    _record_probes(found, now)
    return logins


def ask_example(now: datetime) -> None:
    """Request a what-if about the history; a worker computes it after the start."""
    ask_what_if(
        viewer=viewer_of(User.objects.get(username="alice")),
        virtual_cluster="vision-a",
        policy="srtf",
        policy_args={},
        since=now - timedelta(hours=HOURS + 1),
        until=now,
        size_aware=True,
        now=now,
    )


def announce_history(now: datetime) -> None:
    """Mark the history above all pages, until people close the announcement."""
    create_announcement(
        viewer=Viewer.system("tessera up"),
        text=(
            f"Demo history: everything before {now:%d %b %H:%M} UTC was simulated by the "
            "scheduler's own rounds. No process ran."
        ),
        ends_at=now + timedelta(days=2),
        now=now,
    )


def _refresh_addresses(
    viewer: Viewer, described: Sequence[Mapping[str, Any]], now: datetime
) -> None:
    for entry in described:
        node = Node.objects.filter(name=entry["name"], removed_at=None).first()
        if node is not None and (node.host, node.port) != (entry["host"], entry["port"]):
            nodes.update_node(
                viewer=viewer,
                node_id=node.pk,
                now=now,
                host=entry["host"],
                port=entry["port"],
                host_key=entry["host_key"],
                fingerprint=entry["host_key_fingerprint"],
            )


def _ensure_nodes(viewer: Viewer, described: Sequence[Mapping[str, Any]], now: datetime) -> None:
    known = set(Node.objects.filter(removed_at=None).values_list("name", flat=True))
    for entry in described:
        if entry["name"] not in known:
            nodes.add_node(
                viewer=viewer,
                name=entry["name"],
                host=entry["host"],
                port=entry["port"],
                user=entry["user"],
                host_key=entry["host_key"],
                fingerprint=entry["host_key_fingerprint"],
                labels={"rack": "demo"},
                now=now,
            )
    _refresh_addresses(viewer, described, now)


def _record_probes(found: Mapping[int, Inventory], now: datetime) -> None:
    """Store the isolation levels before the first round.

    The demo guarantees parts of nodes to two tenants, which is refused for nodes of level
    ``none``. The levels are therefore stored after the guarantees.
    """
    for node_id, inventory in found.items():
        record_probe(
            node_id=node_id,
            inventory=inventory.to_json(),
            has_docker=bool(inventory.docker_socket),
            cpus=float(inventory.cpus),
            memory_bytes=inventory.memory_bytes,
            now=now,
        )


async def _probe_all(
    settings: WorkerSettings, addresses: Sequence[NodeAddress]
) -> dict[int, Inventory]:
    async def probe(address: NodeAddress) -> Inventory:
        transport = over_ssh()(address, lambda *_: None)
        try:
            await transport.open()
            return await transport.probe()
        finally:
            await transport.close()

    found = await asyncio.gather(*(probe(address) for address in addresses))
    return {address.node_id: one for address, one in zip(addresses, found, strict=True)}


def _address(node_id: int, entry: Mapping[str, Any]) -> NodeAddress:
    fields = ("name", "host", "port", "user", "host_key")
    return NodeAddress(node_id=node_id, **{field: entry[field] for field in fields})


def _ensure_people(viewer: Viewer) -> dict[str, str]:
    tenants = {tenant.name: tenant for tenant in Tenant.objects.visible_to(viewer)}
    for name, display_name in TENANTS.items():
        if name not in tenants:
            tenants[name] = people.create_tenant(
                viewer=viewer, name=name, display_name=display_name
            )
    logins = {}
    for username, tenant, role in MEMBERS:
        user = User.objects.filter(username=username).first()
        if user is None:
            logins[username] = make_password()
            user = people.create_user(viewer=viewer, username=username, password=logins[username])
        members = Membership.objects.visible_to(viewer)
        if not members.filter(user=user, tenant=tenants[tenant]).exists():
            people.add_member(
                viewer=viewer, tenant_id=tenants[tenant].pk, username=username, role=role
            )
    return logins


def _ensure_shares(viewer: Viewer, now: datetime) -> None:
    chains = dict(Device.objects.filter(retired_at=None).values_list("device_type", "chain"))
    known = set(VirtualCluster.objects.visible_to(viewer).values_list("name", flat=True))
    for name, (tenant, cells) in SHARES.items():
        if name not in known:
            quotas = [
                {"chain": chains[kind], "level": level, "count": count}
                for kind, level, count in cells
            ]
            edit = CreateVc(name=name, tenant=tenant, cells=quotas)
            edit_virtual_cluster(viewer=viewer, edit=edit, now=now)


def submit_examples(settings: WorkerSettings, now: datetime) -> None:
    """Submit both example jobs; a repeated call submits nothing."""
    jobs = (
        ("alice", "vision-a", "digits", DIGITS, 1, 1),
        ("bob", "language-a", "gang", GANG, 2, 2),
    )
    for username, cluster, name, script, instances, devices in jobs:
        viewer = viewer_of(User.objects.get(username=username))
        digest = _store_script(viewer, cluster, EXAMPLES / script, settings, now)
        role = {"instances": instances, "devices": devices, "command": f"python3 {script}"}
        document = {
            "name": name,
            "note": "An example that comes with the demo.",
            "virtual_cluster": cluster,
            "source": {"archive": digest},
            "roles": {"worker": role},
        }
        _submit(document, viewer, now)


def _submit(document: Mapping[str, Any], viewer: Viewer, now: datetime) -> None:
    # A job of an earlier version with another script stays unchanged.
    with suppress(IdempotencyConflictError):
        submit_job(
            submission=Submission(document=document),
            viewer=viewer,
            submit_context=read_submit_context(viewer=viewer, images_ignored=True),
            now=now,
            idempotency_key=f"demo-{document['name']}",
        )


def _store_script(
    viewer: Viewer, cluster: str, script: Path, settings: WorkerSettings, now: datetime
) -> str:
    """Upload a script as its owner; return the SHA-256 of the archive."""
    row, _ = store_archive(
        viewer=viewer,
        tenant_id=virtual_cluster_for(viewer, cluster).tenant_id,
        name=f"{script.stem}.tar.gz",
        content=[_packed(script)],
        storage=settings.storage,
        now=now,
    )
    return row.sha256


def _packed(script: Path) -> bytes:
    """Return a reproducible archive with one file."""
    content = script.read_bytes()
    entry = tarfile.TarInfo(script.name)
    entry.size, entry.mode = len(content), 0o644
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)
