"""The edits of a reconfiguration, and the draft of cells and guarantees that results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scheduling.clusters.models import VcValues, VirtualCluster
from scheduling.clusters.services.node_removal import without_node
from scheduling.clusters.services.shares import VcGuarantee, read_pinned, read_quotas
from scheduling.clusters.services.vc_values import name_faults, value_faults
from scheduling.core.cells import ClusterSpec, Quota
from scheduling.core.messages import sentence
from scheduling.topology.current import TopologyNow
from tenants.audit import changed
from tenants.errors import FieldError
from tessera.isolation import NONE

Entries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveQuota:
    """Move guaranteed cells of one level between two virtual clusters."""

    source: str
    target: str
    chain: str
    level: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeVc:
    """Change columns or the guarantee of a virtual cluster.

    Attributes:
        values: new values by field of ``VcValues``; other fields do not change.
        cells: new quotas; None for no change.
        pinned: new pinned cells; None for no change.
    """

    virtual_cluster: str
    values: Mapping[str, Any] = field(default_factory=dict)
    cells: Entries | None = None
    pinned: Entries | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Pin a physical cell to a virtual cluster."""

    virtual_cluster: str
    name: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
    """Remove a pinned cell from a virtual cluster."""

    virtual_cluster: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateVc:
    """Create a virtual cluster with its guarantee.

    Attributes:
        tenant: name of the tenant that owns it.
        cells: quotas, each ``{chain, level, count}``.
        pinned: pinned cells, each ``{name, address}``.
    """

    name: str
    tenant: str
    values: VcValues = field(default_factory=VcValues)
    cells: Entries = ()
    pinned: Entries = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveVc:
    """Archive a virtual cluster without live jobs; its guarantee becomes free."""

    virtual_cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNode:
    """Add a node whose host key a person has confirmed; its first contact adds cells."""

    name: str
    host: str
    user: str
    host_key: str
    fingerprint: str
    port: int = 22
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode:
    """Remove a node without jobs from the cluster."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonNode:
    """Exclude a node from new work; its running jobs continue."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonNode:
    """Allow new work on a node again."""

    node: str
    reason: str = ""


NodeEdit = AddNode | RemoveNode | CordonNode | UncordonNode
VcEdit = CreateVc | ChangeVc | ArchiveVc
ShareEdit = MoveQuota | Pin | Unpin | VcEdit
Edit = NodeEdit | ShareEdit
MOST_EDITS: Final = 200


