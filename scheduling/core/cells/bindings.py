"""The current bindings of a virtual cluster's cells to physical cells, device by device."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from scheduling.core.cells.books import Books
from scheduling.core.cells.gangs import Roster
from scheduling.core.cells.ledger import Owned
from scheduling.core.cells.pool import Pool


class LeafUse(StrEnum):
    """The use of a device from the point of view of the virtual cluster that owns it."""

    IDLE = "idle"
    USED = "used"
    LENT = "lent"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundLeaf:
    """One device of a bound cell.

    Attributes:
        address: of the physical leaf.
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
        devices: of a complete cell of this type.
        pinned: name of the pinned cell; empty for an ordinary one.
        physical: address of the physical cell; empty while it is not bound.
        doomed: whether it is bound only because no healthy cell is left for it.
        leaves: in the order of the physical cell; empty while it is not bound.
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


def cells_of(books: Books, vc: str) -> tuple[VirtualCell, ...]:
    """All cells of a virtual cluster by number, bound or not."""
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
