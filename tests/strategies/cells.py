"""Small clusters and requests for property tests of the cell engine."""

from dataclasses import dataclass

from hypothesis import strategies as st

from scheduling.core.cells import (
    CellType,
    ClusterSpec,
    GangRequest,
    Member,
    PhysicalCell,
    Quota,
    VcSpec,
)

TYPES = {
    "A-pair": CellType(child="A", count=2),
    "A-node": CellType(child="A-pair", count=2, node_level=True),
    "A-rack": CellType(child="A-node", count=2),
    "A-pod": CellType(child="A-rack", count=2),
    "B-node": CellType(child="B", count=4, node_level=True),
}


def _rack(*nodes: str) -> PhysicalCell:
    return PhysicalCell(children=tuple(PhysicalCell(address=node) for node in nodes))


def _pods(*racks: PhysicalCell) -> PhysicalCell:
    return PhysicalCell(type="A-pod", children=racks)


def _vc(*quotas: tuple[str, str, int], **pinned: str) -> VcSpec:
    return VcSpec(
        quotas=tuple(Quota(chain=c, level=level, count=n) for c, level, n in quotas), pinned=pinned
    )


NODES = ClusterSpec(
    cell_types=TYPES,
    physical=(
        *(PhysicalCell(type="B-node", address=f"b{i}") for i in range(3)),
        _pods(_rack("a0", "a1"), _rack("a2", "a3")),
    ),
    virtual_clusters={
        "v1": _vc(("A-pod", "A-node", 2), ("B-node", "B-node", 1)),
        "v2": _vc(("A-pod", "A-node", 1), ("B-node", "B-node", 2)),
    },
)
MIXED = ClusterSpec(
    cell_types=TYPES,
    physical=(
        PhysicalCell(
            type="A-rack", children=(PhysicalCell(address="a0"), PhysicalCell(address="a1"))
        ),
        PhysicalCell(
            type="A-rack", children=(PhysicalCell(address="a2"), PhysicalCell(address="a3"))
        ),
        PhysicalCell(
            type="A-rack", children=(PhysicalCell(address="a4"), PhysicalCell(address="a5"))
        ),
    ),
    virtual_clusters={
        "v1": _vc(("A-rack", "A-node", 1), ("A-rack", "A-pair", 2)),
        "v2": _vc(("A-rack", "A-rack", 1), ("A-rack", "A", 3)),
    },
)
PINNED = ClusterSpec(
    cell_types=TYPES,
    physical=(
        _pods(_rack("a0", "a1"), _rack("a2", "a3")),
        _pods(_rack("a4", "a5"), _rack("a6", "a7")),
    ),
    virtual_clusters={
        "v1": _vc(("A-pod", "A-rack", 1), ("A-pod", "A-node", 1), pin="0/0/a1"),
        "v2": _vc(("A-pod", "A-rack", 1), ("A-pod", "A-pair", 2)),
        "v3": _vc(("A-pod", "A-node", 1)),
    },
)
IRREGULAR = ClusterSpec(
    cell_types=TYPES,
    physical=(
        _pods(_rack("a0", "a1"), _rack("a2")),
        _pods(_rack("a3", "a4")),
        PhysicalCell(
            type="A-pod",
            children=(
                PhysicalCell(
                    children=(
                        PhysicalCell(
                            address="a5",
                            children=(
                                PhysicalCell(),
                                PhysicalCell(children=(PhysicalCell(address="7"),)),
                            ),
                        ),
                        PhysicalCell(address="a6"),
                    )
                ),
            ),
        ),
    ),
    virtual_clusters={
        "v1": _vc(("A-pod", "A-rack", 1), ("A-pod", "A-pair", 2)),
        "v2": _vc(("A-pod", "A-node", 2), half="2/4/a5"),
    },
)
SPECS = {"nodes": NODES, "mixed": MIXED, "pinned": PINNED, "irregular": IRREGULAR}


def node_names(spec: ClusterSpec) -> list[str]:
    """Explicit addresses of nodes in the small clusters."""
    found: list[str] = []

    def walk(cell: PhysicalCell) -> None:
        if cell.address[:1] in {"a", "b"}:
            found.append(cell.address)
        for child in cell.children:
            walk(child)

    for cell in spec.physical:
        walk(cell)
    return found


@dataclass(frozen=True)
class Wish:
    """A request without its name and virtual cluster."""

    priority: int
    members: tuple[Member, ...]
    leaf_types: tuple[str, ...]
    lazy: bool
    ignore_suggested: bool
    at_stake: float
    pinned: bool

    def request(self, group: str, spec: ClusterSpec, vc: str) -> GangRequest:
        """The request of a gang of that name."""
        pins = sorted(spec.virtual_clusters[vc].pinned)
        return GangRequest(
            group=group,
            vc=vc,
            priority=self.priority,
            members=self.members,
            leaf_types=self.leaf_types,
            pinned=pins[0] if pins and self.pinned and self.priority >= 0 else None,
            lazy_preemption=self.lazy,
            ignore_suggested=self.ignore_suggested,
            at_stake=self.at_stake,
        )


def members(*, within: bool = True) -> st.SearchStrategy[tuple[Member, ...]]:
    """One or two kinds of instances, at most one too large for a node now and then."""
    levels = st.sampled_from([None, None, None, "A-pair", "A-node"]) if within else st.none()
    member = st.builds(
        Member,
        count=st.integers(1, 3),
        leaf_count=st.sampled_from([1, 1, 2, 2, 3, 4, 4, 5]),
        within_level=levels,
    )
    return st.lists(member, min_size=1, max_size=2).map(tuple)


def wishes(*, lowest: int = -1, highest: int = 2, within: bool = True) -> st.SearchStrategy[Wish]:
    """Requests that mostly can be had."""
    return st.builds(
        Wish,
        priority=st.integers(lowest, highest),
        members=members(within=within),
        leaf_types=st.sampled_from([("A",), ("A",), ("B",), ("A", "B"), ()]),
        lazy=st.booleans(),
        ignore_suggested=st.sampled_from([True, True, False]),
        at_stake=st.sampled_from([0.0, 0.0, 10.0, 50.0]),
        pinned=st.sampled_from([False, False, True]),
    )
