"""Several edits of the cluster at once: all or none, tried beforehand; nobody is evicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

from django.db import IntegrityError

from scheduling.core.cells import ClusterSpec
from scheduling.models import Node, VirtualCluster
from scheduling.selectors.reconfiguration import Effect, effect_of
from scheduling.selectors.topology import TopologyNow, current_topology
from scheduling.selectors.virtual_clusters import spec_in_force
from scheduling.services.announce import want_round
from scheduling.services.cluster_edits import (
    MOST_EDITS,
    AddNode,
    CordonNode,
    CreateVc,
    Draft,
    Edit,
    NodeEdit,
    ShareEdit,
    UncordonNode,
)
from scheduling.services.edits import compare_and_set, reason_errors
from scheduling.services.node_holds import cordon_node, uncordon_node
from scheduling.services.node_rows import (
    EMPTY_IT,
    removal_values,
    require_empty,
    write_node,
)
from scheduling.services.nodes import add_node
from scheduling.services.shares import Share, write_shares
from scheduling.services.topology import (
    DoesNotFitError,
    append_version,
    rehearsed,
    require_unused,
    require_version,
    retire_devices,
)
from scheduling.services.virtual_clusters import owner_named, require_no_jobs
from tenants.audit import changed, record
from tenants.errors import DuplicateError, FieldError, InvalidError, NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured:
    """What a reconfiguration has done, or would do.

    Attributes:
        version: of the topology: the one that was read for a dry run, else the new one.
        effect: who borrows, who is guaranteed again, what no longer fits, and what changes.
    """

    dry_run: bool
    version: int
    effect: Effect


def reconfigure(
    *,
    viewer: Viewer,
    edits: Sequence[Edit],
    now: datetime,
    dry_run: bool = False,
    expected_version: int | None = None,
    reason: str = "",
) -> Reconfigured:
    """Apply all edits in one transaction; running jobs go on, some of them borrowing from then on.

    A dry run does everything and rolls it back; only promises that do not fit are its answer and
    no error. What it says of the jobs is what the next round finds.

    Args:
        viewer: a cluster admin.
        edits: in order; promises need to fit only after the last of them.
        now: the instant that is written.
        dry_run: only answer.
        expected_version: version of the topology that the admin saw.
        reason: why, for the audit.

    Raises:
        InvalidError: one or more values are wrong, all of them named with the edit's number.
        NotFoundError: there is no such node.
        DoesNotFitError: the promises do not fit together; nothing was written.
        DevicesInUseError, ConflictError: a node or a virtual cluster that is to go has jobs.
        StaleEditError: somebody changed cells or promises since ``expected_version``.
    """
    if not edits or any(isinstance(edit, ShareEdit) for edit in edits):
        viewer.require(Permission.EDIT_VC, what="virtual clusters")
    if any(isinstance(edit, NodeEdit) for edit in edits):
        viewer.require(Permission.MANAGE_NODES, what="nodes")
        viewer.require(Permission.EDIT_VC, what="virtual clusters")
    InvalidError.raise_if(_request_faults(edits, reason))
    run = _Run(viewer=viewer, edits=tuple(edits), now=now, reason=reason.strip())

    def act() -> Reconfigured:
        topology = current_topology()
        require_version(topology, expected_version)
        return run.write(topology, dry_run=dry_run)

    return rehearsed(act, dry_run=dry_run, expected_version=expected_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One reconfiguration; ``write`` is called again when somebody else was faster."""

    viewer: Viewer
    edits: tuple[Edit, ...]
    now: datetime
    reason: str

    def write(self, topology: TopologyNow, *, dry_run: bool) -> Reconfigured:
        """Check everything, then write everything, in the caller's transaction."""
        before = spec_in_force(topology)
        draft = Draft(topology, _open_rows(), _shares_of(before))
        draft.apply(self.edits)
        InvalidError.raise_if(draft.faults)
        effect = effect_of(self.viewer, before, draft.spec(), self._owners(draft))
        if not effect.change.fits:
            if dry_run:
                return Reconfigured(dry_run=True, version=topology.version, effect=effect)
            _refuse(effect)
        version = self._write_cells(topology, draft)
        self._write_shares(draft)
        for edit in self.edits:
            self._hold(edit)
        self._record(effect, topology.version, version)
        shown = topology.version if dry_run else version
        return Reconfigured(dry_run=dry_run, version=shown, effect=effect)

    def _owners(self, draft: Draft) -> dict[str, int]:
        """Tenants of the virtual clusters that would be created."""
        return {
            name: owner_named(self.viewer, edit.tenant).pk for name, edit in draft.created.items()
        }

    def _write_cells(self, topology: TopologyNow, draft: Draft) -> int:
        """Take nodes out, and append the version that everybody else's edits collide with."""
        for name in draft.removed:
            self._remove_node(name)
        if not (draft.changed or draft.removed) or not topology.version:
            return topology.version
        return append_version(
            before=topology.version,
            spec=draft.topology.spec,
            reason=self.reason or _words(draft),
            user_id=self.viewer.user_id,
            now=self.now,
        ).version

    def _remove_node(self, name: str) -> None:
        node = _node_named(name)
        require_empty(node, EMPTY_IT)
        devices = list(node.devices.filter(retired_at=None))
        require_unused([device.pk for device in devices], field="node")
        retire_devices(devices, self.now)
        write_node(
            actor=self.viewer,
            node=node,
            action="node.remove",
            values=removal_values(node, self.now),
            now=self.now,
            message=self.reason,
        )

    def _write_shares(self, draft: Draft) -> None:
        rows = dict(draft.rows)
        for name, edit in draft.created.items():
            rows[name] = self._create(edit)
        write_shares(
            {rows[name]: draft.shares.get(name, Share()) for name in draft.changed if name in rows}
        )
        for name in sorted({*draft.changed, *draft.archived}):
            if name in draft.created:
                self._record_created(rows[name], draft.created[name], draft.shares[name])
            else:
                self._update(rows[name], draft)

    def _create(self, edit: CreateVc) -> VirtualCluster:
        owner = owner_named(self.viewer, edit.tenant)
        try:
            return VirtualCluster.objects.create(
                name=edit.name, tenant=owner, created_at=self.now, **edit.columns()
            )
        except IntegrityError:
            raise DuplicateError(
                f"A virtual cluster named {edit.name} exists or existed.",
                field="name",
                value=edit.name,
                remedy="Choose another name.",
            ) from None

    def _record_created(self, vc: VirtualCluster, edit: CreateVc, share: Share) -> None:
        record(
            actor=self.viewer,
            action="virtual_cluster.create",
            obj=vc,
            after={
                "name": vc.name,
                "tenant": edit.tenant,
                **edit.columns(),
                **share.as_json(),
            },
            tenant=vc.tenant_id,
            message=self.reason,
        )

    def _update(self, vc: VirtualCluster, draft: Draft) -> None:
        values: dict[str, Any] = {}
        if vc.name in draft.archived:
            require_no_jobs(vc)
            values["archived_at"] = self.now
        compare_and_set(
            VirtualCluster.objects.unscoped(),
            pk=vc.pk,
            kind="virtual cluster",
            expected_version=None,
            read_version=vc.version,
            values=values,
        )
        was, is_now = draft.before[vc.name], draft.shares.get(vc.name, Share())
        before, after = changed(was.as_json(), is_now.as_json())
        if values:
            before, after = {**before, "archived_at": None}, {**after, **values}
        record(
            actor=self.viewer,
            action=f"virtual_cluster.{'archive' if values else 'update'}",
            obj=vc,
            before=before,
            after=after,
            tenant=vc.tenant_id,
            message=self.reason,
        )

    def _hold(self, edit: Edit) -> None:
        if isinstance(edit, AddNode):
            add_node(
                viewer=self.viewer,
                name=edit.name,
                host=edit.host,
                port=edit.port,
                user=edit.user,
                host_key=edit.host_key,
                fingerprint=edit.fingerprint,
                labels=edit.labels,
                now=self.now,
            )
        elif isinstance(edit, CordonNode):
            node = _node_named(edit.node)
            cordon_node(viewer=self.viewer, node_id=node.pk, reason=edit.reason, now=self.now)
        elif isinstance(edit, UncordonNode):
            node = _node_named(edit.node)
            uncordon_node(viewer=self.viewer, node_id=node.pk, reason=edit.reason, now=self.now)

    def _record(self, effect: Effect, before: int, after: int) -> None:
        """One row for the whole, besides those of each virtual cluster and node."""
        record(
            actor=self.viewer,
            action="cluster.reconfigure",
            object_type="topology",
            object_id=after,
            object_name=f"topology {after}",
            before={"version": before, **_promised(effect, "before")},
            after={
                "version": after,
                **_promised(effect, "after"),
                "nodes_removed": list(effect.change.nodes_removed),
                "become_opportunistic": [job.job_id for job in effect.loses],
                "guaranteed_again": [job.job_id for job in effect.regains],
            },
            message=self.reason,
        )
        want_round("reconfigure")


