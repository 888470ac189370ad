"""Import of a HiveD configuration: cells, nodes, devices and virtual clusters in one step.

Afterwards, the cluster equals the document. If the document omits ``physicalCluster`` or
``virtualClusters``, that part does not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from scheduling.clusters.models import Device, Node, VirtualCluster
from scheduling.clusters.queries.virtual_clusters import spec_in_force
from scheduling.clusters.services.import_checks import (
    PHYSICAL,
    VIRTUAL,
    Owners,
    find_owners,
    length_faults,
    make_owners,
    quota_faults,
    refuse_archived,
    refuse_names,
)
from scheduling.clusters.services.node_groups import with_groups
from scheduling.clusters.services.shares import VcGuarantee, write_shares
from scheduling.clusters.services.topology import (
    DevicesInUseError,
    LeafPlace,
    append_version,
    held_faults,
    leaf_places,
    move_devices,
    refused,
    rehearsed,
    require_fit,
    require_version,
    retire_devices,
)
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.cells import ClusterSpec, SpecError, VcSpec
from scheduling.core.cells.hived import spec_from_hived
from scheduling.core.messages import sentence
from scheduling.enums import NodeState
from scheduling.jobs.models import Job
from scheduling.topology.current import TopologyNow, current_topology
from tenants.audit import record
from tenants.errors import FieldError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

NO_ADDRESS = "imported; it has no address yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """The effect of an import, or of its dry run.

    Attributes:
        version: topology version after the import.
        nodes_removed: nodes without a cell; their rows remain.
        nodes_without_host: nodes that are unreachable until they get an address.
        tenants_created: tenants created for virtual clusters without an owner.
        virtual_clusters_archived: virtual clusters without jobs that are not in the document.
        virtual_clusters_emptied: virtual clusters with jobs that are not in the document; their
            jobs continue and borrow.
        warnings: parts of the document that were ignored or are applied differently.
        conflicts: faults for which the import is refused (``devices-in-use``); only a dry run
            reports them, since the import raises them.
    """

    dry_run: bool
    version: int
    cell_types_added: tuple[str, ...]
    cell_types_changed: tuple[str, ...]
    cell_types_removed: tuple[str, ...]
    nodes_created: tuple[str, ...]
    nodes_removed: tuple[str, ...]
    nodes_without_host: tuple[str, ...]
    devices_added: int
    devices_removed: int
    tenants_created: tuple[str, ...]
    virtual_clusters_created: tuple[str, ...]
    virtual_clusters_changed: tuple[str, ...]
    virtual_clusters_archived: tuple[str, ...]
    virtual_clusters_emptied: tuple[str, ...]
    warnings: tuple[str, ...]
    conflicts: tuple[FieldError, ...] = ()


def import_hived(
    *,
    viewer: Viewer,
    document: Mapping[str, Any],
    now: datetime,
    dry_run: bool = False,
    warnings: Sequence[str] = (),
    owners: Mapping[str, str] | None = None,
    expected_version: int | None = None,
) -> ImportReport:
    """Set the cluster to a HiveD configuration.

    A dry run performs the import and rolls it back, so its report is exact. Jobs on devices that
    would be removed do not end a dry run: the report lists them (ADR 51).

    Args:
        viewer: a cluster admin.
        document: the configuration.
        now: time to store.
        dry_run: whether only to report.
        warnings: warnings from the parser of the document, which are passed on.
        owners: name of the tenant by new virtual cluster; by default the tenant with the name of
            the virtual cluster, which is created if it does not exist.
        expected_version: topology version that the admin saw.

    Raises:
        InvalidError: the document is not valid; the error contains field, value and remedy.
        DoesNotFitError: its quotas do not fit its cells.
        DevicesInUseError: jobs hold devices that would be removed, and this is not a dry run.
        StaleEditError: another edit changed the topology.
    """
    viewer.require(Permission.MANAGE_NODES, what=sentence("the-cluster"))
    viewer.require(Permission.EDIT_VC, what="virtual clusters")
    if not isinstance(document, Mapping) or not {PHYSICAL, VIRTUAL} & set(document):
        raise InvalidError(
            sentence("neither-part", one=PHYSICAL, other=VIRTUAL),
            field="document",
            remedy=sentence("send-hived"),
        )
    importing = _Importing(
        viewer=viewer,
        document=document,
        now=now,
        owners=dict(owners or {}),
        warnings=tuple(warnings),
        expected_version=expected_version,
        dry_run=dry_run,
    )

    return rehearsed(importing.run, dry_run=dry_run, expected_version=expected_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Importing:
    """One import; ``run`` is called again after a concurrent edit."""

    viewer: Viewer
    document: Mapping[str, Any]
    now: datetime
    owners: Mapping[str, str]
    warnings: tuple[str, ...]
    expected_version: int | None
    dry_run: bool

    def run(self) -> ImportReport:
        """Check everything, then write everything, in the caller's transaction."""
        before = current_topology()
        require_version(before, self.expected_version)
        spec = self._wanted(before)
        owners = find_owners(
            viewer=self.viewer, virtual_clusters=spec.virtual_clusters, wanted=self.owners
        )
        tenants = make_owners(viewer=self.viewer, owners=owners)
        in_force = spec_in_force(before)
        shares = self._write_shares(spec, owners)
        promised = self._promised_after(spec)
        require_fit(replace(spec, virtual_clusters=promised), before=in_force, field=VIRTUAL)
        version = append_version(
            before=before.version,
            spec=spec,
            reason="HiveD import",
            user_id=self.viewer.user_id,
            now=self.now,
        ).version
        after = TopologyNow(version, spec)
        nodes = self._write_nodes(before, after)
        added, removed, conflicts = self._write_devices(after)
        report = ImportReport(
            dry_run=self.dry_run,
            version=before.version if self.dry_run else version,
            devices_added=added,
            devices_removed=removed,
            tenants_created=tenants,
            warnings=self.warnings,
            conflicts=conflicts,
            **_type_changes(before.spec, spec),
            **nodes,
            **shares,
        )
        self._record(report)
        return report

    def _wanted(self, before: TopologyNow) -> ClusterSpec:
        try:
            spec = with_groups(spec_from_hived(self.document))
            if PHYSICAL not in self.document:
                spec = replace(
                    spec, cell_types=before.spec.cell_types, physical=before.spec.physical
                )
            topology = TopologyNow(0, spec)
        except SpecError as error:
            raise refused(error) from error
        InvalidError.raise_if([*length_faults(topology, spec), *quota_faults(topology, spec)])
        return spec

    def _write_shares(self, spec: ClusterSpec, owners: Owners) -> dict[str, tuple[str, ...]]:
        if VIRTUAL not in self.document:
            return dict.fromkeys(_SHARE_KEYS, ())
        rows = {vc.name: vc for vc in VirtualCluster.objects.unscoped()}
        refuse_archived(rows, spec.virtual_clusters)
        before = spec_in_force(current_topology()).virtual_clusters
        created, changed = [], []
        shares = {vc: VcGuarantee() for vc in rows.values() if vc.archived_at is None}
        for name, share in spec.virtual_clusters.items():
            vc = rows.get(name)
            if vc is None:
                vc = VirtualCluster.objects.create(
                    name=name, tenant_id=owners.tenant_of[name], created_at=self.now
                )
                created.append(name)
            elif before.get(name) != share:
                changed.append(name)
            shares[vc] = VcGuarantee.of(share)
        write_shares(shares)
        archived, emptied = self._put_away(rows, before, spec)
        return {
            "virtual_clusters_created": tuple(created),
            "virtual_clusters_changed": tuple(changed),
            "virtual_clusters_archived": archived,
            "virtual_clusters_emptied": emptied,
        }

    def _put_away(
        self,
        rows: Mapping[str, VirtualCluster],
        before: Mapping[str, VcSpec],
        spec: ClusterSpec,
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Archive virtual clusters that the document omits, unless jobs wait or run in them."""
        others = [rows[name] for name in before if name not in spec.virtual_clusters]
        busy = set(
            Job.objects.unscoped()
            .filter(virtual_cluster__in=others)
            .live()
            .values_list("virtual_cluster_id", flat=True)
        )
        idle = [vc for vc in others if vc.pk not in busy]
        for vc in idle:
            vc.archived_at = self.now
            vc.version += 1
        VirtualCluster.objects.unscoped().bulk_update(idle, ["archived_at", "version"])
        return (
            tuple(vc.name for vc in idle),
            tuple(vc.name for vc in others if vc.pk in busy),
        )

    def _promised_after(self, spec: ClusterSpec) -> Mapping[str, VcSpec]:
        return spec_in_force(TopologyNow(0, replace(spec, virtual_clusters={}))).virtual_clusters

    def _write_nodes(self, before: TopologyNow, after: TopologyNow) -> dict[str, tuple[str, ...]]:
        rows = {node.name: node for node in Node.objects.filter(removed_at=None)}
        created = [name for name in after.cells.nodes if name not in rows]
        refuse_names(created)
        Node.objects.bulk_create(
            Node(
                name=name,
                state=NodeState.DOWN,
                contact=NodeState.DOWN,
                state_reason=NO_ADDRESS,
                contact_reason=NO_ADDRESS,
                state_since=self.now,
                created_at=self.now,
            )
            for name in created
        )
        without = [name for name, node in rows.items() if not node.host]
        return {
            "nodes_created": tuple(created),
            "nodes_removed": tuple(n for n in before.cells.nodes if n not in after.cells.nodes),
            "nodes_without_host": tuple(
                sorted({*created, *(name for name in without if name in after.cells.nodes)})
            ),
        }

    def _write_devices(self, after: TopologyNow) -> tuple[int, int, tuple[FieldError, ...]]:
        """Write rows for all leaves; return devices added and removed, and the conflicts.

        Raises:
            DevicesInUseError: jobs hold devices that would be removed, and this is not a dry run.
        """
        nodes = dict(Node.objects.filter(removed_at=None).values_list("name", "id"))
        places = leaf_places(after)
        rows = {
            (device.node.name, device.index): device
            for device in Device.objects.filter(retired_at=None).select_related("node")
        }
        gone = [device for key, device in rows.items() if key not in places]
        held = held_faults([device.pk for device in gone], field=PHYSICAL)
        if held and not self.dry_run:
            raise DevicesInUseError(errors=held)
        retire_devices(gone, self.now)
        kept = {device.pk: device for key, device in rows.items() if key in places}
        move_devices(
            {device.pk: places[key] for key, device in rows.items() if key in places}, kept
        )
        new = [place for key, place in places.items() if key not in rows]
        Device.objects.bulk_create(
            (_device(place, nodes[place.node]) for place in new), batch_size=500
        )
        conflicts = tuple(replace(fault, code=DevicesInUseError.code) for fault in held)
        return len(new), len(gone), conflicts

    def _record(self, report: ImportReport) -> None:
        record(
            actor=self.viewer,
            action="cluster.import",
            object_type="topology",
            object_id=report.version,
            object_name="HiveD configuration",
            after={
                "nodes_created": report.nodes_created,
                "nodes_removed": report.nodes_removed,
                "devices_added": report.devices_added,
                "devices_removed": report.devices_removed,
                "virtual_clusters_created": report.virtual_clusters_created,
                "virtual_clusters_changed": report.virtual_clusters_changed,
                "virtual_clusters_archived": report.virtual_clusters_archived,
                "virtual_clusters_emptied": report.virtual_clusters_emptied,
            },
        )
        request_round_on_commit("import")


_SHARE_KEYS = (
    "virtual_clusters_created",
    "virtual_clusters_changed",
    "virtual_clusters_archived",
    "virtual_clusters_emptied",
)


def _device(place: LeafPlace, node_id: int) -> Device:
    return Device(
        node_id=node_id,
        index=place.index,
        address=place.address,
        chain=place.chain,
        device_type=place.device_type,
        health_reason="",
    )


def _type_changes(before: ClusterSpec, after: ClusterSpec) -> dict[str, tuple[str, ...]]:
    old, new = before.cell_types, after.cell_types
    return {
        "cell_types_added": tuple(name for name in new if name not in old),
        "cell_types_changed": tuple(n for n in new if n in old and new[n] != old[n]),
        "cell_types_removed": tuple(name for name in old if name not in new),
    }
