"""From inventories to cells: regular trees keep their levels, others are flattened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell
from scheduling.core.cells.topology import ClusterTopology
from scheduling.core.inventory import (
    leaf_name,
    level_of,
    level_words,
    propose,
    with_addresses,
)
from scheduling.core.jobspec import Within
from tessera.inventory import Device, Inventory

LEVELS = ["node", "socket", "pcie", "device"]


def inventory(devices, levels=LEVELS):
    return Inventory(devices=devices, levels=levels, cpus=32, memory_bytes=1 << 36)


def regular(sockets, switches, leaves, kind="A100"):
    """Devices counted through the node, and switches too, as a probe reports them."""
    return [
        Device(index=i, type=kind, path=[i // (switches * leaves), i // leaves])
        for i in range(sockets * switches * leaves)
    ]


def topology_of(proposal, known=()):
    spec = ClusterSpec(
        cell_types={**dict(known), **proposal.new_types},
        physical=(proposal.cell,),
        virtual_clusters={},
    )
    return ClusterTopology(spec)


def fans(proposal, known=()):
    chain = topology_of(proposal, known).chains[proposal.chain]
    return tuple(reversed(chain.fan[2:]))


def test_a_regular_tree_keeps_its_levels_and_names_them_after_the_type():
    proposal = propose(node="n1", inventory=inventory(regular(2, 2, 2)), known={})

    assert dict(proposal.new_types) == {
        "A100-pcie": CellType(child="A100", count=2),
        "A100-socket": CellType(child="A100-pcie", count=2),
        "A100-node": CellType(child="A100-socket", count=2, node_level=True),
    }
    assert (proposal.device_type, proposal.chain, proposal.warnings) == ("A100", "A100-node", ())
    assert [leaf.address for leaf in proposal.leaves][:3] == ["n1/0/0/0", "n1/0/0/1", "n1/0/1/2"]


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_every_regular_tree_is_built_with_its_own_leaves(sockets, switches, leaves, random):
    devices = regular(sockets, switches, leaves)
    random.shuffle(devices)

    proposal = propose(node="n1", inventory=inventory(devices), known={})

    topology = topology_of(proposal)
    assert {leaf.address for leaf in proposal.leaves} == set(topology.leaves)
    assert {key[1] for key in topology.devices} == {device.index for device in devices}
    chain = topology.chains[proposal.chain]
    assert all(chain.complete)
    assert 1 not in fans(proposal)[:-1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=10))
def test_any_tree_gives_a_topology_with_all_its_devices(paths):
    devices = [Device(index=i, type="A", path=list(path)) for i, path in enumerate(paths)]

    proposal = propose(node="n1", inventory=inventory(devices), known={})

    assert {leaf.address for leaf in proposal.leaves} == set(topology_of(proposal).leaves)
    assert len(proposal.leaves) == len(devices)


def test_an_irregular_tree_is_flattened_and_says_so():
    devices = [Device(index=i, type="A", path=[i // 3, i // 3]) for i in range(4)]

    proposal = propose(node="n1", inventory=inventory(devices), known={})

    assert fans(proposal) == (4,)
    assert "omitted" in proposal.warnings[0]


def test_a_level_that_divides_nothing_is_left_out():
    assert fans(propose(node="n", inventory=inventory(regular(1, 2, 4)), known={})) == (2, 4)
    assert fans(propose(node="n", inventory=inventory(regular(2, 4, 1)), known={})) == (2, 4)
    assert fans(propose(node="n", inventory=inventory(regular(1, 1, 1)), known={})) == (1,)


def test_a_chain_of_the_same_shape_is_used_again_whatever_its_name():
    known = {
        "box": CellType(child="half", count=2, node_level=True),
        "half": CellType(child="quarter", count=2),
        "quarter": CellType(child="A100", count=2),
    }

    proposal = propose(node="n", inventory=inventory(regular(2, 2, 2)), known=known)

    assert (proposal.chain, dict(proposal.new_types)) == ("box", {})


def test_another_shape_of_the_same_type_gets_a_name_of_its_own():
    first = propose(node="n", inventory=inventory(regular(2, 2, 2)), known={})
    second = propose(node="m", inventory=inventory(regular(2, 1, 4)), known=first.new_types)
    both = {**first.new_types, **second.new_types}
    third = propose(node="o", inventory=inventory(regular(2, 1, 4)), known=both)

    assert second.chain == "A100-2x4-node"
    assert not set(first.new_types) & set(second.new_types)
    assert (third.chain, dict(third.new_types)) == ("A100-2x4-node", {})


def test_the_majority_of_types_is_used_and_the_rest_is_named():
    devices = [Device(index=i, type="A" if i else "B", path=[]) for i in range(4)]

    proposal = propose(node="n", inventory=inventory(devices, ["node", "device"]), known={})

    assert proposal.device_type == "A"
    assert [leaf.device.index for leaf in proposal.leaves] == [1, 2, 3]
    assert "1 device of type B" in proposal.warnings[0]


def test_a_node_without_devices_has_no_cell():
    proposal = propose(node="n", inventory=inventory([]), known={})

    assert (proposal.cell, proposal.leaves) == (None, ())
    assert proposal.warnings


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("a/b\nc", "a-b-c"),
        ("///", "device"),
        ("x" * 100, "x" * 60),
    ],
)
def test_a_type_becomes_a_name_that_is_safe_in_addresses(kind, name):
    assert leaf_name(kind, {}) == name


def test_a_device_type_that_is_a_cell_type_gets_another_name():
    assert leaf_name("A", {"A": CellType(child="b", count=2)}) == "A-device"


@pytest.mark.parametrize(
    ("node_level", "levels", "expected"),
    [
        (2, 2, {"device": 1, "pcie": 2, "socket": 2, "node": 2, "rack": 2}),
        (3, 3, {"device": 1, "pcie": 2, "socket": 2, "node": 3, "rack": 3}),
        (4, 4, {"device": 1, "pcie": 2, "socket": 3, "node": 4, "rack": 4}),
        (4, 6, {"device": 1, "pcie": 2, "socket": 3, "node": 4, "rack": 5}),
        (6, 7, {"device": 1, "pcie": 2, "socket": 5, "node": 6, "rack": 7}),
    ],
)
def test_what_a_job_means_by_a_level_follows_from_the_structure(node_level, levels, expected):
    found = {w.value: level_of(w, node_level=node_level, levels=levels) for w in Within}

    assert found == expected


@pytest.mark.parametrize(
    ("types", "node_level", "words"),
    [
        (["A", "A-node"], 2, ("device", "node")),
        (["A", "half", "box"], 3, ("device", "socket", "node")),
        (["A", "A-pcie", "A-node"], 3, ("device", "pcie", "node")),
        (["A", "x", "y", "z", "rack"], 4, ("device", "pcie", "socket", "node", "rack")),
        (["A", "w", "x", "y", "z"], 5, ("device", "level 2", "level 3", "level 4", "node")),
    ],
)
def test_levels_have_the_words_of_their_types_or_of_their_place(types, node_level, words):
    assert level_words(types, node_level=node_level) == words


def test_written_out_addresses_are_the_default_ones():
    types = {
        "rack": CellType(child="box", count=2),
        "box": CellType(child="half", count=2, node_level=True),
        "half": CellType(child="A", count=2),
    }
    cells = (
        PhysicalCell(type="rack"),
        PhysicalCell(
            type="rack", address="r", children=(PhysicalCell(), PhysicalCell(address="n"))
        ),
        PhysicalCell(type="rack"),
    )

    def leaves(physical):
        spec = ClusterSpec(cell_types=types, physical=physical, virtual_clusters={})
        return list(ClusterTopology(spec).leaves)

    assert leaves(with_addresses(cells, types)) == leaves(cells)
