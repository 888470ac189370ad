"""Which virtual clusters of a tenant a member may use."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from scheduling.clusters.models import VcLimit, VirtualCluster
from scheduling.common.edits import compare_and_set
from scheduling.core.messages import sentence
from tenants.audit import record
from tenants.errors import FieldError, InvalidError, NotFoundError
from tenants.models import Membership
from tenants.roles import Permission
from tenants.viewers import Viewer


@transaction.atomic
def set_member_limits(
    *, viewer: Viewer, membership_id: int, virtual_clusters: Sequence[str], now: datetime
) -> tuple[str, ...]:
    """Let a member use only these virtual clusters of the tenant; none named means all of them.

    Returns:
        The names that hold now.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not see the member, or not change it.
        InvalidError: a name is no virtual cluster of the tenant.
        StaleEditError: somebody has changed the member at the same moment.
    """
    member = _managed_member(viewer, membership_id)
    rows = {
        vc.name: vc
        for vc in VirtualCluster.objects.unscoped().filter(
            tenant_id=member.tenant_id, archived_at=None
        )
    }
    InvalidError.raise_if(
        FieldError(
            field="virtual_clusters",
            value=name,
            message=sentence("not-cluster-of-tenant"),
            remedy=sentence("use-any-of", names=", ".join(sorted(rows)) or "none yet"),
        )
        for name in virtual_clusters
        if name not in rows
    )
    before = sorted(
        VcLimit.objects.filter(membership=member).values_list("virtual_cluster__name", flat=True)
    )
    after = sorted(set(virtual_clusters))
    if before != after:
        _replace(member, [rows[name] for name in after])
        record(
            actor=viewer,
            action="member.limit",
            obj=member,
            object_name=f"{member.user.username} in {member.tenant.name}",
            before={"virtual_clusters": before},
            after={"virtual_clusters": after},
            tenant=member.tenant_id,
        )
    return tuple(after)


def _replace(member: Membership, allowed: Sequence[VirtualCluster]) -> None:
    """Let these limits stand for those that were read with ``member``."""
    # Of two people who limit one member at once the second would leave the sum of both.
    compare_and_set(
        Membership.objects.unscoped(),
        pk=member.pk,
        kind="member",
        expected_version=None,
        read_version=member.version,
        values={},
    )
    VcLimit.objects.filter(membership=member).delete()
    VcLimit.objects.bulk_create(VcLimit(membership=member, virtual_cluster=vc) for vc in allowed)


def _managed_member(viewer: Viewer, membership_id: int) -> Membership:
    visible = Membership.objects.visible_to(viewer).select_related("user", "tenant")
    member = visible.filter(pk=membership_id).first()
    if member is None:
        raise NotFoundError(sentence("no-such-member"), field="member", value=membership_id)
    viewer.require(Permission.MANAGE_MEMBERS, member.tenant_id, what="the member")
    return member
