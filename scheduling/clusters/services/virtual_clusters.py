"""Rows of virtual clusters: permissions of an edit, rows of a draft, and limits of members."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from scheduling.clusters.models import VcLimit, VirtualCluster
from scheduling.clusters.services.cluster_edits import (
    ArchiveVc,
    ChangeVc,
    ClusterDraft,
    CreateVc,
    VcEdit,
)
from scheduling.clusters.services.shares import VcGuarantee, write_shares
from scheduling.clusters.services.vc_values import CAPS
from scheduling.core.messages import sentence
from scheduling.jobs.models import Job
from tenants.audit import changed, record
from tenants.edits import compare_and_set, require_version
from tenants.errors import (
    ConflictError,
    DuplicateError,
    FieldError,
    InvalidError,
    NotFoundError,
)
from tenants.models import Membership, Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer


def require_editable(viewer: Viewer, edit: VcEdit, expected_version: int | None) -> None:
    """Check that ``viewer`` may apply ``edit``, and that its virtual cluster can be edited.

    A lead of the tenant may change the caps; all other edits require a cluster admin.

    Raises:
        ForbiddenError: the viewer may see the virtual cluster, but not apply this edit.
        NotFoundError: the virtual cluster is unknown, or the viewer may not see it.
        ConflictError: the virtual cluster is archived.
        DuplicateError: another virtual cluster has the name.
        StaleEditError: the version differs from ``expected_version``.
    """
    if isinstance(edit, CreateVc):
        viewer.require(Permission.EDIT_VC, what="virtual clusters")
        # Names of archived virtual clusters stay reserved; the edited configuration does not list
        # them.
        if VirtualCluster.objects.unscoped().filter(name=_storable(edit.name)).exists():
            raise _duplicate(edit.name)
        return
    vc = _visible(viewer, edit.virtual_cluster)
    viewer.require(
        _permission_for(edit), vc.tenant_id, what=sentence("the-virtual-cluster", name=vc.name)
    )
    if vc.archived_at is not None:
        raise ConflictError(
            sentence("archived", name=vc.name),
            field="id",
            value=vc.pk,
            remedy=sentence("create-under-another-name"),
        )
    require_version(vc.version, expected_version, kind="virtual cluster")


def write_virtual_clusters(
    *, viewer: Viewer, draft: ClusterDraft, reason: str, now: datetime
) -> None:
    """Write the rows that ``draft`` creates, changes and archives, with one audit row for each.

    Args:
        viewer: the actor for the audit.
        draft: a validated draft whose guarantees fit.
        reason: reason for the audit rows.
        now: time to store.

    Raises:
        InvalidError: a tenant does not exist or is archived.
        DuplicateError: another virtual cluster has the name of a new one.
        ConflictError: jobs wait or run in a virtual cluster to be archived.
        StaleEditError: another edit has changed a row since it was read.
    """
    rows = dict(draft.rows)
    for name, edit in draft.created.items():
        rows[name] = _create(viewer, edit, now)
    write_shares(
        {
            rows[name]: draft.shares.get(name, VcGuarantee())
            for name in draft.changed
            if name in rows
        }
    )
    for name in draft.edited:
        vc = rows[name]
        if name in draft.created:
            action, before, after = "create", {}, _created(draft, name)
        elif name in draft.archived:
            require_no_jobs(vc)
            action, before, after = "archive", *_written(vc, draft, {"archived_at": now})
        else:
            action, before, after = "update", *_written(vc, draft, {})
        record(
            actor=viewer,
            action=f"virtual_cluster.{action}",
            obj=vc,
            before=before,
            after=after,
            tenant=vc.tenant_id,
            message=reason,
        )


def owner_named(viewer: Viewer, name: str) -> Tenant:
    """Return the tenant for a virtual cluster.

    Raises:
        InvalidError: no active tenant has this name.
    """
    found = (
        Tenant.objects.visible_to(viewer).filter(name=name, archived_at=None).first()
        if isinstance(name, str) and "\x00" not in name
        else None
    )
    if found is None:
        raise InvalidError(
            sentence("no-such-tenant-archived"),
            field="tenant",
            value=name,
            remedy=sentence("give-or-create-tenant"),
        )
    return found


def require_no_jobs(vc: VirtualCluster) -> None:
    """Check that no job waits or runs in ``vc``.

    Raises:
        ConflictError: jobs wait or run; the error contains their number.
    """
    live = Job.objects.unscoped().filter(virtual_cluster=vc).live().count()
    if live:
        raise ConflictError(
            sentence("jobs-in-cluster", n=live, name=vc.name),
            field="id",
            value=vc.pk,
            remedy=sentence("stop-or-let-end"),
        )


def _visible(viewer: Viewer, name: str) -> VirtualCluster:
    rows = VirtualCluster.objects.visible_to(viewer, Permission.VIEW_TENANT)
    vc = rows.filter(name=_storable(name)).first()
    if vc is None:
        raise NotFoundError(
            sentence("no-such-virtual-cluster"),
            field="virtual_cluster",
            value=name,
        )
    return vc


def _storable(name: object) -> str:
    return name.replace("\x00", "") if isinstance(name, str) else ""


def _permission_for(edit: ChangeVc | ArchiveVc) -> Permission:
    """Return the permission that an edit requires; leads may change only caps."""
    if isinstance(edit, ArchiveVc) or edit.cells is not None or edit.pinned is not None:
        return Permission.EDIT_VC
    only_caps = bool(edit.values) and set(edit.values) <= set(CAPS)
    return Permission.SET_CAPS if only_caps else Permission.EDIT_VC


def _create(viewer: Viewer, edit: CreateVc, now: datetime) -> VirtualCluster:
    owner = owner_named(viewer, edit.tenant)
    try:
        return VirtualCluster.objects.create(
            name=edit.name, tenant=owner, created_at=now, **edit.values.columns()
        )
    except IntegrityError:
        raise _duplicate(edit.name) from None


def _duplicate(name: str) -> DuplicateError:
    return DuplicateError(
        sentence("cluster-existed", name=name),
        field="name",
        value=name,
        remedy=sentence("choose-another-name"),
    )


def _created(draft: ClusterDraft, name: str) -> dict[str, object]:
    edit = draft.created[name]
    columns, share = draft.values[name].columns(), draft.shares.get(name, VcGuarantee())
    return {"name": name, "tenant": edit.tenant, **columns, **share.as_json()}


def _written(
    vc: VirtualCluster, draft: ClusterDraft, more: Mapping[str, Any]
) -> tuple[dict[str, object], dict[str, object]]:
    """Write the columns of a stored virtual cluster; return before and after for the audit."""
    before, after = draft.changes_of(vc.name)
    before, after = {**before, **dict.fromkeys(more)}, {**after, **more}
    columns = dict(after)
    if "policy" in after:
        # State and fault of one policy are not valid for another.
        columns |= {"policy_state": {}, "policy_fault": "", "policy_fault_at": None}
    compare_and_set(
        VirtualCluster.objects.unscoped(),
        pk=vc.pk,
        kind="virtual cluster",
        expected_version=None,
        read_version=vc.version,
        values=columns,
    )
    was, wanted = (
        draft.before.get(vc.name, VcGuarantee()),
        draft.shares.get(vc.name, VcGuarantee()),
    )
    share_before, share_after = changed(was.as_json(), wanted.as_json())
    return {**before, **share_before}, {**after, **share_after}


@transaction.atomic
def set_member_limits(
    *, viewer: Viewer, membership_id: int, virtual_clusters: Sequence[str], now: datetime
) -> tuple[str, ...]:
    """Restrict a member to these virtual clusters of the tenant; an empty list allows all.

    Returns:
        The names of the allowed virtual clusters; empty for all.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not see or not change the member.
        InvalidError: a name is not a virtual cluster of the tenant.
        StaleEditError: another edit has changed the member concurrently.
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
            remedy=sentence("use-any-of", names=", ".join(sorted(rows)) or sentence("none-yet")),
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
    """Replace the limits that were read together with ``member``."""
    # Otherwise, the second of two concurrent edits of a member would store the sum of both.
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
