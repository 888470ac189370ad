"""Virtual clusters for pages and REST: the list with use, and details with the guarantee."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

from django.db.models import QuerySet

from scheduling.clusters.models import PinnedCell, VcLimit, VcQuota, VcValues, VirtualCluster
from scheduling.clusters.queries.cluster import VcUse, vc_use, vc_uses
from scheduling.clusters.queries.current_engine import spare_cells
from scheduling.core.cells import ClusterSpec, Quota, VcSpec
from scheduling.core.messages import sentence
from scheduling.enums import LeaseKind
from scheduling.runs.models import Lease
from scheduling.topology.current import ChainLevel, ChainView, TopologyNow, current_topology
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer

_Share = tuple[str, tuple[tuple[str, str, int], ...], tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """One line of the guarantee editor.

    Attributes:
        level: display name of the level; ``type`` is its cell type.
        cells: number of complete cells of this level in the cluster.
        others: number of cells guaranteed to other virtual clusters.
        count: number of cells guaranteed to this virtual cluster.
        left: number of further cells that can be guaranteed to this virtual cluster.
    """

    chain: str
    device_type: str
    level: str
    type: str
    devices: int
    cells: int
    others: int
    count: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRow:
    """A physical cell that the virtual cluster owns by its address."""

    name: str
    address: str
    chain: str
    level: str
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonUse:
    """Devices that one person holds in the virtual cluster now."""

    user: str
    devices: int
    borrowed: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VcDetail(VcValues):
    """One virtual cluster: its columns, guarantee and use, and the viewer's rights.

    Attributes:
        policy_fault: error because of which FIFO replaces the policy; empty if the policy works.
        shape: every level of every chain, including levels without a quota.
        limited_members: users who may use only some of the tenant's virtual clusters, including
            this one.
        can_edit: whether the viewer may change guarantee and policy.
        can_set_caps: whether the viewer may change the caps.
    """

    use: VcUse
    policy_fault: str
    policy_fault_at: datetime | None
    created_at: datetime
    archived_at: datetime | None
    version: int
    shape: tuple[QuotaRow, ...]
    pinned: tuple[PinnedRow, ...]
    people: tuple[PersonUse, ...]
    limited_members: tuple[str, ...]
    can_edit: bool
    can_set_caps: bool
    can_submit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VcRow(VcValues):
    """A virtual cluster in the list: its columns, guarantee and use.

    Attributes:
        cells: chain, level type and count of each quota.
    """

    use: VcUse
    cells: tuple[tuple[str, str, int], ...]
    pinned: tuple[tuple[str, str], ...]
    version: int


def list_virtual_clusters(
    viewer: Viewer, uses: tuple[VcUse, ...] | None = None
) -> tuple[VcRow, ...]:
    """Return the virtual clusters that the viewer may see, by name, without archived ones.

    Args:
        viewer: the reader.
        uses: their use, if already read for the same viewer.
    """
    rows = {vc.pk: vc for vc in _visible(viewer).filter(archived_at=None)}
    quotas, pinned = _quotas(rows), _pinned(rows)
    return tuple(
        VcRow(
            **VcValues.of(rows[use.id]).columns(),
            use=use,
            cells=tuple(quotas[use.id]),
            pinned=tuple(pinned[use.id]),
            version=rows[use.id].version,
        )
        for use in (vc_uses(viewer) if uses is None else uses)
        if use.id in rows
    )


def tenants_of_virtual_clusters(viewer: Viewer) -> Mapping[str, str]:
    """Return the tenant of each virtual cluster that the viewer may see, by name, in one query."""
    rows = _visible(viewer).filter(archived_at=None).order_by("name")
    return {
        name: viewer.name_of(tenant_id)
        for name, tenant_id in rows.values_list("name", "tenant_id")
    }


def virtual_cluster_for(viewer: Viewer, key: int | str) -> VirtualCluster:
    """Return one virtual cluster by ID or name, including archived ones.

    Raises:
        NotFoundError: the virtual cluster is unknown, or the viewer may not see it.
    """
    if isinstance(key, int):
        found = _visible(viewer).filter(pk=key).first() if 0 < key < 2**63 else None
    else:
        found = _visible(viewer).filter(name=key.replace("\x00", "")).first()
    if found is None:
        raise NotFoundError(
            sentence("no-such-virtual-cluster"),
            field="virtual_cluster",
            value=key,
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedVc:
    """A requested virtual cluster with the current topology and guarantees.

    All values of one response derive from these.
    """

    viewer: Viewer
    vc: VirtualCluster
    topology: TopologyNow
    spec: ClusterSpec


def asked_vc(viewer: Viewer, key: int | str) -> AskedVc:
    """Return one virtual cluster by ID or name, in five queries.

    Raises:
        NotFoundError: the virtual cluster is unknown, or the viewer may not see it.
    """
    vc = virtual_cluster_for(viewer, key)
    topology = current_topology()
    return AskedVc(viewer=viewer, vc=vc, topology=topology, spec=spec_in_force(topology))


def virtual_cluster_detail(viewer: Viewer, key: int | str) -> VcDetail:
    """Return one virtual cluster with its guarantee and its use.

    Raises:
        NotFoundError: the virtual cluster is unknown, or the viewer may not see it.
    """
    return detail_of(asked_vc(viewer, key))


def detail_of(asked: AskedVc) -> VcDetail:
    viewer, vc, topology, spec = asked.viewer, asked.vc, asked.topology, asked.spec
    return VcDetail(
        **VcValues.of(vc).columns(),
        use=vc_use(viewer, vc),
        policy_fault=vc.policy_fault,
        policy_fault_at=vc.policy_fault_at,
        created_at=vc.created_at,
        archived_at=vc.archived_at,
        version=vc.version,
        shape=shape_rows(topology, spec, vc.name),
        pinned=_pinned_rows(topology, vc),
        people=_people(vc) if viewer.can(Permission.VIEW_JOBS, vc.tenant_id) else (),
        limited_members=_limited(vc) if viewer.can(Permission.VIEW_MEMBERS, vc.tenant_id) else (),
        can_edit=viewer.can(Permission.EDIT_VC, vc.tenant_id),
        can_set_caps=viewer.can(Permission.SET_CAPS, vc.tenant_id),
        can_submit=viewer.can(Permission.SUBMIT_JOBS, vc.tenant_id),
    )


def spec_in_force(topology: TopologyNow, using: str = "default") -> ClusterSpec:
    """Return the topology with the guarantees of all virtual clusters that are not archived."""
    names = dict(
        VirtualCluster.objects.unscoped()
        .using(using)
        .filter(archived_at=None)
        .order_by("name")
        .values_list("id", "name")
    )
    quotas, pinned = _quotas(names, using), _pinned(names, using)
    shares = tuple((name, tuple(quotas[vc]), tuple(pinned[vc])) for vc, name in names.items())
    return _with_shares(topology, shares)


@lru_cache(maxsize=4)
def _with_shares(topology: TopologyNow, shares: tuple[_Share, ...]) -> ClusterSpec:
    """Return the specification, cached while topology and guarantees are unchanged."""
    return replace(
        topology.spec,
        virtual_clusters={
            name: VcSpec(
                quotas=tuple(Quota(chain=c, level=t, count=n) for c, t, n in quotas),
                pinned=dict(pinned),
            )
            for name, quotas, pinned in shares
        },
    )


def _visible(viewer: Viewer) -> "QuerySet[VirtualCluster]":
    rows = VirtualCluster.objects.visible_to(viewer, Permission.VIEW_TENANT)
    return rows.select_related("tenant").defer("policy_state")


def _quotas(
    ids: Mapping[int, object], using: str = "default"
) -> Mapping[int, list[tuple[str, str, int]]]:
    found: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
    for vc, chain, level, count in (
        VcQuota.objects.using(using)
        .filter(virtual_cluster_id__in=list(ids))
        .order_by("chain", "level")
        .values_list("virtual_cluster_id", "chain", "level", "count")
    ):
        found[vc].append((chain, level, count))
    return found


def _pinned(
    ids: Mapping[int, object], using: str = "default"
) -> Mapping[int, list[tuple[str, str]]]:
    found: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for vc, name, address in (
        PinnedCell.objects.using(using)
        .filter(virtual_cluster_id__in=list(ids))
        .order_by("name")
        .values_list("virtual_cluster_id", "name", "address")
    ):
        found[vc].append((name, address))
    return found


def shape_rows(topology: TopologyNow, spec: ClusterSpec, name: str) -> tuple[QuotaRow, ...]:
    """Return every level of every chain: existing cells, guarantees, and remaining cells."""
    spare = spare_cells(spec)
    own: dict[tuple[str, str], int] = defaultdict(int)
    others: dict[tuple[str, str], int] = defaultdict(int)
    for vc, share in spec.virtual_clusters.items():
        for quota in share.quotas:
            (own if vc == name else others)[quota.chain, quota.level] += quota.count
    return tuple(
        QuotaRow(
            chain=chain.name,
            device_type=chain.device_type,
            level=level.level,
            type=level.type,
            devices=level.devices,
            cells=level.cells,
            others=others[chain.name, level.type],
            count=own[chain.name, level.type],
            left=_left(chain, level, spare),
        )
        for chain in topology.chains.values()
        for level in reversed(chain.levels)
    )


def _left(chain: ChainView, level: ChainLevel, spare: Mapping[tuple[str, str], int]) -> int:
    """Return the number of cells of a level that can still be guaranteed.

    A guaranteed cell contains smaller cells, which may be guaranteed, too.
    """
    below = chain.levels[: level.number]
    return min(
        max(spare.get((chain.name, low.type), 0), 0) * low.devices // level.devices
        for low in below
    )


def _pinned_rows(topology: TopologyNow, vc: VirtualCluster) -> tuple[PinnedRow, ...]:
    rows = []
    for name, address in _pinned({vc.pk: None})[vc.pk]:
        place = topology.cell_at(address)
        rows.append(
            PinnedRow(
                name=name,
                address=address,
                chain=place.chain if place else "",
                level=place.level.level if place else "",
                devices=place.devices if place else 0,
            )
        )
    return tuple(rows)


def _limited(vc: VirtualCluster) -> tuple[str, ...]:
    names = VcLimit.objects.filter(virtual_cluster=vc).order_by("membership__user__username")
    return tuple(names.values_list("membership__user__username", flat=True))


def _people(vc: VirtualCluster) -> tuple[PersonUse, ...]:
    held: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    held_leases = Lease.objects.filter(released_at=None, job__virtual_cluster=vc)
    for user, job_id, cell in held_leases.exclude(kind=LeaseKind.GUEST).values_list(
        "job__owner__username", "job_id", "virtual_cell"
    ):
        held[user].append((job_id, not cell))
    return tuple(
        PersonUse(
            user=user,
            devices=len(leases),
            borrowed=sum(is_borrowed for _, is_borrowed in leases),
            jobs=len({job_id for job_id, _ in leases}),
        )
        for user, leases in sorted(held.items())
    )
