"""Nodes that belong to one tenant, from a round's commit until a reset by an admin."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from scheduling.clusters.models import Node, NodeTenancy
from scheduling.clusters.services.node_rows import address_of, node_to_edit, require_empty
from scheduling.common.edits import reason_errors
from scheduling.common.on_commit import node_has_changed, request_round_on_commit
from scheduling.core.messages import sentence
from scheduling.core.round_result import Start
from scheduling.jobs.models import Job
from tenants.audit import record
from tenants.edits import require_version
from tenants.errors import ConflictError, InvalidError
from tenants.viewers import Viewer
from tessera.isolation import NONE


def take_nodes(
    starts: Sequence[Start], jobs: Mapping[int, Job], node_ids: Mapping[str, int], *, now: datetime
) -> dict[int, int]:
    """Assign the nodes on which jobs start without isolation to the tenants of these jobs.

    Only rounds assign nodes, and an overtaken round does not commit. A node of another tenant
    therefore cannot occur here; the constraint ``tenancy_one_open_per_node`` would roll the round
    back.

    Returns:
        The ID of the open tenancy by node ID.
    """
    wanted: dict[int, Job] = {}
    for start in starts:
        for name in {member.node for member in start.members if member.isolation == NONE}:
            wanted.setdefault(node_ids[name], jobs[start.job_id])
    if not wanted:
        return {}
    known = {
        tenancy.node_id: tenancy.pk
        for tenancy in NodeTenancy.objects.unscoped()
        .select_for_update()
        .filter(node_id__in=wanted, reset_at=None)
        .order_by("id")
        if tenancy.tenant_id == wanted[tenancy.node_id].tenant_id
    }
    taken = NodeTenancy.objects.bulk_create(
        NodeTenancy(
            node_id=node_id,
            tenant_id=job.tenant_id,
            taken_at=now,
            taken_by_job_id=job.pk,
        )
        for node_id, job in sorted(wanted.items())
        if node_id not in known
    )
    for tenancy in taken:
        node_has_changed(tenancy.node_id)
    return known | {tenancy.node_id: tenancy.pk for tenancy in taken}


def keep_tenancy(*, viewer: Viewer, node: Node, now: datetime) -> None:
    """Restore the tenancy of a host that was removed and is added again.

    The tenant's jobs may have left files behind. A host is identified by its host key or its
    address. Call it in the transaction that adds the node or changes its address.
    """
    if NodeTenancy.objects.unscoped().filter(node=node, reset_at=None).exists():
        return
    of_removed = NodeTenancy.objects.unscoped().filter(
        reset_at=None, node__removed_at__isnull=False
    )
    has_key = Q(node__host_key_fingerprint=node.host_key_fingerprint or None)
    has_address = Q(node__last_address=address_of(node))
    found = None
    # Cloned hosts share one key, so a matching address is stronger evidence.
    for identity in (has_key & has_address, has_key | has_address):
        rows = of_removed.select_for_update(of=("self",)).filter(identity)
        found = found or rows.order_by("-taken_at", "-pk").first()
    if found is None:
        return
    of_removed.filter(pk=found.pk).update(reset_at=now, reset_reason=f"added as {node.name}")
    NodeTenancy.objects.create(
        node=node,
        tenant_id=found.tenant_id,
        taken_at=found.taken_at,
        taken_by_job_id=found.taken_by_job_id,
    )
    record(
        actor=viewer,
        action="node.keep_tenant",
        obj=node,
        after={"tenant": found.tenant.name, "since": found.taken_at.isoformat()},
    )
    node_has_changed(node.pk)


@transaction.atomic
def reset_isolation(
    *,
    viewer: Viewer,
    node_id: int,
    reason: str,
    now: datetime,
    expected_version: int | None = None,
) -> Node:
    """Release a node from its tenant, so that another tenant may use it.

    The admin confirms that the tenant left nothing on the node: files in the home directory, cron
    jobs, authorized keys, processes.

    Raises:
        NotFoundError: the node is unknown.
        InvalidError: the reason is empty.
        ConflictError: the node has no tenancy, or jobs of the tenant are still on it.
        StaleEditError: the node was edited since ``expected_version``.
    """
    node = node_to_edit(viewer, node_id)
    InvalidError.raise_if(reason_errors(reason))
    require_version(node.version, expected_version, kind="node")
    # The lock prevents a concurrent round from adding a member.
    tenancy = (
        NodeTenancy.objects.unscoped().select_for_update().filter(node=node, reset_at=None).first()
    )
    if tenancy is None:
        raise ConflictError(
            sentence("node-without-tenancy", name=node.name), field="node", value=node.name
        )
    require_empty(node, sentence("drain-then-reset"))
    closed = (
        NodeTenancy.objects.unscoped()
        .filter(pk=tenancy.pk, reset_at=None)
        .update(reset_at=now, reset_reason=reason.strip())
    )
    if closed:
        record(
            actor=viewer,
            action="node.reset_isolation",
            obj=node,
            before={"tenant": tenancy.tenant.name, "since": tenancy.taken_at.isoformat()},
            after={"tenant": None},
            message=reason.strip(),
        )
        node_has_changed(node.pk)
        request_round_on_commit("node")
    return node
