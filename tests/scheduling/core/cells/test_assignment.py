"""The drawn proof of a shape: whole cells, none twice, as many as promised, whenever it fits."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import ClusterSpec, Quota, SpecError, VcSpec, feasible
from scheduling.core.cells.feasibility import assign
from scheduling.core.cells.topology import ClusterTopology
from tests.strategies.cells import MIXED, PINNED, SPECS


@st.composite
def shapes(draw: st.DrawFn) -> ClusterSpec:
    """One of the small clusters, with other quotas."""
    spec = draw(st.sampled_from(list(SPECS.values())))
    levels = [
        (name, type_name)
        for name, chain in ClusterTopology(spec).chains.items()
        for type_name in chain.types[1:]
    ]
    wanted = st.dictionaries(st.sampled_from(levels), st.integers(1, 4), max_size=3)
    return replace(
        spec,
        virtual_clusters={
            name: VcSpec(
                quotas=tuple(
                    Quota(chain=chain, level=level, count=count)
                    for (chain, level), count in draw(wanted).items()
                ),
                pinned=dict(vc.pinned),
            )
            for name, vc in spec.virtual_clusters.items()
        },
    )


@given(spec=shapes())
def test_there_is_an_assignment_exactly_when_the_shape_fits(spec: ClusterSpec) -> None:
    try:
        found = assign(spec)
    except SpecError:
        found = None

    assert (found is not None) == feasible(spec).ok


@given(spec=shapes())
def test_cells_do_not_overlap_and_are_as_many_as_promised(spec: ClusterSpec) -> None:
    if not feasible(spec).ok:
        return
    topology = ClusterTopology(spec)
    sizes = {
        (chain.name, chain.types[level]): chain.sizes[level][1]
        for chain in topology.chains.values()
        for level in range(1, chain.levels + 1)
    }

    found = assign(spec)

    leaves = [leaf for cell in found for leaf in cell.leaves]
    assert len(leaves) == len(set(leaves))
    for name, vc in spec.virtual_clusters.items():
        widths = Counter(len(c.leaves) for c in found if c.vc == name and not c.pinned)
        promised = Counter[int]()
        for quota in vc.quotas:
            promised[sizes[quota.chain, quota.level]] += quota.count
        assert widths == promised
        assert {c.address for c in found if c.vc == name and c.pinned} == set(vc.pinned.values())


def test_a_pinned_cell_stands_at_its_address() -> None:
    pinned = [cell for cell in assign(PINNED) if cell.pinned]

    assert len(pinned) == sum(len(vc.pinned) for vc in PINNED.virtual_clusters.values())
    assert all(len(cell.leaves) >= 1 for cell in pinned)


def test_too_much_has_no_assignment() -> None:
    greedy = VcSpec(quotas=(Quota(chain="A-rack", level="A-rack", count=99),))

    with pytest.raises(SpecError):
        assign(replace(MIXED, virtual_clusters={"v1": greedy}))
