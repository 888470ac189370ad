"""From inventories to cells: regular trees keep their levels, others are flattened."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell
from scheduling.core.cells.topology import ClusterTopology
from scheduling.core.device_types import reported_types, type_name
from scheduling.core.inventory import (
    level_words,
    propose,
    with_addresses,
)
from scheduling.core.jobspec import Within
from scheduling.core.node_parts import Home
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
        physical=tuple(part.cell for part in proposal.parts),
        virtual_clusters={},
    )
    return ClusterTopology(spec)


def fans(proposal, known=()):
    (part,) = proposal.parts
    chain = topology_of(proposal, known).chains[part.chain]
    return tuple(reversed(chain.fan[2:]))


def test_a_regular_tree_keeps_its_levels_and_names_them_after_the_type():
    proposal = propose(node="n1", inventory=inventory(regular(2, 2, 2)), known={})

    assert dict(proposal.new_types) == {
        "A100-pcie": CellType(child="A100", count=2),
        "A100-socket": CellType(child="A100-pcie", count=2),
        "A100-node": CellType(child="A100-socket", count=2, node_level=True),
    }
    (part,) = proposal.parts
    assert (part.device_type, part.chain, proposal.warnings) == ("A100", "A100-node", ())
    assert [leaf.address for leaf in part.leaves][:3] == ["n1/0/0/0", "n1/0/0/1", "n1/0/1/2"]


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
    (part,) = proposal.parts
    assert {leaf.address for leaf in part.leaves} == set(topology.leaves)
    assert {key[1] for key in topology.devices} == {device.index for device in devices}
    chain = topology.chains[part.chain]
    assert all(chain.complete)
    assert 1 not in fans(proposal)[:-1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=10))
def test_any_tree_gives_a_topology_with_all_its_devices(paths):
    devices = [Device(index=i, type="A", path=list(path)) for i, path in enumerate(paths)]

    proposal = propose(node="n1", inventory=inventory(devices), known={})

    (part,) = proposal.parts
    assert {leaf.address for leaf in part.leaves} == set(topology_of(proposal).leaves)
    assert len(part.leaves) == len(devices)


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

    assert (proposal.parts[0].chain, dict(proposal.new_types)) == ("box", {})


def test_another_shape_of_the_same_type_gets_a_name_of_its_own():
    first = propose(node="n", inventory=inventory(regular(2, 2, 2)), known={})
    second = propose(node="m", inventory=inventory(regular(2, 1, 4)), known=first.new_types)
    both = {**first.new_types, **second.new_types}
    third = propose(node="o", inventory=inventory(regular(2, 1, 4)), known=both)

    assert second.parts[0].chain == "A100-2x4-node"
    assert not set(first.new_types) & set(second.new_types)
    assert (third.parts[0].chain, dict(third.new_types)) == ("A100-2x4-node", {})


def mixed(*kinds, memory=0, **facts):
    return [
        Device(index=i, type=kind, path=[], memory_bytes=memory, **facts)
        for i, kind in enumerate(kinds)
    ]


def flat(devices, **options):
    found = inventory(devices, ["node", "device"])
    return propose(node="n", inventory=found, **{"known": {}, **options})


def test_each_type_of_a_node_has_a_cell_of_its_own():
    proposal = flat(mixed("B", "A", "A", "C", "A"))

    shown = [(p.device_type, p.chain, p.cell.address) for p in proposal.parts]
    assert shown == [("A", "A-node", "n"), ("B", "B-node", "B/n"), ("C", "C-node", "C/n")]
    assert [[leaf.address for leaf in part.leaves] for part in proposal.parts] == [
        ["n/1", "n/2", "n/4"], ["B/n/0"], ["C/n/3"],
    ]  # fmt: skip
    topology = topology_of(proposal)
    assert {index for node, index in topology.devices if node == "n"} == {0, 1, 2, 3, 4}
    assert proposal.warnings == ()


def home(chain, kind, address, *numbers, is_fixed=False):
    return Home(
        chain=chain,
        device_type=kind,
        address=address,
        numbers=frozenset(numbers),
        is_fixed=is_fixed,
    )


def test_an_existing_cell_keeps_its_address_when_a_larger_part_appears():
    homes = [home("A-node", "A", "n", 0)]

    proposal = flat(mixed("A", "B", "B"), homes=homes, kept={"A-node"})

    assert [(p.device_type, p.cell.address) for p in proposal.parts] == [("B", "B/n")]


def test_a_device_of_a_known_type_enlarges_the_cell_of_its_type():
    homes = [home("A-node", "A", "n", 0), home("B-node", "B", "B/n", 1)]

    proposal = flat(mixed("A", "B", "B"), homes=homes, kept={"A-node", "B-node"})

    (part,) = proposal.parts
    assert (part.cell.address, [leaf.address for leaf in part.leaves]) == (
        "B/n", ["B/n/1", "B/n/2"],
    )  # fmt: skip


def test_a_cell_inside_a_larger_one_keeps_its_shape_and_other_types_are_added():
    homes = [home("rack", "A", "r/n", 0, 1, is_fixed=True)]

    proposal = flat(mixed("A", "A", "A", "B"), homes=homes)

    assert [(p.device_type, p.cell.address) for p in proposal.parts] == [("B", "n")]
    assert dict(proposal.extra) == {"rack": (2,)}


def test_a_cell_whose_devices_have_another_name_stays_one_part():
    homes = [home("A100-node", "A100", "n", 0, 1)]

    proposal = flat(mixed("NVIDIA-A100", "NVIDIA-A100"), homes=homes)

    assert [(p.device_type, len(p.leaves)) for p in proposal.parts] == [("NVIDIA-A100", 2)]


def test_types_beyond_the_limit_are_named():
    proposal = flat(mixed(*(f"type-{number}" for number in range(18))))

    assert len(proposal.parts) == 16
    assert "2 devices are not used" in proposal.warnings[-1]


GIB = 1 << 30


@pytest.mark.parametrize(
    ("devices", "types"),
    [
        (
            [
                *mixed("V100", "V100", memory=32 * GIB),
                *mixed("T400", memory=4 * GIB, display=True),
            ],
            {"V100": "V100", "T400": "T400-display"},
        ),
        (
            [*mixed("V100", memory=32 * GIB), *mixed("NVIDIA-DGX-Display", memory=4 * GIB)],
            {"V100": "V100", "NVIDIA-DGX-Display": "NVIDIA-DGX-Display"},
        ),
        (mixed("RTX", "RTX", memory=24 * GIB, display=True), {"RTX": "RTX"}),
        (
            [*mixed("A", memory=24 * GIB), *mixed("B", memory=20 * GIB, display=True)],
            {"A": "A", "B": "B"},
        ),
        (
            [*mixed("A", memory=24 * GIB), *mixed("B", memory=8 * GIB)],
            {"A": "A", "B": "B"},
        ),
        (mixed("A", display=True), {"A": "A"}),
    ],
)
def test_small_gpus_that_show_a_screen_are_a_type_of_their_own(devices, types):
    assert dict(reported_types(devices)) == types


def test_a_node_without_devices_has_no_cell():
    proposal = propose(node="n", inventory=inventory([]), known={})

    assert proposal.parts == ()
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
    assert type_name(kind) == name


def test_a_device_type_that_is_a_cell_type_gets_another_name():
    known = {"A": CellType(child="b", count=2)}

    assert flat(mixed("A"), known=known).parts[0].device_type == "A-device"


LEVEL_NAMES = ("device", "pcie", "nvlink", "numa", "socket", "node", "rack", "pool")


@pytest.mark.parametrize(
    ("inside", "above", "expected"),
    [
        ([], [], (1, 2, 2, 2, 2, 2, None, None)),
        (["half"], [], (1, 2, 3, 2, 2, 3, None, None)),
        (["pcie"], [], (1, 2, 3, 3, 3, 3, None, None)),
        (["x", "y"], [], (1, 2, 4, 3, 3, 4, None, None)),
        (["x", "y"], ["rack", "pool"], (1, 2, 4, 3, 3, 4, 5, 6)),
        (["w", "x", "y", "z"], ["rack"], (1, 2, 6, 5, 5, 6, 7, None)),
        (["nvlink"], [], (1, 3, 2, 3, 3, 3, None, None)),
        (["nvlink", "socket"], [], (1, 3, 2, 3, 3, 4, None, None)),
        (["nvlink+pcie", "socket"], [], (1, 2, 2, 3, 3, 4, None, None)),
        (["pcie", "numa", "socket"], [], (1, 2, 5, 3, 4, 5, None, None)),
        (["socket+nvlink"], [], (1, 2, 2, 2, 2, 3, None, None)),
    ],
)
def test_what_a_job_means_by_a_level(inside, above, expected):
    types, child = {}, "A"
    for word in (*inside, "node", *above):
        types[f"A-{word}"] = CellType(child=child, count=2, node_level=word == "node")
        child = f"A-{word}"
    spec = ClusterSpec(cell_types=types, physical=(PhysicalCell(type=child),), virtual_clusters={})

    chain = ClusterTopology(spec).chains[child]

    found = tuple(chain.level_named(f"within:{word}") for word in LEVEL_NAMES)
    assert found == expected
    assert {*LEVEL_NAMES} == {each.value for each in Within}
    assert chain.has_level("nvlink") == any("nvlink" in word for word in inside)


@pytest.mark.parametrize(
    ("paths", "expected", "words"),
    [
        # Two sockets of two bridged pairs: all levels are regular.
        ([(0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (1, 3), (1, 3)], (2, 2, 2), 2),
        # One pair lacks its bridge: the sockets remain.
        ([(0, 0), (0, 1), (0, 2), (0, 2), (1, 3), (1, 3), (1, 4), (1, 4)], (2, 4), 1),
        # The sockets differ in size, the pairs do not.
        ([(0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2)], (3, 2), 1),
    ],
)
def test_irregular_levels_are_left_out_and_regular_ones_remain(paths, expected, words):
    devices = [Device(index=i, type="A40", path=list(path)) for i, path in enumerate(paths)]
    found = inventory(devices, ["node", "socket", "nvlink", "device"])

    proposal = propose(node="n", inventory=found, known={})

    assert fans(proposal) == expected
    assert len(proposal.new_types) == words + 1
    assert bool(proposal.warnings) == (words < 2)


@pytest.mark.parametrize(
    ("types", "node_level", "words"),
    [
        (["A", "A-node"], 2, ("device", "node")),
        (["A", "half", "box"], 3, ("device", "socket", "node")),
        (["A", "A-pcie", "A-node"], 3, ("device", "pcie", "node")),
        (
            ["A", "A-nvlink+pcie", "A-socket", "A-node"],
            4,
            ("device", "nvlink+pcie", "socket", "node"),
        ),
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


def test_a_hostile_tree_of_many_irregular_levels_is_flattened_in_bounded_time() -> None:
    depth = 14
    levels = ["node", *(f"level{n}" for n in range(depth)), "device"]
    devices = [
        Device(index=index, type="X", path=[int(index == 511)] * depth) for index in range(512)
    ]
    inventory = Inventory(
        devices=devices, levels=levels, cpus=8, memory_bytes=1 << 33, docker="", warnings=[]
    )

    began = time.process_time()
    found = propose(node="n1", inventory=inventory, known={})

    assert time.process_time() - began < 5
    (part,) = found.parts
    assert found.new_types[part.chain].count == 512


def test_a_regular_tree_of_many_levels_retains_all_of_them() -> None:
    levels = ["node", *(f"level{n}" for n in range(8)), "device"]
    devices = [
        Device(index=n, type="X", path=[n >> (8 - depth) for depth in range(8)])
        for n in range(256)
    ]
    inventory = Inventory(
        devices=devices, levels=levels, cpus=8, memory_bytes=1 << 33, docker="", warnings=[]
    )

    found = propose(node="n1", inventory=inventory, known={})

    assert found.warnings == ()
    assert len(found.new_types) == 8
