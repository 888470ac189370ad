"""Virtual clusters: making, reshaping, capping and putting them away."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any

from django.db import IntegrityError

from scheduling.models import Job, VirtualCluster
from scheduling.selectors.topology import current_topology
from scheduling.services.announce import want_round
from scheduling.services.edits import (
    UNCHANGED,
    Unchanged,
    compare_and_set,
    given,
)
from scheduling.services.shares import (
    Share,
    read_pinned,
    read_quotas,
    store_share,
    stored_share,
)
from scheduling.services.topology import in_turn, places_kept
from scheduling.services.vc_values import CAPS, name_faults, value_faults
from tenants.audit import changed, record
from tenants.errors import ConflictError, DuplicateError, FieldError, InvalidError, NotFoundError
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer


def create_virtual_cluster(
    *,
    viewer: Viewer,
    name: str,
    tenant: str,
    policy: str = "fifo",
    policy_args: Mapping[str, Any] | None = None,
    cells: Sequence[Mapping[str, Any]] = (),
    pinned: Sequence[Mapping[str, Any]] = (),
    max_devices_per_user: int | None = None,
    max_opportunistic_devices: int | None = None,
    note: str = "",
    now: datetime,
) -> VirtualCluster:
    """Make a virtual cluster with its guarantee.

    Args:
        viewer: a cluster admin.
        name: its name for good.
        tenant: name of the tenant that owns it.
        policy: who goes first inside it.
        policy_args: parameters of the policy.
        cells: the guarantee, ``{chain, level, count}`` each.
        pinned: cells that are its own by address, ``{name, address}`` each.
        max_devices_per_user: what one person may hold in it at a time; None for no bound.
        max_opportunistic_devices: what its jobs may borrow at a time; None for no bound.
        note: anything worth knowing.
        now: the instant that is written.

    Raises:
        NotFoundError: there is no such tenant.
        InvalidError: one or more values are wrong, all of them named.
        DuplicateError: the name is taken.
        DoesNotFitError: the guarantee does not fit beside the others; nothing was written.
    """
    viewer.require(Permission.EDIT_VC, what="virtual clusters")
    values: dict[str, Any] = {
        "policy": policy,
        "policy_args": dict(policy_args or {}),
        "max_devices_per_user": max_devices_per_user,
        "max_opportunistic_devices": max_opportunistic_devices,
        "note": note,
    }

    def create() -> VirtualCluster:
        owner = owner_named(viewer, tenant)
        faults = [*name_faults(name), *value_faults(values)]
        share = _read_share(cells, pinned, None, faults)
        InvalidError.raise_if(faults)
        return _store(viewer=viewer, name=name, owner=owner, values=values, share=share, now=now)

    try:
        return in_turn(create)
    except IntegrityError:
        raise DuplicateError(
            f"A virtual cluster named {name} exists or existed.",
            field="name",
            value=name,
            remedy="Choose another name.",
        ) from None


def _store(
    *,
    viewer: Viewer,
    name: str,
    owner: Tenant,
    values: Mapping[str, Any],
    share: Share,
    now: datetime,
) -> VirtualCluster:
    """Write a new virtual cluster and its guarantee, and who made it."""
    vc = VirtualCluster.objects.create(name=name, tenant=owner, created_at=now, **values)
    store_share(vc=vc, share=share, user_id=viewer.user_id, reason=f"{name} created", now=now)
    record(
        actor=viewer,
        action="virtual_cluster.create",
        obj=vc,
        after={"name": name, "tenant": owner.name, **values, **share.as_json()},
        tenant=owner,
    )
    want_round("virtual-cluster")
    return vc


def update_virtual_cluster(
    *,
    viewer: Viewer,
    virtual_cluster_id: int,
    now: datetime,
    expected_version: int | None = None,
    policy: str | Unchanged = UNCHANGED,
    policy_args: Mapping[str, Any] | Unchanged = UNCHANGED,
    cells: Sequence[Mapping[str, Any]] | Unchanged = UNCHANGED,
    pinned: Sequence[Mapping[str, Any]] | Unchanged = UNCHANGED,
    max_devices_per_user: int | Unchanged | None = UNCHANGED,
    max_opportunistic_devices: int | Unchanged | None = UNCHANGED,
    least_isolation: str | Unchanged = UNCHANGED,
    note: str | Unchanged = UNCHANGED,
    shadows: Sequence[Mapping[str, Any]] | Unchanged = UNCHANGED,
) -> VirtualCluster:
    """Change the guarantee, the policy or the caps. What runs goes on, borrowed if need be.

    A lead of the tenant may change the caps; the rest is for cluster admins.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not see it, or not change that of it.
        InvalidError: one or more values are wrong, all of them named.
        DoesNotFitError: the guarantee does not fit beside the others, or one would lose its place
            by the isolation level; nothing was written.
        StaleEditError: somebody edited it since ``expected_version``.
    """
    values = given(
        policy=policy,
        policy_args=policy_args,
        max_devices_per_user=max_devices_per_user,
        max_opportunistic_devices=max_opportunistic_devices,
        least_isolation=least_isolation,
        note=note,
        shadows=shadows,
    )

    update = partial(
        _update,
        viewer=viewer,
        pk=virtual_cluster_id,
        values=values,
        shape=given(cells=cells, pinned=pinned),
        expected_version=expected_version,
        now=now,
    )
    return in_turn(update)


def _update(
    *,
    viewer: Viewer,
    pk: int,
    values: Mapping[str, Any],
    shape: Mapping[str, Any],
    expected_version: int | None,
    now: datetime,
) -> VirtualCluster:
    """Check what was given against what is there now, and write it."""
    vc = _editable(viewer, pk, _permission_for(values, shape))
    _require_open(vc)
    wanted = _with_fitting_args(values, vc)
    faults = value_faults({"policy": vc.policy, "policy_args": vc.policy_args, **wanted})
    before = stored_share(vc)
    after = _changed_share(shape, before, vc, faults)
    InvalidError.raise_if(faults)
    with _level_judged(viewer, vc, wanted, now):
        _write(
            viewer=viewer,
            vc=vc,
            values=_as_stored(wanted, vc),
            before_share=before,
            after_share=after,
            expected_version=expected_version,
            now=now,
        )
    return vc


def _level_judged(
    viewer: Viewer, vc: VirtualCluster, values: Mapping[str, Any], now: datetime
) -> AbstractContextManager[None]:
    """Judges the guarantees, where the minimum isolation level changes."""
    if values.get("least_isolation", vc.least_isolation) == vc.least_isolation:
        return nullcontext()
    reason = f"minimum isolation level of {vc.name}"
    return places_kept(field="least_isolation", reason=reason, user_id=viewer.user_id, now=now)


def _permission_for(values: Mapping[str, Any], shape: Mapping[str, Any]) -> Permission:
    """What such a change needs: caps alone are also for leads."""
    only_caps = bool(values) and not shape and set(values) <= set(CAPS)
    return Permission.SET_CAPS if only_caps else Permission.EDIT_VC


def _with_fitting_args(values: Mapping[str, Any], vc: VirtualCluster) -> Mapping[str, Any]:
    """The values, with the parameters of the old policy taken away if only the policy changes."""
    if "policy_args" in values or values.get("policy", vc.policy) == vc.policy:
        return values
    return {**values, "policy_args": {}}


def _as_stored(values: Mapping[str, Any], vc: VirtualCluster) -> dict[str, Any]:
    """Checked values as columns hold them, with what follows from them."""
    stored = dict(values)
    if "shadows" in stored:
        stored["shadows"] = [
            {"policy": shadow["policy"], "policy_args": dict(shadow.get("policy_args", {}))}
            for shadow in stored["shadows"]
        ]
    if stored.get("policy", vc.policy) != vc.policy:
        # What one policy remembers means nothing to another, and its fault is not the other's.
        stored.update(policy_state={}, policy_fault="", policy_fault_at=None)
    return stored


def archive_virtual_cluster(
    *,
    viewer: Viewer,
    virtual_cluster_id: int,
    now: datetime,
    expected_version: int | None = None,
) -> VirtualCluster:
    """Put a virtual cluster away: its guarantee becomes free, its history stays.

    Raises:
        NotFoundError: there is none, or the viewer may not see it.
        ConflictError: it is archived already, or jobs wait or run in it.
        StaleEditError: somebody edited it since ``expected_version``.
    """

    def archive() -> VirtualCluster:
        vc = _editable(viewer, virtual_cluster_id, Permission.EDIT_VC)
        _require_open(vc)
        require_no_jobs(vc)
        _write(
            viewer=viewer,
            vc=vc,
            values={"archived_at": now},
            before_share=stored_share(vc),
            after_share=Share(),
            expected_version=expected_version,
            now=now,
        )
        return vc

    return in_turn(archive)


def _write(
    *,
    viewer: Viewer,
    vc: VirtualCluster,
    values: Mapping[str, Any],
    before_share: Share,
    after_share: Share,
    expected_version: int | None,
    now: datetime,
) -> None:
    before, after = changed({key: getattr(vc, key) for key in values}, values)
    columns = dict(after)
    if "policy" in after:
        columns["policy_state"] = {}
    compare_and_set(
        VirtualCluster.objects.unscoped(),
        pk=vc.pk,
        kind="virtual cluster",
        expected_version=expected_version,
        read_version=vc.version,
        values=columns,
    )
    if after_share != before_share:
        reason = f"shape of {vc.name}"
        store_share(vc=vc, share=after_share, user_id=viewer.user_id, reason=reason, now=now)
        shape_before, shape_after = changed(before_share.as_json(), after_share.as_json())
        before, after = {**before, **shape_before}, {**after, **shape_after}
    if after:
        action = "archive" if "archived_at" in after else "update"
        record(
            actor=viewer,
            action=f"virtual_cluster.{action}",
            obj=vc,
            before=before,
            after=after,
            tenant=vc.tenant_id,
        )
        want_round("virtual-cluster")
    vc.refresh_from_db()


def _read_share(cells: object, pinned: object, own: int | None, faults: list[FieldError]) -> Share:
    topology = current_topology()
    return Share(
        quotas=read_quotas(cells, topology, faults),
        pinned=read_pinned(pinned, topology, faults, own=own),
    )


def _changed_share(
    shape: Mapping[str, Any], before: Share, vc: VirtualCluster, faults: list[FieldError]
) -> Share:
    if not shape:
        return before
    topology = current_topology()
    quotas, pinned = before.quotas, before.pinned
    if "cells" in shape:
        quotas = read_quotas(shape["cells"], topology, faults)
    if "pinned" in shape:
        pinned = read_pinned(shape["pinned"], topology, faults, own=vc.pk)
    return Share(quotas=quotas, pinned=pinned)


def owner_named(viewer: Viewer, name: str) -> Tenant:
    """The tenant that is to own a virtual cluster.

    Raises:
        InvalidError: there is no such tenant that takes new work.
    """
    found = (
        Tenant.objects.visible_to(viewer).filter(name=name, archived_at=None).first()
        if isinstance(name, str) and "\x00" not in name
        else None
    )
    if found is None:
        raise InvalidError(
            "There is no such tenant, or it is archived.",
            field="tenant",
            value=name,
            remedy="Give the name of a tenant, or make one first.",
        )
    return found


def _editable(viewer: Viewer, pk: int, permission: Permission) -> VirtualCluster:
    vc = (
        VirtualCluster.objects.visible_to(viewer, Permission.VIEW_TENANT)
        .select_related("tenant")
        .filter(pk=pk)
        .first()
    )
    if vc is None:
        raise NotFoundError(
            "There is no such virtual cluster, or you may not see it.", field="id", value=pk
        )
    viewer.require(permission, vc.tenant_id, what=f"virtual cluster {vc.name}")
    return vc


def _require_open(vc: VirtualCluster) -> None:
    if vc.archived_at is not None:
        raise ConflictError(
            f"{vc.name} is archived.",
            field="id",
            value=vc.pk,
            remedy="Make a new virtual cluster under another name.",
        )


def require_no_jobs(vc: VirtualCluster) -> None:
    """Go on if no job waits or runs in ``vc``.

    Raises:
        ConflictError: with the number of jobs.
    """
    live = Job.objects.unscoped().filter(virtual_cluster=vc).live().count()
    if live:
        raise ConflictError(
            f"{live} {'job waits or runs' if live == 1 else 'jobs wait or run'} in {vc.name}.",
            field="id",
            value=vc.pk,
            remedy="Stop them first, or let them end.",
        )
