"""The interface by which the nodes of a gang reach each other."""

import ipaddress
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from workers.services.gang_networks import DataAddress, NodeNetwork, data_addresses

SLOW, FAST = 1_000, 100_000


def node(number: int, *more: tuple[str, str, int], chosen: str = "") -> NodeNetwork:
    """A node with a management network and the bridge of its container engine."""
    return NodeNetwork(
        host=f"10.0.0.{number}",
        chosen=chosen,
        interfaces=(
            ("docker0", "172.17.0.1/16", 0),
            ("eth0", f"10.0.0.{number}/24", SLOW),
            *more,
        ),
    )


def test_the_fastest_subnet_that_all_nodes_share_is_used() -> None:
    nodes = {
        1: node(1, ("ib0", "10.9.0.1/16", FAST), ("eth9", "10.8.1.1/24", FAST * 4)),
        2: node(2, ("ib1", "10.9.0.2/16", FAST), ("eth9", "10.8.2.1/24", FAST * 4)),
    }

    assert data_addresses(nodes) == {
        1: DataAddress(interface="ib0", address="10.9.0.1"),
        2: DataAddress(interface="ib1", address="10.9.0.2"),
    }


def test_the_slowest_node_decides_how_fast_a_subnet_is() -> None:
    nodes = {
        1: node(1, ("ib0", "10.9.0.1/16", FAST), ("eth1", "10.7.0.1/16", FAST // 2)),
        2: node(2, ("eth2", "10.9.0.2/16", SLOW), ("eth1", "10.7.0.2/16", FAST // 2)),
    }

    assert {place.interface for place in data_addresses(nodes).values()} == {"eth1"}


def test_interfaces_of_unknown_speed_leave_the_ssh_addresses() -> None:
    def virtual(number: int) -> NodeNetwork:
        interfaces = (("eth1", f"10.1.0.{number}/24", 0), ("eth0", f"10.0.0.{number}/24", 0))
        return NodeNetwork(host=f"10.0.0.{number}", interfaces=interfaces)

    found = data_addresses({1: virtual(1), 2: virtual(2)})

    assert {place.interface for place in found.values()} == {"eth0"}


def test_an_interface_that_an_admin_set_wins_over_faster_ones() -> None:
    nodes = {
        1: node(1, ("ib0", "10.9.0.1/16", FAST), chosen="eth0"),
        2: node(2, ("ib0", "10.9.0.2/16", FAST)),
    }
    rails = {
        1: node(1, ("ib0", "10.9.1.1/24", FAST), chosen="ib0"),
        2: node(2, ("ib0", "10.9.2.1/24", FAST), chosen="ib0"),
    }

    assert {place.interface for place in data_addresses(nodes).values()} == {"eth0"}
    assert {place.address for place in data_addresses(rails).values()} == {"10.9.1.1", "10.9.2.1"}


def test_without_a_shared_subnet_the_ssh_addresses_are_used() -> None:
    apart = NodeNetwork(host="10.0.1.9", interfaces=(("eth0", "10.0.1.9/24", FAST),))
    down = node(2, chosen="ib7")
    here = replace(node(2), host="127.0.0.2")

    assert data_addresses({1: node(1)}) == {}
    assert data_addresses({1: node(1), 2: apart}) == {}
    assert data_addresses({1: node(1), 2: down}) == {}
    assert data_addresses({1: node(1), 2: here}) == {}


ADDRESSES = st.builds(
    lambda subnet, number: f"10.0.{subnet}.{number}/24", st.integers(0, 2), st.integers(1, 4)
)
INTERFACES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), ADDRESSES, st.sampled_from([0, SLOW, FAST])),
    max_size=3,
    unique_by=lambda one: one[0],
)
NODES = st.dictionaries(
    st.integers(1, 4),
    st.builds(
        lambda found, chosen: NodeNetwork(host="n", chosen=chosen, interfaces=tuple(found)),
        INTERFACES,
        st.sampled_from(["", "", "a"]),
    ),
    min_size=2,
    max_size=4,
)


@given(NODES)
def test_all_nodes_get_distinct_addresses_of_their_own_or_none_does(
    nodes: dict[int, NodeNetwork],
) -> None:
    found = data_addresses(nodes)

    assert not found or found.keys() == nodes.keys()
    for number, place in found.items():
        own = {
            (name, str(ipaddress.ip_interface(text).ip))
            for name, text, _ in nodes[number].interfaces
        }
        assert (place.interface, place.address) in own
        assert nodes[number].chosen in ("", place.interface)
    if found and not all(one.chosen for one in nodes.values()):
        assert len({place.address for place in found.values()}) == len(found)
        subnets = {
            str(ipaddress.ip_network(f"{one.address}/24", strict=False)) for one in found.values()
        }
        assert len(subnets) == 1