def _request_faults(edits: Sequence[Edit], reason: str) -> list[FieldError]:
    faults = list(reason_errors(reason)) if reason.strip() else []
    if not 1 <= len(edits) <= MOST_EDITS:
        faults.append(
            FieldError(
                field="edits",
                value=len(edits),
                message="This is not a reconfiguration.",
                remedy=f"Give 1 to {MOST_EDITS} edits.",
            )
        )
    return faults


def _open_rows() -> Mapping[str, VirtualCluster]:
    rows = VirtualCluster.objects.unscoped().filter(archived_at=None).select_related("tenant")
    return {vc.name: vc for vc in rows}


def _shares_of(spec: ClusterSpec) -> Mapping[str, Share]:
    return {
        name: Share(
            quotas=tuple(sorted(share.quotas, key=lambda quota: (quota.chain, quota.level))),
            pinned=dict(share.pinned),
        )
        for name, share in spec.virtual_clusters.items()
    }


def _node_named(name: str) -> Node:
    node = Node.objects.filter(name=name.replace("\x00", ""), removed_at=None).first()
    if node is None:
        raise NotFoundError("There is no such node.", field="node", value=name)
    return node


REMEDY: Final = (
    "Promise fewer or smaller cells there, whole nodes where they do not isolate jobs, or add"
    " nodes."
)


def _refuse(effect: Effect) -> NoReturn:
    raise DoesNotFitError(
        errors=[
            FieldError(
                field="edits",
                value=witness,
                message=f"{witness[:1].upper()}{witness[1:]}.",
                remedy=REMEDY,
            )
            for witness in effect.change.witnesses
        ]
    )


def _promised(effect: Effect, side: str) -> dict[str, object]:
    """What is promised on one side of the change, by virtual cluster and level."""
    promises = {
        f"{change.vc}: {change.level}": getattr(change, side) for change in effect.change.promises
    }
    pins = {f"{change.vc}: {change.name}": getattr(change, side) for change in effect.change.pins}
    return {**({"cells": promises} if promises else {}), **({"pinned": pins} if pins else {})}


def _words(draft: Draft) -> str:
    parts = [*(f"shape of {name}" for name in draft.changed)]
    parts += [f"{name} removed" for name in draft.removed]
    return ", ".join(parts)
