"""Views of the books: placements, gangs, free cells, accounts and bindings of virtual clusters."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scheduling.core.cells.books import CellBooks
from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.idle import idle_mask
from scheduling.core.cells.ledger import ChainLedger, Owned
from scheduling.core.cells.picking import Spot
from scheduling.core.cells.pool import Pool
from scheduling.core.cells.preemption import PlacementPlan
from scheduling.core.cells.requests import GroupView, Placed


def placed(roster: Roster, spot: Spot, virtual: tuple[str, ...]) -> Placed:
    """Build the placement of an instance, with names instead of numbers."""
    topology = roster.ledger.topology
    leaves = roster.leaves(spot.node, spot.mask)
    devices, address = topology.devices, topology.address
    if isinstance(leaves, range):
        here = slice(leaves.start, leaves.stop)
        names, indices = tuple(address[here]), tuple(devices[here])
    else:
        names = tuple([address[leaf] for leaf in leaves])
        indices = tuple([devices[leaf] for leaf in leaves])
    return Placed(
        member=spot.item.member,
        node=topology.node_names[spot.node],
        devices=indices,
        leaves=names,
        virtual=virtual,
        chain=topology.name,
    )


def placements(gang: Gang) -> tuple[Placed, ...]:
    """Return the placements of a gang in the order of its members."""
    roster = gang.roster
    if roster is None:
        return ()
    virtual = gang.virtual if gang.guaranteed else [()] * len(gang.spots)
    found = [placed(roster, spot, v) for spot, v in zip(gang.spots, virtual, strict=True)]
    return _by_member(found)


def planned(plan: PlacementPlan) -> tuple[Placed, ...]:
    """Return the placements of a plan, without virtual addresses; ``commit`` assigns these."""
    return _by_member([placed(plan.roster, spot, ()) for spot in plan.spots])


def _by_member(found: list[Placed]) -> tuple[Placed, ...]:
    if len(found) > 1:
        found.sort(key=lambda p: p.member)
    return tuple(found)


def victim_nodes(roster: Roster | None, spots: list[Spot]) -> tuple[str, ...]:
    """Return the nodes with users on devices of the spots, in order."""
    if roster is None:
        return ()
    names = roster.ledger.topology.node_names
    nodes = sorted({s.node for s in spots if roster.users_on(s.node, s.mask)})
    return tuple(names[node] for node in nodes)


def group_view(gang: Gang) -> GroupView:
    """Build the view of a gang, with names instead of numbers."""
    return GroupView(
        request=gang.request,
        state=gang.state,
        guaranteed=gang.guaranteed,
        lazy_preempted_by=gang.lazy_by,
        placements=placements(gang),
        victims=tuple(sorted(gang.victims)),
    )


def free_view(books: CellBooks) -> dict[str, object]:
    """Free cells and largest gangs by chain, and the accounts of each virtual cluster."""
    return {
        "chains": {name: _chain_view(roster.ledger) for name, roster in books.rosters.items()},
        "virtual_clusters": {
            vc: _vc_view(books, vc) for vc in sorted(books.spec.virtual_clusters)
        },
    }


def _chain_view(ledger: ChainLedger) -> dict[str, Any]:
    topology, buddy = ledger.topology, ledger.buddy
    nodes = range(len(topology.node_names))
    idle = [idle_mask(ledger, node) for node in nodes]
    levels = [
        {
            "level": topology.types[level],
            "devices": topology.sizes[level][1],
            "free": buddy.free_count[level],
            "obtainable": buddy.total_left[level],
            "healthy": buddy.healthy_left[level],
            "claimed": buddy.claimed[level],
            "idle": _idle_cells(ledger, level, idle),
        }
        for level in range(1, topology.levels + 1)
    ]
    return {
        "leaf_type": topology.leaf_type,
        "devices": topology.leaf_count,
        "idle": sum(mask.bit_count() for mask in idle),
        "levels": levels,
        "largest_gang": _idle_instances(ledger, idle),
    }


def _idle_cells(ledger: ChainLedger, level: int, idle: list[int]) -> int:
    topology = ledger.topology
    if level <= topology.node_level:
        return sum(
            (mask & cell) == cell
            for mask, shape in zip(idle, topology.shapes, strict=True)
            for cell in shape.cells[level - 1]
        )
    whole = [mask == shape.full for mask, shape in zip(idle, topology.shapes, strict=True)]
    return sum(
        all(whole[node] for node in topology.nodes_of(cell))
        for cell in range(topology.base[level], topology.base[level + 1])
    )


def _idle_instances(ledger: ChainLedger, idle: list[int]) -> dict[int, int]:
    """Map devices per instance to the number of such instances that fit on idle devices."""
    topology = ledger.topology
    sizes = sorted({topology.sizes[level][1] for level in range(1, topology.node_level + 1)})
    return {size: sum(mask.bit_count() // size for mask in idle) for size in sizes}


def _vc_view(books: CellBooks, vc: str) -> dict[str, Any]:
    chains: dict[str, Any] = {}
    for name, roster in books.rosters.items():
        pools = [pool for pool in roster.ledger.pools if pool.vc == vc]
        if not pools:
            continue
        account = {"quota": 0, "used": 0, "free": 0, "lent": 0, "unhealthy": 0}
        for pool in pools:
            for key, value in _account(roster.ledger, pool).items():
                account[key] += value
        chains[name] = {"leaf_type": roster.ledger.topology.leaf_type, **account}
        chains[name]["largest_gang"] = instances_in(roster.ledger, pools)
    return chains


def _account(ledger: ChainLedger, pool: Pool) -> dict[str, int]:
    topology = ledger.topology
    unbound = sum(n * topology.sizes[level][1] for level, n in enumerate(pool.unbound))
    used = lent = unhealthy = bound = 0
    for key, mask in pool.masks.items():
        node = ledger.node_of(key)
        bound += mask.bit_count()
        used += (mask & ledger.guaranteed[node]).bit_count()
        lent += (mask & ledger.opportunistic[node]).bit_count()
        unhealthy += (mask & ~ledger.healthy[node]).bit_count()
    quota = bound + unbound
    return {
        "quota": quota,
        "used": used,
        "free": quota - used - unhealthy,
        "lent": lent,
        "unhealthy": unhealthy,
    }


def instances_in(ledger: ChainLedger, pools: list[Pool]) -> dict[int, int]:
    """Map devices per instance to guaranteed instances that fit if borrowers are evicted."""
    topology = ledger.topology
    sizes = sorted({topology.sizes[level][1] for level in range(1, topology.node_level + 1)})
    found = dict.fromkeys(sizes, 0)
    for pool in pools:
        for size in sizes:
            for count, (bits, keys) in enumerate(zip(pool.used, pool.empty, strict=True)):
                found[size] += (bits.bit_count() + len(keys)) * (count // size)
            for level, unbound in enumerate(pool.unbound):
                cap = min(topology.sizes[level][1], topology.node_size) if level else 0
                if cap >= size:
                    found[size] += unbound * (topology.sizes[level][1] // cap) * (cap // size)
    return found


class LeafUse(StrEnum):
    """The use of a device, for the virtual cluster that owns it."""

    IDLE = "idle"
    USED = "used"
    LENT = "lent"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundLeaf:
    """One device of a bound cell.

    Attributes:
        address: address of the physical leaf.
        node: name of its node.
        device: its index there.
        group: name of the gang that uses it; empty if it is free.
    """

    address: str
    node: str
    device: int
    use: LeafUse
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCell:
    """A cell of a virtual cluster's share.

    Attributes:
        vc: name of the virtual cluster.
        number: index of the cell; virtual addresses begin with ``<vc>/<number>``.
        level: cell type.
        devices: devices of a complete cell of this type.
        pinned: name of the pinned cell; empty for an ordinary one.
        physical: address of the physical cell; empty while it is not bound.
        doomed: whether it is bound only because no healthy cell is left for it.
        leaves: leaves in the order of the physical cell; empty while it is not bound.
    """

    vc: str
    number: int
    chain: str
    level: str
    devices: int
    pinned: str = ""
    physical: str = ""
    doomed: bool = False
    leaves: tuple[BoundLeaf, ...] = ()

    @property
    def address(self) -> str:
        """The virtual address."""
        return f"{self.vc}/{self.number}"


def cells_of(books: CellBooks, vc: str) -> tuple[VirtualCell, ...]:
    """Return all cells of a virtual cluster by number, bound or not."""
    found = [
        cell
        for roster in books.rosters.values()
        for pool in roster.ledger.pools
        if pool.vc == vc
        for cell in _of_pool(roster, pool)
    ]
    return tuple(sorted(found, key=lambda cell: cell.number))


def _of_pool(roster: Roster, pool: Pool) -> Iterator[VirtualCell]:
    ledger, topology = roster.ledger, roster.ledger.topology
    bound: dict[tuple[int, int], int] = {
        (topology.level[cell], owned.position): cell
        for cell, owned in ledger.owned.items()
        if owned.pool == pool.number
    }
    for level, slots in enumerate(pool.slots):
        for position, number in enumerate(slots):
            cell = bound.get((level, position), -1)
            owned = ledger.owned.get(cell)
            yield VirtualCell(
                vc=pool.vc,
                number=number,
                chain=topology.name,
                level=topology.types[level],
                devices=topology.sizes[level][1],
                pinned=pool.pinned or "",
                physical=topology.address[cell] if owned is not None else "",
                doomed=owned is not None and cell in ledger.doomed and not owned.used,
                leaves=tuple(_leaves(roster, cell, owned)) if owned is not None else (),
            )


def _leaves(roster: Roster, cell: int, owned: Owned) -> Iterator[BoundLeaf]:
    ledger, topology = roster.ledger, roster.ledger.topology
    for leaf in range(topology.leaf_lo[cell], topology.leaf_hi[cell]):
        if not topology.complete[cell] and ledger.owned.get(ledger.owner_of(leaf)) is not owned:
            continue
        node = topology.node_of_leaf[leaf]
        bit = 1 << (leaf - topology.leaf_lo[topology.node_base + node])
        gang = roster.users.get(leaf) or roster.claims.get(leaf)
        if gang is not None:
            use = LeafUse.USED if gang.guaranteed else LeafUse.LENT
        else:
            use = LeafUse.IDLE if ledger.healthy[node] & bit else LeafUse.BAD
        yield BoundLeaf(
            address=topology.address[leaf],
            node=topology.node_names[node],
            device=topology.devices[leaf],
            use=use,
            group=gang.name if gang is not None else "",
        )
