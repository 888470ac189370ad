"""Reconfiguration: edits of the cluster, all or none, with dry run and without eviction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from scheduling.clusters.models import Node, VirtualCluster
from scheduling.clusters.queries.reconfiguration import Effect, effect_of, fit_of
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.cluster_edits import (
    MOST_EDITS,
    AddNode,
    ClusterDraft,
    CordonNode,
    Edit,
    NodeEdit,
    ShareEdit,
    UncordonNode,
    VcEdit,
)
from scheduling.clusters.services.node_holds import cordon_node, uncordon_node
from scheduling.clusters.services.node_rows import (
    EMPTY_IT,
    removal_values,
    require_empty,
    write_node,
)
from scheduling.clusters.services.nodes import add_node
from scheduling.clusters.services.shares import VcGuarantee
from scheduling.clusters.services.topology import (
    REMEDY_FOR_RULES,
    DoesNotFitError,
    append_version,
    refused,
    rehearsed,
    require_unused,
    require_version,
    retire_devices,
)
from scheduling.clusters.services.virtual_clusters import (
    owner_named,
    require_editable,
    write_virtual_clusters,
)
from scheduling.common.edits import reason_errors
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.cells import ClusterSpec, SpecError
from scheduling.core.cells.reconfiguration import Reconfiguration
from scheduling.core.messages import sentence
from scheduling.topology.current import TopologyNow, current_topology
from tenants.audit import record
from tenants.errors import FieldError, InvalidError, NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.messages import message_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured:
    """The result of a reconfiguration, or of its dry run.

    Attributes:
        version: topology version: the current one for a dry run, otherwise the new one.
        effect: the changes, and jobs that would borrow, regain their guarantee or not fit any
            more.
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
    """Apply all edits in one transaction; running jobs continue, and some borrow afterwards.

    A dry run is rolled back. Its result contains guarantees that do not fit, instead of an error.
    Its effect on jobs equals that of the next round.

    Args:
        viewer: a cluster admin.
        edits: the edits in order; guarantees need to fit only after the last edit.
        now: time to store.
        dry_run: whether only to report.
        expected_version: topology version that the admin saw.
        reason: reason for the audit.

    Raises:
        InvalidError: values are not valid; the error lists all faults with the edit's position.
        NotFoundError: a node is unknown.
        DoesNotFitError: the guarantees do not fit together; nothing was written.
        DevicesInUseError, ConflictError: a removed node or an archived virtual cluster has jobs.
        StaleEditError: cells or guarantees changed since ``expected_version``.
    """
    if not edits or any(isinstance(edit, ShareEdit) for edit in edits):
        viewer.require(Permission.EDIT_VC, what="virtual clusters")
    if any(isinstance(edit, NodeEdit) for edit in edits):
        viewer.require(Permission.MANAGE_NODES, what="nodes")
        viewer.require(Permission.EDIT_VC, what="virtual clusters")
    InvalidError.raise_if(_request_faults(edits, reason))
    run = _Run(viewer=viewer, edits=tuple(edits), now=now, dry_run=dry_run, reason=reason.strip())

    def act() -> Reconfigured:
        topology = current_topology()
        require_version(topology, expected_version)
        done = run.write(topology)
        if done.effect.change.fits:
            run.record_whole(done.effect, topology.version, done.version)
        return done

    return rehearsed(act, dry_run=dry_run, expected_version=expected_version)