class ClusterDraft:
    """The cluster after the edits applied so far; nothing is written.

    Attributes:
        topology: topology with the new physical cells.
        shares: guarantees by name of the virtual cluster.
        values: columns of virtual clusters by name.
        rows: virtual clusters that are not archived, by name.
        created: edits that create virtual clusters, by name.
        archived: edits that archive virtual clusters, by name.
        removed: names of removed nodes.
        faults: all faults found so far.
    """

    def __init__(
        self,
        topology: TopologyNow,
        rows: Mapping[str, VirtualCluster],
        shares: Mapping[str, VcGuarantee],
    ) -> None:
        self.topology = topology
        self.rows = rows
        self.before = dict(shares)
        self.shares = dict(shares)
        self.values = {name: VcValues.of(row) for name, row in rows.items()}
        self.created: dict[str, CreateVc] = {}
        self.archived: list[str] = []
        self.removed: list[str] = []
        self.faults: list[FieldError] = []
        self._acts: Mapping[type, Callable[[Any, list[FieldError]], None]] = {
            MoveQuota: self._move,
            ChangeVc: self._change,
            Pin: self._pin,
            Unpin: self._unpin,
            CreateVc: self._create,
            ArchiveVc: self._archive,
            RemoveNode: self._remove,
        }

    def apply(self, edits: Sequence[Edit], *, numbered: bool) -> None:
        """Apply all edits in order, then check that no cell is pinned twice.

        Args:
            edits: the edits in order.
            numbered: whether faults contain the edit's position, as in ``edits[2].name``.
        """
        for position, edit in enumerate(edits):
            act = self._acts.get(type(edit))
            found: list[FieldError] = []
            if act is not None:
                act(edit, found)
            prefix = f"edits[{position}]." if numbered else ""
            self.faults += [replace(fault, field=prefix + fault.field) for fault in found]
        self._see_pins()

    @property
    def changed(self) -> tuple[str, ...]:
        """Return virtual clusters whose guarantee changes, including new ones."""
        return tuple(
            name
            for name in sorted(self.shares.keys() | self.before.keys())
            if self.shares.get(name) != self.before.get(name)
        )

    @property
    def edited(self) -> tuple[str, ...]:
        """Return virtual clusters with any change: created, archived, guarantee or columns."""
        columns = {name for name in self.rows if self.changes_of(name)[1]}
        return tuple(sorted({*columns, *self.created, *self.archived, *self.changed}))

    @property
    def levels(self) -> Mapping[str, str]:
        """Return the new minimum isolation levels that differ from the current ones, by name."""
        return {
            name: values.least_isolation
            for name, values in self.values.items()
            if name in self.shares
            and values.least_isolation
            != (self.rows[name].least_isolation if name in self.rows else NONE)
        }

    @property
    def is_judged(self) -> bool:
        """Return whether a guarantee could cease to fit: cells, guarantees or levels change."""
        return bool(self.changed or self.removed or self.levels)

    def changes_of(self, name: str) -> tuple[dict[str, object], dict[str, object]]:
        """Return the changed columns of a stored virtual cluster, before and after."""
        return changed(VcValues.of(self.rows[name]).columns(), self.values[name].columns())

    def spec(self) -> ClusterSpec:
        """Return the cells and guarantees as input of the cell engine."""
        return replace(
            self.topology.spec,
            virtual_clusters={
                name: share.as_spec() for name, share in sorted(self.shares.items())
            },
        )

    def _move(self, edit: MoveQuota, faults: list[FieldError]) -> None:
        for where, name in (("source", edit.source), ("target", edit.target)):
            self._known(name, where, faults)
        cells = [{"chain": edit.chain, "level": edit.level, "count": edit.count}]
        parsed: list[FieldError] = []
        quotas = read_quotas(cells, self.topology, parsed)
        faults += [replace(fault, field=fault.field.removeprefix("cells[0].")) for fault in parsed]
        if faults:
            return
        if not quotas or edit.source == edit.target:
            faults.append(
                _fault(
                    "count", edit.count, sentence("moves-nothing"), sentence("give-one-or-more")
                )
            )
            return
        moved = quotas[0]
        has = self._count(edit.source, moved)
        if has < moved.count:
            text = f"{edit.source} is promised {has} of {moved.level} in {moved.chain}."
            faults.append(_fault("count", edit.count, text, sentence("move-fewer", has=has)))
            return
        self._set(edit.source, moved, has - moved.count)
        self._set(edit.target, moved, self._count(edit.target, moved) + moved.count)

    def _change(self, edit: ChangeVc, faults: list[FieldError]) -> None:
        if not self._known(edit.virtual_cluster, "virtual_cluster", faults):
            return
        self._change_values(edit, faults)
        share = self.shares[edit.virtual_cluster]
        if edit.cells is not None:
            share = replace(share, quotas=read_quotas(edit.cells, self.topology, faults))
        if edit.pinned is not None:
            share = replace(share, pinned=read_pinned(edit.pinned, self.topology, faults))
        self.shares[edit.virtual_cluster] = share

    def _change_values(self, edit: ChangeVc, faults: list[FieldError]) -> None:
        before = self.values[edit.virtual_cluster]
        wanted = dict(edit.values)
        if wanted.get("policy", before.policy) != before.policy:
            # The parameters of one policy are not valid for another.
            wanted.setdefault("policy_args", {})
        after = replace(before, **wanted)
        found = value_faults(after, wanted)
        if not found:
            self.values[edit.virtual_cluster] = after
        faults += found

    def _pin(self, edit: Pin, faults: list[FieldError]) -> None:
        if not self._known(edit.virtual_cluster, "virtual_cluster", faults):
            return
        share = self.shares[edit.virtual_cluster]
        pins = dict(share.pinned or {})
        if edit.name in pins:
            faults.append(
                _fault(
                    "name",
                    edit.name,
                    f"{edit.virtual_cluster} has a pinned cell of this name.",
                    sentence("rename-or-unpin"),
                )
            )
            return
        parsed: list[FieldError] = []
        entry = {"name": edit.name, "address": edit.address}
        pins |= read_pinned([entry], self.topology, parsed)
        faults += [
            replace(fault, field=fault.field.removeprefix("pinned[0].")) for fault in parsed
        ]
        self.shares[edit.virtual_cluster] = replace(share, pinned=pins)

    def _unpin(self, edit: Unpin, faults: list[FieldError]) -> None:
        if not self._known(edit.virtual_cluster, "virtual_cluster", faults):
            return
        share = self.shares[edit.virtual_cluster]
        pins = dict(share.pinned or {})
        if pins.pop(edit.name, None) is None:
            faults.append(
                _fault(
                    "name",
                    edit.name,
                    sentence("not-pinned-cell", name=edit.virtual_cluster),
                    sentence(
                        "choices", names=", ".join(pins) or sentence("none-without-pinned-cells")
                    ),
                )
            )
        self.shares[edit.virtual_cluster] = replace(share, pinned=pins)

    def _create(self, edit: CreateVc, faults: list[FieldError]) -> None:
        faults += [*name_faults(edit.name), *value_faults(edit.values)]
        share = VcGuarantee(
            quotas=read_quotas(edit.cells, self.topology, faults),
            pinned=read_pinned(edit.pinned, self.topology, faults),
        )
        if not faults and (edit.name in self.rows or edit.name in self.created):
            text = sentence("cluster-exists", name=edit.name)
            faults.append(_fault("name", edit.name, text, sentence("choose-another-name")))
        if not faults:
            self.created[edit.name] = edit
            self.shares[edit.name] = share
            self.values[edit.name] = edit.values

    def _archive(self, edit: ArchiveVc, faults: list[FieldError]) -> None:
        if self._known(edit.virtual_cluster, "virtual_cluster", faults):
            self.archived.append(edit.virtual_cluster)
            del self.shares[edit.virtual_cluster]

    def _remove(self, edit: RemoveNode, faults: list[FieldError]) -> None:
        if edit.node in self.removed:
            text = sentence("removed-by-edit")
            faults.append(_fault("node", edit.node, text, sentence("remove-once")))
            return
        self.removed.append(edit.node)
        if edit.node in self.topology.cells.nodes:
            self.topology = TopologyNow(
                self.topology.version, without_node(self.topology, edit.node)
            )

    def _known(self, name: str, where: str, faults: list[FieldError]) -> bool:
        if name in self.shares and name in self.values:
            return True
        known = ", ".join(sorted(self.shares)) or sentence("none-yet")
        text = sentence("no-such-cluster")
        faults.append(_fault(where, name, text, sentence("choices", names=known)))
        return False

    def _count(self, name: str, quota: Quota) -> int:
        return sum(
            own.count
            for own in self.shares[name].quotas
            if (own.chain, own.level) == (quota.chain, quota.level)
        )

    def _set(self, name: str, quota: Quota, count: int) -> None:
        share = self.shares[name]
        counts = {(own.chain, own.level): own.count for own in share.quotas}
        counts[quota.chain, quota.level] = count
        quotas = tuple(
            Quota(chain=chain, level=level, count=number)
            for (chain, level), number in sorted(counts.items())
            if number
        )
        self.shares[name] = replace(share, quotas=quotas)

    def _see_pins(self) -> None:
        owners: dict[str, str] = {}
        for name, share in sorted(self.shares.items()):
            for address in (share.pinned or {}).values():
                if address in owners:
                    text = sentence("two-owners-of-cell", one=owners[address], other=name)
                    remedy = sentence("unpin-from-one")
                    self.faults.append(_fault("pinned", address, text, remedy))
                owners[address] = name


def _fault(where: str, value: object, message: str, remedy: str) -> FieldError:
    return FieldError(field=where, value=value, message=message, remedy=remedy)