def edit_virtual_cluster(
    *,
    viewer: Viewer,
    edit: VcEdit,
    now: datetime,
    dry_run: bool = False,
    expected_version: int | None = None,
) -> Reconfigured | None:
    """Create, update or archive one virtual cluster; running jobs continue, and borrow if needed.

    A dry run is rolled back. Its result contains a guarantee that does not fit
    (``effect.change.fits``); every other fault raises the error of the edit itself.

    Args:
        viewer: a cluster admin, or for caps a lead of the tenant.
        edit: the edit; faults contain its field names.
        now: time to store.
        dry_run: whether only to report.
        expected_version: version of the virtual cluster that the editor saw.

    Returns:
        The result of a dry run; None if the edit was written.

    Raises:
        NotFoundError, ForbiddenError: the viewer may not see or not change the virtual cluster.
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: another virtual cluster has the name.
        ConflictError: the virtual cluster is archived, or it has jobs and cannot be archived.
        DoesNotFitError: the guarantees do not fit together, or do not fit at the isolation level;
            nothing was written.
        StaleEditError: the virtual cluster was edited since ``expected_version``.
    """
    run = _Run(viewer=viewer, edits=(edit,), now=now, dry_run=dry_run, numbered=False)

    def act() -> Reconfigured:
        require_editable(viewer, edit, expected_version)
        return run.write(current_topology())

    done = rehearsed(act, dry_run=dry_run)
    return done if dry_run else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One request; ``write`` is called again after a concurrent edit.

    Attributes:
        numbered: whether the request has several edits, so that faults contain the edit's
            position.
    """

    viewer: Viewer
    edits: tuple[Edit, ...]
    now: datetime
    dry_run: bool
    reason: str = ""
    numbered: bool = True

    def write(self, topology: TopologyNow) -> Reconfigured:
        """Check everything, then write everything, in the caller's transaction."""
        before = spec_in_force(topology)
        shares = {name: VcGuarantee.of(share) for name, share in before.virtual_clusters.items()}
        draft = ClusterDraft(topology, _open_rows(), shares)
        draft.apply(self.edits, numbered=self.numbered)
        InvalidError.raise_if(draft.faults)
        effect = self._effect(before, draft)
        if not effect.change.fits:
            if self.dry_run:
                return Reconfigured(dry_run=True, version=topology.version, effect=effect)
            raise self._refusal(effect, draft)
        version = self._write_cells(topology, draft)
        write_virtual_clusters(viewer=self.viewer, draft=draft, reason=self.reason, now=self.now)
        for edit in self.edits:
            self._hold(edit)
        if draft.edited:
            request_round_on_commit("virtual-cluster")
        shown = topology.version if self.dry_run else version
        return Reconfigured(dry_run=self.dry_run, version=shown, effect=effect)

    def _effect(self, before: ClusterSpec, draft: ClusterDraft) -> Effect:
        """Return the effect on jobs; empty if cells, guarantees and levels do not change.

        For a single written edit, only the fit is computed: its effect on jobs is not shown, and
        takes a second at 10,000 devices.
        """
        if not draft.is_judged:
            return Effect(change=Reconfiguration(fits=True))
        after, owners = draft.spec(), self._owners(draft)
        try:
            if self.dry_run or self.numbered:
                return effect_of(self.viewer, before, after, owners, draft.levels)
            return Effect(change=fit_of(before, after, owners, draft.levels))
        except SpecError as error:
            raise refused(error) from error

    def _refusal(self, effect: Effect, draft: ClusterDraft) -> DoesNotFitError:
        field, remedy = "edits", REMEDY_FOR_RULES if draft.levels and not draft.changed else REMEDY
        if not self.numbered:
            field = "cells" if draft.changed else "least_isolation"
        return DoesNotFitError(
            errors=[
                FieldError(
                    field=field,
                    value=witness,
                    message=sentence("witness", witness=message_of(witness)),
                    remedy=remedy,
                )
                for witness in effect.change.witnesses
            ]
        )

    def _owners(self, draft: ClusterDraft) -> dict[str, int]:
        """Return the tenant IDs of the virtual clusters to create, by name."""
        return {
            name: owner_named(self.viewer, edit.tenant).pk for name, edit in draft.created.items()
        }

    def _write_cells(self, topology: TopologyNow, draft: ClusterDraft) -> int:
        """Remove nodes, and append a version, which detects concurrent edits."""
        for name in draft.removed:
            self._remove_node(name)
        if not draft.is_judged or not topology.version:
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

    def record_whole(self, effect: Effect, before: int, after: int) -> None:
        """Write one audit row for all edits, besides the rows of each virtual cluster and node."""
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
        request_round_on_commit("reconfigure")


def _request_faults(edits: Sequence[Edit], reason: str) -> list[FieldError]:
    faults = list(reason_errors(reason)) if reason.strip() else []
    if not 1 <= len(edits) <= MOST_EDITS:
        faults.append(
            FieldError(
                field="edits",
                value=len(edits),
                message=sentence("not-reconfiguration"),
                remedy=sentence("give-edits", most=MOST_EDITS),
            )
        )
    return faults


def _open_rows() -> Mapping[str, VirtualCluster]:
    rows = VirtualCluster.objects.unscoped().filter(archived_at=None).defer("policy_state")
    return {vc.name: vc for vc in rows}


def _node_named(name: str) -> Node:
    node = Node.objects.filter(name=name.replace("\x00", ""), removed_at=None).first()
    if node is None:
        raise NotFoundError(sentence("no-such-node"), field="node", value=name)
    return node


REMEDY: Final = sentence("guarantee-less-or-whole-nodes")


def _promised(effect: Effect, side: str) -> dict[str, object]:
    """Return the guarantees on one side of the change, by virtual cluster and level."""
    promises = {
        f"{change.vc}: {change.level}": getattr(change, side) for change in effect.change.promises
    }
    pins = {f"{change.vc}: {change.name}": getattr(change, side) for change in effect.change.pins}
    return {**({"cells": promises} if promises else {}), **({"pinned": pins} if pins else {})}


def _words(draft: ClusterDraft) -> str:
    parts = [
        f"{name} created" if name in draft.created else f"shape of {name}"
        for name in draft.changed
    ]
    parts += [f"minimum isolation level of {name}" for name in draft.levels]
    parts += [f"{name} removed" for name in draft.removed]
    return ", ".join(parts)
